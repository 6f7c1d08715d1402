package dialects

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/mimic"
)

// sound is an answer that nothing disturbed.
func sound(t *testing.T, what string, got answer, want string) {
	t.Helper()
	if got.status != http.StatusOK || got.err != "" || got.finish != "length" || got.text != want {
		t.Errorf("%s: status %d, error %q, finish %q, text %q, want %q", what, got.status, got.err, got.finish, got.text, want)
	}
}

// TestFaultsOfAnAnswer: whatever goes wrong with an answer on the engine that has the prompt cached, the client gets
// every byte of it, from there or from the other one; and the index is right when it is over.
func TestFaultsOfAnAnswer(t *testing.T) {
	for _, d := range mimic.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{tiny: true})
			for i, f := range []mimic.Fault{
				{Kind: mimic.FaultError, Status: 500},
				{Kind: mimic.FaultError, Status: 503},
				{Kind: mimic.FaultLimit},
				{Kind: mimic.FaultStreamError},
				{Kind: mimic.FaultStreamError, After: 7},
				{Kind: mimic.FaultDisconnect},
				{Kind: mimic.FaultDisconnect, After: 7},
				{Kind: mimic.FaultStall, After: 7, For: mimic.Wait(100 * time.Millisecond)},
				{Kind: mimic.FaultDrip, For: mimic.Wait(time.Millisecond)},
				{Kind: mimic.FaultReset},
			} {
				for _, stream := range []bool{true, false} {
					what := fmt.Sprintf("%s after %d tokens, stream %v", f.Kind, f.After, stream)
					p := prompt(100+i, 120)
					want := h.ask(p, 40, stream, nil)
					sound(t, what+", before", want, want.text)
					f.Count = 1
					if err := h.engines[want.worker].Faults().Set(f); err != nil {
						t.Fatal(err)
					}
					struck := h.engines[want.worker].Faults().Struck(f.Kind)
					if hasEvents(d) {
						h.settled()
					}
					h.eventually(func() error { // the one that failed last may be in quarantine
						sound(t, what, h.ask(p, 40, stream, nil), want.text)
						if h.engines[want.worker].Faults().Struck(f.Kind) == struck {
							return fmt.Errorf("%s did not strike", what)
						}
						return nil
					})
					if err := h.engines[want.worker].Faults().Set(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if hasEvents(d) {
				h.settled()
			}
		})
	}
}

// TestNobodyLeft: with nowhere else to go the client is told what went wrong, before or inside the stream.
func TestNobodyLeft(t *testing.T) {
	for _, d := range mimic.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{servers: 1, speedup: 20, settings: []string{"MIGRATION_LIMIT=1", "MIGRATION_WAIT=100ms"}})
			for _, f := range []mimic.Fault{{Kind: mimic.FaultError, Status: 500}, {Kind: mimic.FaultStreamError, After: 5}, {Kind: mimic.FaultDisconnect, After: 5}} {
				if err := h.engines[0].Faults().Set(f); err != nil {
					t.Fatal(err)
				}
				for _, stream := range []bool{true, false} {
					a := h.ask(prompt(7, 60), 30, stream, nil)
					if a.err == "" || a.finish != "" || !stream && a.status < 500 {
						t.Errorf("%s, stream %v: %+v", f.Kind, stream, a)
					}
				}
			}
			if err := h.engines[0].Faults().Set(); err != nil {
				t.Fatal(err)
			}
			h.eventually(func() error {
				if a := h.ask(prompt(7, 60), 5, false, nil); a.status != http.StatusOK {
					return fmt.Errorf("the engine works again, and the answer is %+v", a)
				}
				return nil
			})
		})
	}
}

// TestRestartUnderAStream: an engine that is started anew in the middle of an answer loses it, its connections and its
// cache. The stream goes on at the other one, and what is known of the cache begins anew.
func TestRestartUnderAStream(t *testing.T) {
	for _, d := range mimic.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{tiny: true})
			p := prompt(3, 100)
			want := h.ask(p, 60, true, nil)
			if hasEvents(d) {
				h.settled()
			} else {
				h.believes(p, len(p)) // else the stream may begin at the other one
			}
			var once sync.Once
			got := h.ask(p, 60, true, func() {
				once.Do(func() {
					if err := h.engines[want.worker].Restart(); err != nil {
						t.Error(err)
					}
				})
			})
			sound(t, "the stream", got, want.text)
			if got.worker != want.worker {
				t.Fatalf("the stream began at %d, not at %d", got.worker, want.worker)
			}
			if !hasEvents(d) {
				return
			}
			for i := range 12 {
				h.eventually(func() error {
					if a := h.ask(prompt(20+i, 100), 5, false, nil); a.status != http.StatusOK {
						return fmt.Errorf("%+v", a)
					}
					return nil
				})
			}
			h.settled()
		})
	}
}

