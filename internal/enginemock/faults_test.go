package enginemock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/internal/enginemock"
)

const streamed = `{"prompt":[300,301,302],"max_tokens":60,"ignore_eos":true,"temperature":0,"stream":true}`

// TestFaultsBeforeTheAnswer: statuses and headers, as often as configured.
func TestFaultsBeforeTheAnswer(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: d, Seed: 3})
			if err := s.Faults().Set(
				enginemock.Fault{Kind: enginemock.FaultLimit, Count: 1},
				enginemock.Fault{Kind: enginemock.FaultError, Count: 2, Status: 502},
				enginemock.Fault{Kind: enginemock.FaultLoading, Count: 1, Skip: 3},
			); err != nil {
				t.Fatal(err)
			}
			for i, want := range []int{429, 502, 502, 503, 200} {
				status, h, _ := ask(t, s, "POST", "/v1/completions", `{"prompt":[300,301],"max_tokens":1}`)
				if status != want {
					t.Errorf("request %d: %d, want %d", i, status, want)
				}
				if want == 429 && h.Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
			}
			if n := s.Faults().TriggerCount(enginemock.FaultError); n != 2 {
				t.Errorf("errors struck %d times", n)
			}
			if status, _, _ := ask(t, s, "POST", "/v1/completions", `{"prompt":[300,301],"max_tokens":1}`, "X-Return-Error", "418"); status != 418 {
				t.Errorf("an error that the request asks for: %d", status)
			}
		})
	}
}

// TestFaultsInTheAnswer: an error inside the stream, a connection that breaks off, one that stalls.
func TestFaultsInTheAnswer(t *testing.T) {
	for _, d := range enginemock.Dialects() {
		t.Run(string(d), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: d, Open: opener(t, shape{speedup: 5}), Seed: 3})
			set := func(f enginemock.Fault) {
				if err := s.Faults().Set(f); err != nil {
					t.Fatal(err)
				}
			}
			set(enginemock.Fault{Kind: enginemock.FaultStreamError, Count: 1, After: 5})
			status, _, body := ask(t, s, "POST", "/v1/completions", streamed)
			list := events(t, body)
			if status != http.StatusOK || len(list) < 2 || !strings.Contains(body, `"error":`) || strings.Contains(list[0], `"error":`) {
				t.Errorf("an error in the stream: %d %s", status, body)
			}

			set(enginemock.Fault{Kind: enginemock.FaultDisconnect, Count: 1, After: 5})
			res, err := do(t.Context(), s, "POST", "/v1/completions", streamed)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(data), "data: ") {
				t.Errorf("a connection that breaks off: %v after %d bytes", err, len(data))
			}

			// An answer which ends before the fault strikes leaves it for the next one, and so does one of a
			// request which allows too few tokens.
			for _, spares := range []enginemock.Fault{{MinTokens: 2}, {After: 5}} {
				spares.Kind, spares.Count = enginemock.FaultStall, 1
				set(spares)
				if status, _, body := ask(t, s, "POST", "/v1/completions", `{"prompt":[300,301],"max_tokens":1}`); status != http.StatusOK {
					t.Errorf("a short answer: %d %.200s", status, body)
				}
				waitIdle(t, s)
				if n := s.Faults().TriggerCount(enginemock.FaultStall); n != 0 {
					t.Errorf("a short answer stalled %d times", n)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			res, err = do(ctx, s, "POST", "/v1/completions", streamed)
			if err != nil {
				cancel()
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(patience); s.Faults().TriggerCount(enginemock.FaultStall) == 0; {
				if time.Now().After(end) {
					t.Fatal("the answer does not stall")
				}
			}
			cancel()
			_ = res.Body.Close()
			waitIdle(t, s)

			set(enginemock.Fault{Kind: enginemock.FaultDrip, Count: 1, For: enginemock.Wait(time.Millisecond)})
			if status, _, body := ask(t, s, "POST", "/v1/completions", streamed); status != http.StatusOK || !strings.Contains(body, "length") {
				t.Errorf("a slow answer: %d %.200s", status, body)
			}
		})
	}
}

// waitIdle waits until no request is left in a server.
func waitIdle(t *testing.T, s *enginemock.Server) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		_, _, body := ask(t, s, "GET", "/admin/state", "")
		if strings.Contains(body, `"busy":0`) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("requests are left: %s", body)
		}
	}
}

