package dialects

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/enginemock"
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
	for _, d := range enginemock.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{tiny: true})
			for i, f := range []enginemock.Fault{
				{Kind: enginemock.FaultError, Status: 500},
				{Kind: enginemock.FaultError, Status: 503},
				{Kind: enginemock.FaultLimit},
				{Kind: enginemock.FaultStreamError},
				{Kind: enginemock.FaultStreamError, After: 7},
				{Kind: enginemock.FaultDisconnect},
				{Kind: enginemock.FaultDisconnect, After: 7},
				{Kind: enginemock.FaultStall, After: 7, For: enginemock.Wait(100 * time.Millisecond)},
				{Kind: enginemock.FaultDrip, For: enginemock.Wait(time.Millisecond)},
				{Kind: enginemock.FaultReset},
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
					struck := h.engines[want.worker].Faults().TriggerCount(f.Kind)
					if hasEvents(d) {
						h.settled()
					}
					h.eventually(func() error { // the one that failed last may be in quarantine
						sound(t, what, h.ask(p, 40, stream, nil), want.text)
						if h.engines[want.worker].Faults().TriggerCount(f.Kind) == struck {
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

// TestNoEngineLeft: with nowhere else to go the client is told what went wrong, before or inside the stream.
func TestNoEngineLeft(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			h := build(t, d, plan{servers: 1, speedup: 20, settings: []string{"MIGRATION_LIMIT=1", "MIGRATION_WAIT=100ms"}})
			for _, f := range []enginemock.Fault{{Kind: enginemock.FaultError, Status: 500}, {Kind: enginemock.FaultStreamError, After: 5}, {Kind: enginemock.FaultDisconnect, After: 5}} {
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
	for _, d := range enginemock.Dialects() {
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
	for _, d := range []enginemock.Dialect{enginemock.VLLM, enginemock.VLLMLegacy, enginemock.SGLang} {
		for _, kind := range []enginemock.FaultKind{enginemock.FaultDropEvents, enginemock.FaultGarbleEvents} {
			t.Run(string(d)+"/"+string(kind), func(t *testing.T) {
				h := build(t, d, plan{servers: 1})
				h.ask(prompt(1, 100), 5, false, nil)
				h.settled()
				if err := h.engines[0].Faults().Set(enginemock.Fault{Kind: kind, Count: 2}); err != nil {
					t.Fatal(err)
				}
				for i := range 6 {
					h.ask(prompt(10+i, 100), 20, false, nil)
				}
				h.settled()
				if h.engines[0].Faults().TriggerCount(kind) != 2 {
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
		dialect enginemock.Dialect
		kind    enginemock.FaultKind
		warning string
	}{
		{enginemock.VLLM, enginemock.FaultGap, "kv_events_lost"},
		{enginemock.VLLM, enginemock.FaultGarbleEvents, "kv_events_bad"},
		{enginemock.VLLMLegacy, enginemock.FaultGap, "kv_events_lost"},
		{enginemock.SGLang, enginemock.FaultGap, "kv_events_lost"},
		{enginemock.SGLang, enginemock.FaultGarbleEvents, "kv_events_bad"},
		{enginemock.TRTLLM, enginemock.FaultGap, "kv_events_lost"},
	} {
		t.Run(string(c.dialect)+"/"+string(c.kind), func(t *testing.T) {
			t.Parallel() // to give up on a hole takes seconds
			p := plan{servers: 1}
			if c.kind == enginemock.FaultGarbleEvents { // a replay has it as it was
				p.mimic = func(m *enginemock.Config) { m.KVReplay = "" }
			}
			h := build(t, c.dialect, p)
			h.ask(prompt(1, 100), 5, false, nil)
			if c.kind != enginemock.FaultGarbleEvents { // else it joins late, and never knows all
				h.settled()
			}
			if err := h.engines[0].Faults().Set(enginemock.Fault{Kind: c.kind, Count: 1}); err != nil {
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
					return fmt.Errorf("no warning says that events were lost: %s", h.get("/v1/router/workers"))
				}
				return nil
			})
		})
	}
}

// TestSilence: what makes an engine serve worse than it could, and no request fails by, is said aloud.
func TestSilence(t *testing.T) {
	mute := func(m *enginemock.Config) { m.Faults = []enginemock.Fault{{Kind: enginemock.FaultNoCached}} }
	for _, c := range []struct {
		warning string
		dialect enginemock.Dialect
		change  func(*enginemock.Config)
	}{
		{"no_kv_events", enginemock.VLLM, func(m *enginemock.Config) { m.KVEvents, m.KVReplay = "", "" }},
		{"no_kv_events", enginemock.SGLang, func(m *enginemock.Config) { m.KVEvents, m.KVReplay = "", "" }},
		{"no_cached_tokens", enginemock.VLLM, func(m *enginemock.Config) { m.Features.Details = enginemock.Off }},
		{"no_cached_tokens", enginemock.SGLang, mute},
		{"no_metrics", enginemock.VLLM, func(m *enginemock.Config) { m.Features.Metrics = enginemock.Off }},
		{"block_size", enginemock.VLLM, func(m *enginemock.Config) { m.Faults = []enginemock.Fault{{Kind: enginemock.FaultBlockSize}} }},
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
					return fmt.Errorf("no warning %s: %s", c.warning, rows)
				}
				if strings.Contains(rows, "cache_mispredicted") {
					t.Errorf("what is not said is taken for nothing: %s", rows)
				}
				return nil
			})
		})
	}
}
