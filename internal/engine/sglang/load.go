package sglang

import (
	"bytes"
	"context"
	"strconv"

	"penstock/internal/engine/remote"
)

// scraper reads the engine's load.
type scraper struct {
	client   *remote.Client
	rank     int
	metrics  bool // the server has /metrics
	adapters []string
}

// choose returns how the engine tells its load, nil if it does not.
func (s *scraper) choose(ctx context.Context) (func(context.Context, *remote.Gauges) error, error) {
	var g remote.Gauges
	if err := s.loads(ctx, &g); err == nil {
		return s.loads, nil
	} else if !remote.NotFound(err) {
		return nil, err
	}
	if s.metrics {
		return s.prometheus, nil
	}
	return nil, nil
}

// loads reads what newer versions say of each rank.
func (s *scraper) loads(ctx context.Context, g *remote.Gauges) error {
	var answer struct {
		Loads []struct {
			Rank    int     `json:"dp_rank"`
			Running int     `json:"num_running_reqs"`
			Waiting int     `json:"num_waiting_reqs"`
			Usage   float64 `json:"token_usage"`
		} `json:"loads"`
	}
	if err := s.client.JSON(ctx, &remote.Call{Method: "GET", Path: "/v1/loads", Query: "include=core"}, &answer); err != nil {
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
	g.Adapters = s.adapters
	return nil
}

// maxMetrics bounds the text of /metrics.
const maxMetrics = 16 << 20

func (s *scraper) prometheus(ctx context.Context, g *remote.Gauges) error {
	text, err := s.client.Read(ctx, &remote.Call{Method: "GET", Path: "/metrics"}, maxMetrics)
	if err != nil {
		return err
	}
	s.read(text, g)
	return nil
}

// read takes the series that matter. Each is there once for every tensor-parallel rank, which
// say the same.
func (s *scraper) read(text []byte, g *remote.Gauges) {
	rank := strconv.Itoa(s.rank)
	remote.Samples(text, "sglang:", func(m remote.Sample) {
		if label := m.Label("dp_rank"); s.rank >= 0 && len(label) > 0 && string(label) != rank {
			return
		}
		switch name := m.Name; {
		case bytes.Equal(name, []byte("sglang:num_running_reqs")):
			g.Running = max(g.Running, int(min(m.Value, 1<<30)))
		case bytes.Equal(name, []byte("sglang:num_queue_reqs")):
			g.Waiting = max(g.Waiting, int(min(m.Value, 1<<30)))
		case bytes.Equal(name, []byte("sglang:token_usage")):
			g.Usage = max(g.Usage, min(m.Value, 1))
		}
	})
	g.Adapters = s.adapters
}