// TestLeavingAborts: a request whose client disconnects is aborted.
func TestLeavingAborts(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Open: opener(t, shape{speedup: 1}), Seed: 3})
	for i, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := do(ctx, s, "POST", "/v1/completions", `{"prompt":[300,301],"max_tokens":100000,"ignore_eos":true,"stream":`+stream+`}`)
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}()
		for end := time.Now().Add(patience); ; {
			running := fmt.Sprintf("prompt_tokens_total{engine=\"0\",model_name=\"penstock-sim\"} %d\n", 2*(i+1))
			if _, _, body := ask(t, s, "GET", "/metrics", ""); strings.Contains(body, running) {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the request does not run")
			}
		}
		cancel()
		<-done
		waitIdle(t, s)
	}
	if _, _, body := ask(t, s, "GET", "/metrics", ""); !strings.Contains(body, `finished_reason="abort"} 2`) {
		t.Error("the metrics do not say that two requests were aborted")
	}
}

// TestAbort: requests are aborted by their ids, through the engine's own endpoint.
func TestAbort(t *testing.T) {
	for _, c := range []struct {
		dialect                enginemock.Dialect
		path, body, call, name string
	}{
		{enginemock.VLLM, "/inference/v1/generate", `{"request_id":"r","token_ids":[300],"sampling_params":{"max_tokens":100000,"ignore_eos":true},"stream":true}`, "/inference/v1/abort_requests", `{"request_ids":["generate-tokens-r"]}`},
		{enginemock.SGLang, "/generate", `{"rid":"r","input_ids":[300],"sampling_params":{"max_new_tokens":100000,"ignore_eos":true},"stream":true}`, "/abort_request", `{"rid":"r"}`},
	} {
		t.Run(string(c.dialect), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: c.dialect, Open: opener(t, shape{speedup: 1}), Seed: 3})
			res, err := do(t.Context(), s, "POST", c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			in := bufio.NewReader(res.Body)
			if _, err := in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if status, _, _ := ask(t, s, "POST", c.call, c.name); status != http.StatusOK {
				t.Fatal(status)
			}
			rest, err := io.ReadAll(in)
			if err != nil || !strings.Contains(string(rest), "abort") {
				t.Errorf("%v, and the end of the stream is %.300s", err, rest[max(0, len(rest)-300):])
			}
		})
	}
}

// TestEventFaults: dropped batches can be replayed, skipped ones cannot, and garbage is not a batch.
func TestEventFaults(t *testing.T) {
	s := start(t, enginemock.Config{
		Dialect: enginemock.VLLM, KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Seed: 3,
		Faults: []enginemock.Fault{
			{Kind: enginemock.FaultDropEvents, Count: 1},
			{Kind: enginemock.FaultGarbleEvents, Count: 1},
			{Kind: enginemock.FaultGap, Count: 1, Skip: 2, After: 3},
		},
	})
	in := subscribe(t, s, 0)
	generate(t, s, 4, "")
	var d engineevents.Decoder
	var b engineevents.Batch
	got := map[uint64]bool{}
	for len(got) < 2 {
		select {
		case m := <-in:
			got[m.seq] = d.Decode(m.payload, &b) == nil
		case <-time.After(patience):
			t.Fatalf("batches: %v", got)
		}
	}
	if _, there := got[0]; there || got[1] || !got[5] {
		t.Errorf("batch 0 is lost, 1 garbage and 2 to 4 never were, but: %v", got)
	}
	again := replay(t, s.ReplayAddr(), 0)
	if err := d.Decode(again[0][3], &b); err != nil {
		t.Errorf("batch 0 cannot be replayed: %v", err)
	}
	if err := d.Decode(again[1][3], &b); err != nil {
		t.Errorf("batch 1 is garbage when it is replayed: %v", err)
	}
}

// TestTheRestOfTheFaults: reports of the engine are wrong, late or missing.
func TestTheRestOfTheFaults(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	set := func(f enginemock.Fault) {
		if err := s.Faults().Set(f); err != nil {
			t.Fatal(err)
		}
	}
	set(enginemock.Fault{Kind: enginemock.FaultBlockSize, Count: 1})
	if _, _, body := ask(t, s, "GET", "/metrics", ""); !strings.Contains(body, `block_size="32"`) {
		t.Error("the block size is right")
	}
	if _, _, body := ask(t, s, "GET", "/metrics", ""); !strings.Contains(body, `block_size="16"`) {
		t.Error("the block size stays wrong")
	}
	q := map[string]any{"prompt": prompt(1, 64), "max_tokens": 1}
	post(t, s, "/v1/completions", q)
	if got := at(t, post(t, s, "/v1/completions", q), "usage", "prompt_tokens_details", "cached_tokens"); got != 48.0 {
		t.Errorf("%v cached tokens, want 48", got)
	}
	set(enginemock.Fault{Kind: enginemock.FaultNoCached})
	if got := at(t, post(t, s, "/v1/completions", q), "usage", "prompt_tokens_details"); got != nil {
		t.Errorf("cached tokens are told: %v", got)
	}
	set(enginemock.Fault{Kind: enginemock.FaultSlowMetrics})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := do(ctx, s, "GET", "/metrics", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("metrics come at once: %v", err)
	}
	set(enginemock.Fault{Kind: enginemock.FaultReset, Count: 1})
	c := &http.Client{Timeout: patience}
	defer c.CloseIdleConnections()
	for i := range 2 {
		res, err := c.Post(s.URL()+"/v1/completions", "application/json", io.NopCloser(strings.NewReader(`{"prompt":[300],"max_tokens":1}`)))
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if (err != nil) != (i == 1) {
			t.Errorf("request %d on a kept connection: %v", i, err)
		}
	}
}

