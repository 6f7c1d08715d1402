package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"penstock/internal/config"
)

// sum returns the sum of the series of a metric whose labels contain all of some texts.
func (s *server) sum(metric string, labels ...string) (total int) {
	s.t.Helper()
	_, data := s.do(http.MethodGet, "/metrics", nil)
next:
	for line := range strings.Lines(string(data)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, rest, _ := strings.Cut(series, "{")
		if name != metric {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(rest, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		total += int(v)
	}
	return total
}

// longRequests are greedy requests of several lengths, of which no two begin alike.
func longRequests(seed int) (requests []map[string]any) {
	for i, repeat := range []int{1, 2, 1} {
		prompt := fmt.Sprintf("Story %d of %d. ", i, seed) + strings.Repeat(longPrompt(100*seed+i), repeat)
		r := chat(prompt, 8)
		r["ignore_eos"] = true
		requests = append(requests, r)
	}
	return requests
}

const blockTokens = 16

// decodeMetrics are what decode workers count: their requests by where the prompts were computed, and tokens.
type decodeMetrics struct{ remote, local, computed, received int }

func (s *server) decodeMetrics(labels ...string) decodeMetrics {
	s.t.Helper()
	return decodeMetrics{
		s.sum("penstock_prefill_remote_total", labels...), s.sum("penstock_prefill_local_total", labels...),
		s.sum("penstock_worker_computed_prompt_tokens_total", labels...), s.sum("penstock_prefill_bytes_total", append(labels, `side="received"`)...),
	}
}

// TestPrefillInOneProcess: up with prefill workers gives the answers of one worker, and they compute the prompts: a
// decode worker computes at most a block of each.
func TestPrefillInOneProcess(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"tiny", "sim"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			requests := longRequests(1)
			for _, r := range requests {
				r["model"] = "penstock-" + engine
			}
			want := start(t, "engine="+engine, "workers=1").askAll(requests)
			s := start(t, "engine="+engine, "workers=2", "prefill-workers=1", "disagg-policy=always")
			expectTexts(t, "with a prefill worker", want, s.askAll(requests))
			var of decodeMetrics
			for _, id := range []string{"1", "2"} {
				m := s.decodeMetrics(fmt.Sprintf(`worker=%q`, id))
				of.remote, of.local, of.computed, of.received = of.remote+m.remote, of.local+m.local, of.computed+m.computed, of.received+m.received
			}
			if n := len(requests); of.remote != n || of.local != 0 || of.computed > n*blockTokens || of.computed < n || of.received == 0 {
				t.Errorf("the decode workers say %+v", of)
			}
			if sent := s.sum("penstock_prefill_bytes_total", `worker="3"`, `side="sent"`); sent != of.received {
				t.Errorf("%d bytes were sent and %d received", sent, of.received)
			}
			if n := s.sum("penstock_worker_computed_prompt_tokens_total", `worker="3"`); n < 600 {
				t.Errorf("the prefill worker computed %d tokens", n)
			}
		})
	}
}

// TestPrefillProcesses: workers which are processes of their own exchange blocks, with NATS and its queue and without,
// also of a prompt with a picture. Prefill workers leave and join: without one a decode worker computes prompts itself.
func TestPrefillProcesses(t *testing.T) {
	t.Parallel()
	// The picture is not in the last block, which the decode worker computes itself.
	pictures := []map[string]any{showing(8, shown("image", dataURI("image/png", pngOf(t, picture(1, 84, 112)))), said(longPrompt(3)))}
	alone := start(t, "workers=1")
	wantPictures := alone.askAll(pictures)
	var want [3][]string
	for i := range want {
		want[i] = alone.askAll(longRequests(10 + i))
	}
	for _, discovery := range []string{"nats", "file"} {
		t.Run(discovery, func(t *testing.T) {
			t.Parallel()
			var f *process
			settings := []string{"http-addr=127.0.0.1:0"}
			if discovery == "nats" {
				f = launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
				settings = append(settings, "nats="+f.started.NATS)
			} else {
				dir := []string{"discovery=file", "discovery-dir=" + t.TempDir()}
				f = launch(t, config.Frontend, dir...)
				settings = append(settings, dir...)
			}
			decode := launch(t, config.Worker, append(settings, "role=decode", "disagg-policy=always")...)
			prefill := launch(t, config.Worker, append(settings, "role=prefill")...)
			f.serves("penstock-tiny", 1)
			decode.knowsPrefillers(1)

			expectTexts(t, "with a prefill worker", want[0], f.askAll(longRequests(10)))
			expectTexts(t, "with a prefill worker and pictures", wantPictures, f.askAll(pictures))
			if m := decode.decodeMetrics(); m.remote != 4 || m.local != 0 || m.computed > 4*blockTokens {
				t.Errorf("the decode worker says %+v\n%s", m, decode.log)
			}
			if n := decode.count(encodedJobs); n != 0 {
				t.Errorf("the decode worker encoded %d objects", n)
			}

			if err := prefill.stop(); err != nil {
				t.Error(err)
			}
			decode.knowsPrefillers(0)
			expectTexts(t, "without a prefill worker", want[1], f.askAll(longRequests(11)))
			if m := decode.decodeMetrics(); m.remote != 4 || decode.sum("penstock_prefill_local_total", `reason="there_are_no_prefill_workers"`) != 3 {
				t.Errorf("the decode worker says %+v", m)
			}

			again := launch(t, config.Worker, append(settings, "role=prefill")...)
			decode.knowsPrefillers(1)
			expectTexts(t, "with another prefill worker", want[2], f.askAll(longRequests(12)))
			if m := decode.decodeMetrics(); m.remote != 7 || m.local != 3 {
				t.Errorf("the decode worker says %+v\n%s\n%s", m, decode.log, again.log)
			}
		})
	}
}

// knowsPrefillers waits until a decode worker knows so many prefill workers.
func (s *server) knowsPrefillers(n int) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d prefill workers", n), func() bool { return s.sum("penstock_prefill_workers") == n })
}