// TestEventsLostAndFound: batches that were lost are asked for again, where the engine has them.
func TestEventsLostAndFound(t *testing.T) {
	for _, d := range []mimic.Dialect{mimic.VLLM, mimic.VLLMLegacy, mimic.SGLang} {
		for _, kind := range []mimic.FaultKind{mimic.FaultDropEvents, mimic.FaultGarbleEvents} {
			t.Run(string(d)+"/"+string(kind), func(t *testing.T) {
				h := build(t, d, plan{servers: 1})
				h.ask(prompt(1, 100), 5, false, nil)
				h.settled()
				if err := h.engines[0].Faults().Set(mimic.Fault{Kind: kind, Count: 2}); err != nil {
					t.Fatal(err)
				}
				for i := range 6 {
					h.ask(prompt(10+i, 100), 20, false, nil)
				}
				h.settled()
				if h.engines[0].Faults().Struck(kind) != 2 {
					t.Error("the fault did not strike")
				}
				if rows := h.get("/v1/router/workers"); strings.Contains(rows, "kv_events") {
					t.Errorf("a warning about what was put right: %s", rows)
				}
			})
		}
	}
}

// TestEventsLostForGood: a hole that cannot be filled, or a batch that cannot be read and comes only once, hides what was known, and says so; what
// is stored from then on is known again, and nothing is believed that is not there.
func TestEventsLostForGood(t *testing.T) {
	for _, c := range []struct {
		dialect mimic.Dialect
		kind    mimic.FaultKind
		warning string
	}{
		{mimic.VLLM, mimic.FaultGap, "kv_events_lost"},
		{mimic.VLLM, mimic.FaultGarbleEvents, "kv_events_bad"},
		{mimic.VLLMLegacy, mimic.FaultGap, "kv_events_lost"},
		{mimic.SGLang, mimic.FaultGap, "kv_events_lost"},
		{mimic.SGLang, mimic.FaultGarbleEvents, "kv_events_bad"},
		{mimic.TRTLLM, mimic.FaultGap, "kv_events_lost"},
	} {
		t.Run(string(c.dialect)+"/"+string(c.kind), func(t *testing.T) {
			t.Parallel() // to give up on a hole takes seconds
			p := plan{servers: 1}
			if c.kind == mimic.FaultGarbleEvents { // a replay has it as it was
				p.mimic = func(m *mimic.Config) { m.KVReplay = "" }
			}
			h := build(t, c.dialect, p)
			h.ask(prompt(1, 100), 5, false, nil)
			if c.kind != mimic.FaultGarbleEvents { // else it joins late, and never knows all
				h.settled()
			}
			if err := h.engines[0].Faults().Set(mimic.Fault{Kind: c.kind, Count: 1}); err != nil {
				t.Fatal(err)
			}
			h.ask(prompt(2, 100), 5, false, nil)
			i := 0
			h.eventually(func() error {
				i++
				h.ask(prompt(100+i, 60), 5, false, nil)
				have, truth := h.index()[0], h.engines[0].truth(t)
				if len(have) == 0 || len(have) >= len(truth) || !within(have, truth) {
					return fmt.Errorf("%d blocks are known, %d are cached, known are cached: %v", len(have), len(truth), within(have, truth))
				}
				return nil
			})
			h.eventually(func() error {
				if !strings.Contains(h.get("/v1/router/workers"), c.warning) {
					return fmt.Errorf("nobody says that events were lost: %s", h.get("/v1/router/workers"))
				}
				return nil
			})
		})
	}
}

// TestSilence: what makes an engine serve worse than it could, and no request fails by, is said aloud.
func TestSilence(t *testing.T) {
	mute := func(m *mimic.Config) { m.Faults = []mimic.Fault{{Kind: mimic.FaultNoCached}} }
	for _, c := range []struct {
		warning string
		dialect mimic.Dialect
		change  func(*mimic.Config)
	}{
		{"no_kv_events", mimic.VLLM, func(m *mimic.Config) { m.KVEvents, m.KVReplay = "", "" }},
		{"no_kv_events", mimic.SGLang, func(m *mimic.Config) { m.KVEvents, m.KVReplay = "", "" }},
		{"no_cached_tokens", mimic.VLLM, func(m *mimic.Config) { m.Features.Details = mimic.Off }},
		{"no_cached_tokens", mimic.SGLang, mute},
		{"no_metrics", mimic.VLLM, func(m *mimic.Config) { m.Features.Metrics = mimic.Off }},
		{"block_size", mimic.VLLM, func(m *mimic.Config) { m.Faults = []mimic.Fault{{Kind: mimic.FaultBlockSize}} }},
	} {
		t.Run(string(c.dialect)+"/"+c.warning, func(t *testing.T) {
			t.Parallel()
			p := plan{servers: 1, mimic: c.change}
			if c.warning == "no_metrics" { // which would say the block size
				p.spec = ",block-size=16"
			}
			h := build(t, c.dialect, p)
			i := 0
			h.eventually(func() error {
				i++
				if a := h.ask(prompt(1+i%3, 100), 3, false, nil); a.status != http.StatusOK {
					return fmt.Errorf("%+v", a)
				}
				rows := h.get("/v1/router/workers")
				if !strings.Contains(rows, c.warning) {
					return fmt.Errorf("nobody says %s: %s", c.warning, rows)
				}
				if strings.Contains(rows, "cache_mispredicted") {
					t.Errorf("what is not said is taken for nothing: %s", rows)
				}
				return nil
			})
		})
	}
}