// TestAdmin: switches are set over HTTP, and invalid ones are refused.
func TestAdmin(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	status, _, body := ask(t, s, "POST", "/admin/faults", `{"faults":[{"kind":"drip","for":"5ms","probability":0.5}]}`)
	if status != http.StatusOK || !strings.Contains(body, `"for":"5ms"`) {
		t.Errorf("%d %s", status, body)
	}
	for _, bad := range []string{`{"faults":[{"kind":"flood"}]}`, `{"faults":[{"kind":"drip","probability":2}]}`, `{"faults":[{"kind":"error","status":200}]}`, `{`, `{"faults":[{"kind":"drip","for":"soon"}]}`} {
		if status, _, _ := ask(t, s, "POST", "/admin/faults", bad); status != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, status)
		}
	}
	if status, _, _ := ask(t, s, "POST", "/admin/restart", ""); status != http.StatusOK {
		t.Errorf("restart: %d", status)
	}
	for end := time.Now().Add(patience); ; {
		if res, err := do(t.Context(), s, "GET", "/admin/state", ""); err == nil {
			data, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if strings.Contains(string(data), `"lives":2`) {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatal("the server does not restart")
		}
	}
}

// TestProbability: the same seed gives the same faults.
func TestProbability(t *testing.T) {
	var runs [2]string
	for i := range runs {
		s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 11, Faults: []enginemock.Fault{{Kind: enginemock.FaultLimit, Probability: 0.5}}})
		for range 20 {
			status, _, _ := ask(t, s, "POST", "/v1/completions", `{"prompt":[300],"max_tokens":1}`)
			runs[i] += string(rune('0' + status/100))
		}
	}
	if runs[0] != runs[1] || !strings.Contains(runs[0], "4") || !strings.Contains(runs[0], "2") {
		t.Errorf("%v", runs)
	}
}

// TestSlots: llama.cpp reuses the tokens of the slot with the longest common prefix, and reports it.
func TestSlots(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.LlamaCPP, Slots: 2, Seed: 3})
	say := func(p []int, more map[string]any) (cached, slot float64) {
		q := map[string]any{"prompt": p, "n_predict": 4, "temperature": 0, "ignore_eos": true}
		for k, v := range more {
			q[k] = v
		}
		a := post(t, s, "/completion", q)
		return at(t, a, "timings", "cache_n").(float64), at(t, a, "id_slot").(float64)
	}
	one, two := prompt(1, 50), prompt(2, 50)
	if n, slot := say(one, nil); n != 0 || slot != 0 {
		t.Errorf("%v cached in slot %v", n, slot)
	}
	if n, slot := say(two, nil); n != 0 || slot != 1 {
		t.Errorf("%v cached in slot %v", n, slot)
	}
	if n, slot := say(append(append([]int{}, one...), 400, 401), nil); n != 50 || slot != 0 {
		t.Errorf("going on: %v cached in slot %v, want 50 in 0", n, slot)
	}
	if n, _ := say(two, nil); n != 49 {
		t.Errorf("again: %v cached, want all but the last token", n)
	}
	if n, _ := say(two, map[string]any{"cache_prompt": false}); n != 0 {
		t.Errorf("%v cached against the client's word", n)
	}
	if n, slot := say(one[:30], map[string]any{"id_slot": 1}); n != 0 || slot != 1 {
		t.Errorf("pinned: %v cached in slot %v", n, slot)
	}
}

