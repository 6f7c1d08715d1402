package sglang

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// loadScraper reads the engine's load of a rank.
type loadScraper struct {
	client   *remote.Client
	rank     int // -1 means all
	adapters *atomic.Pointer[[]string]
}

// newLoadScraper returns a function that reads the engine's load, nil if the engine does not report it.
func (p *serverProbe) newLoadScraper(ctx context.Context) (func(context.Context, *remote.LoadGauges) error, error) {
	s := &loadScraper{client: p.Client, rank: p.Config.Spec.Rank, adapters: &p.currentAdapters}
	var g remote.LoadGauges
	err := s.scrapeLoads(ctx, &g)
	switch {
	case err == nil:
		return s.scrapeLoads, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case p.server.EnableMetrics:
		return s.scrapeMetrics, nil
	}
	p.AddWarning(engine.WarnNoMetrics, "start SGLang with --enable-metrics",
		"the engine tells its load neither by /v1/loads nor by /metrics: only the requests of this worker count")
	return nil, nil
}

// scrapeLoads reads the load of each rank from newer versions.
func (s *loadScraper) scrapeLoads(ctx context.Context, g *remote.LoadGauges) error {
	var answer struct {
		Loads []struct {
			Rank    int     `json:"dp_rank"`
			Running int     `json:"num_running_reqs"`
			Waiting int     `json:"num_waiting_reqs"`
			Usage   float64 `json:"token_usage"`
		} `json:"loads"`
	}
	if err := s.client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/v1/loads", Query: "include=core"}, &answer); err != nil {
		return err
	}
	for _, l := range answer.Loads {
		if s.rank >= 0 && l.Rank != s.rank {
			continue
		}
		g.Running += max(l.Running, 0)
		g.Waiting += max(l.Waiting, 0)
		g.Usage = max(g.Usage, min(l.Usage, 1))
	}
	g.Partial, g.Adapters = true, *s.adapters.Load() // because of chunked prefill
	return nil
}

func (s *loadScraper) scrapeMetrics(ctx context.Context, g *remote.LoadGauges) error {
	return s.client.FetchMetrics(ctx, "/metrics", func(text []byte) { s.parseMetrics(text, g) })
}

// parseMetrics reads the relevant series. Each exists once for every tensor-parallel rank, with equal values.
func (s *loadScraper) parseMetrics(text []byte, g *remote.LoadGauges) {
	rank := strconv.Itoa(s.rank)
	remote.EachSample(text, "sglang:", func(m remote.MetricSample) {
		if label := m.LabelValue("dp_rank"); s.rank >= 0 && len(label) > 0 && string(label) != rank {
			return
		}
		switch string(m.Name) {
		case "sglang:num_running_reqs":
			g.Running = max(g.Running, int(min(m.Value, 1<<30)))
		case "sglang:num_queue_reqs":
			g.Waiting = max(g.Waiting, int(min(m.Value, 1<<30)))
		case "sglang:prompt_tokens_total", "sglang:generation_tokens_total":
			g.Tokens += uint64(max(m.Value, 0))
		case "sglang:token_usage":
			g.Usage = max(g.Usage, min(m.Value, 1))
		}
	})
	g.Partial, g.Adapters = true, *s.adapters.Load()
}
