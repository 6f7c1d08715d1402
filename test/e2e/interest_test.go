package e2e

import (
	"net/http"
	"strings"
	"testing"

	"penstock/internal/config"
)

// TestWorkersPublishOnDemand: where no router follows cache events, workers publish none. A router which joins and
// follows them gets the whole cache of every worker.
func TestWorkersPublishOnDemand(t *testing.T) {
	for _, setting := range []string{"kv-overlap-score-weight=0", "no-kv-events=true", "router-mode=round-robin"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			front := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", setting)
			nats := "nats=" + front.started.NATS
			w := launch(t, config.Worker, nats, "engine=sim", "sim-speedup=100", "http-addr=127.0.0.1:0", "worker-id=7")
			front.serves(simulated, 1)
			const publishing, records = `penstock_worker_kv_publishing{worker="7"}`, `penstock_worker_kv_records_total{worker="7"}`
			w.eventually("the worker publishes nothing", func() bool { return w.metric(publishing) == "0" })
			before := w.metric(records)
			var blocks int
			for i := range 3 {
				blocks += (front.complete("/v1/chat/completions", chatOf(simulated, longPrompt(i), 4)).prompt - 1) / 16
			}
			// The events of the first two prompts would have been published before the third one was answered.
			if after := w.metric(records); after != before {
				t.Errorf("%s records before three requests, %s after", before, after)
			}

			joined := launch(t, config.Frontend, nats)
			joined.serves(simulated, 1)
			joined.eventually("the router has the whole cache", func() bool {
				_, dump := joined.do(http.MethodGet, "/v1/router/index/dump", nil)
				return strings.Count(string(dump), "\n") >= blocks/2 // the prompts share their first blocks
			})
			if got := w.metric(publishing); got != "1" {
				t.Errorf("%s is %s with a router which follows events", publishing, got)
			}
			// Other questions than before: their events arrive one by one.
			front.complete("/v1/chat/completions", chatOf(simulated, longPrompt(9), 4))
			joined.eventually("the new prompt is known", func() bool {
				question := chatOf(simulated, longPrompt(9), 4)
				_, data := joined.do(http.MethodPost, "/v1/router/explain", question)
				return strings.Contains(string(data), `"device":`) && !strings.Contains(string(data), `"device":0`)
			})
		})
	}
}