// TestStops: stop strings are cut, stop tokens are reported, in streams as in complete answers.
func TestStops(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	whole := post(t, s, "/v1/completions", map[string]any{"prompt": prompt(1, 20), "max_tokens": 60, "temperature": 0, "ignore_eos": true})
	text := at(t, whole, "choices", 0, "text").(string)
	stop := text[20:26]
	want := text[:strings.Index(text, stop)]
	q := map[string]any{"prompt": prompt(1, 20), "max_tokens": 60, "temperature": 0, "ignore_eos": true, "stop": []string{"\x00never", stop}}
	cut := post(t, s, "/v1/completions", q)
	if got := at(t, cut, "choices", 0, "text"); got != want || at(t, cut, "choices", 0, "stop_reason") != stop || at(t, cut, "choices", 0, "finish_reason") != "stop" {
		t.Errorf("%q, want %q", got, want)
	}
	q["stream"] = true
	_, _, body := ask(t, s, "POST", "/v1/completions", jsonOf(q))
	var got string
	for _, e := range events(t, body) {
		if e != "[DONE]" {
			got += at(t, decoded(t, e), "choices", 0, "text").(string)
		}
	}
	if got != want {
		t.Errorf("streamed: %q, want %q", got, want)
	}
	tokens := post(t, s, "/inference/v1/generate", map[string]any{"token_ids": prompt(1, 20), "sampling_params": map[string]any{"max_tokens": 60, "temperature": 0, "ignore_eos": true}})
	list := at(t, tokens, "choices", 0, "token_ids").([]any)
	end := list[5].(float64)
	a := post(t, s, "/v1/completions", map[string]any{"prompt": prompt(1, 20), "max_tokens": 60, "temperature": 0, "ignore_eos": true, "stop_token_ids": []kv.Token{kv.Token(end)}})
	if at(t, a, "choices", 0, "stop_reason") != end {
		t.Errorf("the stop reason is %v, want %v", at(t, a, "choices", 0, "stop_reason"), end)
	}
}

// TestCumulative: SGLang's stream repeats its earlier output, unless told not to.
func TestCumulative(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.SGLang, Open: opener(t, shape{speedup: 5}), Seed: 3})
	run := func(incremental bool) (last, sum int) {
		_, _, body := ask(t, s, "POST", "/generate", jsonOf(map[string]any{
			"input_ids": prompt(1, 20), "sampling_params": map[string]any{"max_new_tokens": 30, "temperature": 0, "ignore_eos": true}, "stream": true, "incremental_streaming_output": incremental,
		}))
		for _, e := range events(t, body) {
			if e != "[DONE]" {
				last = len(at(t, decoded(t, e), "output_ids").([]any))
				sum += last
			}
		}
		return last, sum
	}
	if last, sum := run(false); last != 30 || sum <= 30 {
		t.Errorf("cumulative: the last piece has %d tokens, all have %d", last, sum)
	}
	if last, sum := run(true); last == 30 || sum != 30 {
		t.Errorf("incremental: the last piece has %d tokens, all have %d", last, sum)
	}
}

// TestBodiesAreBounded: a body above the limit is 413.
func TestBodiesAreBounded(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, MaxBody: 1000, Seed: 3})
	if status, _, _ := ask(t, s, "POST", "/v1/completions", `{"prompt":"`+strings.Repeat("x", 2000)+`"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d", status)
	}
}

// TestKey: the paths which the engine guards need the key.
func TestKey(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, APIKey: "k", Headers: map[string]string{"x-inference-pod": "a"}, Seed: 3})
	for path, want := range map[string]int{"/v1/models": 401, "/health": 200, "/version": 200} {
		if status, h, _ := ask(t, s, "GET", path, ""); status != want || h.Get("x-inference-pod") != "a" {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
	if status, _, _ := ask(t, s, "GET", "/v1/models", "", "Authorization", "Bearer k"); status != http.StatusOK {
		t.Errorf("with the key: %d", status)
	}
}

// FuzzRequests: the server answers every request and survives.
func FuzzRequests(f *testing.F) {
	for _, d := range enginemock.Dialects() {
		for _, r := range append(common(), requestsOf(d)...) {
			if r[0] == "POST" {
				f.Add(r[1], r[2])
			}
		}
	}
	var servers []*enginemock.Server
	for _, d := range enginemock.Dialects() {
		servers = append(servers, start(f, enginemock.Config{Dialect: d, Open: opener(f, shape{context: 512}), Seed: 3}))
	}
	f.Fuzz(func(t *testing.T, path, body string) {
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/admin") || strings.ContainsAny(path, " %#\\\x7f") || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r > '~' }) {
			return
		}
		for _, s := range servers {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			res, err := do(ctx, s, "POST", path, body)
			if err != nil {
				t.Errorf("%s %q: %v", path, body, err)
			} else {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			cancel()
		}
	})
}
