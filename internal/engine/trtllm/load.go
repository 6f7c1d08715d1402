package trtllm

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// serverGauges are the values of the engine's metrics.
type serverGauges struct {
	remote.LoadGauges
	blockSize, blocks int // 0 if not reported
}

// newLoadScraper returns a function that reads the engine's load, nil if the engine does not report it:
// Prometheus metrics in newer versions, the statistics of iterations as JSON in others.
func (p *serverProbe) newLoadScraper(ctx context.Context) (func(context.Context, *remote.LoadGauges) error, error) {
	for _, path := range []string{"/prometheus/metrics", "/metrics"} {
		read := func(ctx context.Context) (serverGauges, error) { return p.fetchGauges(ctx, path) }
		g, err := read(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			continue
		}
		p.gauges = g
		return func(ctx context.Context, into *remote.LoadGauges) error {
			g, err := read(ctx)
			*into = g.LoadGauges
			into.Partial = true // between two iterations it reports nothing
			return err
		}, nil
	}
	p.AddWarning(engine.WarnNoMetrics, "set enable_iter_perf_stats, or return_perf_metrics, in the engine's options",
		"the engine tells its load by no metrics: only the requests of this worker count")
	return nil, nil
}

func (p *serverProbe) fetchGauges(ctx context.Context, path string) (serverGauges, error) {
	text, err := p.Client.ReadBody(ctx, &remote.Call{Method: http.MethodGet, Path: path}, 16<<20)
	if err != nil {
		return serverGauges{}, err
	}
	return parseGauges(text)
}

// parseGauges parses either form.
func parseGauges(text []byte) (g serverGauges, err error) {
	if start := bytes.TrimSpace(text); len(start) > 0 && (start[0] == '[' || start[0] == '{') {
		return g, g.parseIterations(text)
	}
	remote.EachSample(text, "trtllm_", g.addSample)
	return g, nil
}

func (g *serverGauges) addSample(m remote.MetricSample) {
	n := int(min(max(m.Value, 0), 1<<40))
	switch string(m.Name) {
	case "trtllm_num_requests_running":
		g.Running = n
	case "trtllm_num_requests_waiting":
		g.Waiting = n
	case "trtllm_kv_cache_utilization":
		g.Usage = min(max(m.Value, 0), 1)
	case "trtllm_kv_cache_tokens_per_block":
		g.blockSize = n
	case "trtllm_kv_cache_max_blocks":
		g.blocks = n
	}
}

// iterationStats is the relevant part of the statistics of an iteration.
type iterationStats struct {
	Number uint64 `json:"iter"`
	Active int    `json:"numActiveRequests"`
	Queued int    `json:"numQueuedRequests"`
	Cache  struct {
		Max       int `json:"maxNumBlocks"`
		Used      int `json:"usedNumBlocks"`
		BlockSize int `json:"tokensPerBlock"`
	} `json:"kvCacheStats"`
}

// parseIterations parses the list of iterations since the last request and uses the last one; the list is
// empty while nothing is computed.
func (g *serverGauges) parseIterations(text []byte) error {
	var list []iterationStats
	if err := json.Unmarshal(text, &list); err != nil || len(list) == 0 {
		return err
	}
	last := list[len(list)-1]
	g.Tokens = last.Number // number of iterations
	g.Running, g.Waiting = max(last.Active, 0), max(last.Queued, 0)
	g.blockSize, g.blocks = max(last.Cache.BlockSize, 0), max(last.Cache.Max, 0)
	if g.blocks > 0 {
		g.Usage = min(max(float64(last.Cache.Used)/float64(g.blocks), 0), 1)
	}
	return nil
}
