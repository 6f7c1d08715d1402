package llamacpp

import (
	"context"
	"net/http"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// loadScraper returns a function that reads the engine's load from its metrics, else from its slots; nil if
// neither is on.
func (p *probe) scraper(ctx context.Context) func(context.Context, *remote.Gauges) error {
	for _, read := range []func(context.Context, *remote.Gauges) error{p.metrics, p.slots} {
		var g remote.Gauges
		if p.native && read(ctx, &g) == nil {
			return read
		}
	}
	p.warn(engine.WarnNoMetrics, "start llama.cpp's server with --metrics",
		"the engine tells its load neither by /metrics nor by /slots: only the requests of this worker count")
	return nil
}

func (p *probe) metrics(ctx context.Context, g *remote.Gauges) error {
	return p.client.Scrape(ctx, "/metrics", func(text []byte) { p.read(text, g) })
}

// parseMetrics reads the relevant series.
func (p *probe) read(text []byte, g *remote.Gauges) {
	remote.Samples(text, "llamacpp:", func(m remote.Sample) {
		switch string(m.Name) {
		case "llamacpp:requests_processing":
			g.Running = int(min(max(m.Value, 0), 1<<30))
		case "llamacpp:n_decode_total": // batches computed: a long prompt takes several
			g.Tokens = uint64(max(m.Value, 0))
		case "llamacpp:requests_deferred":
			g.Waiting = int(min(max(m.Value, 0), 1<<30))
		}
	})
	g.Usage = min(float64(g.Running)/float64(p.props.Slots), 1)
}

func (p *probe) slots(ctx context.Context, g *remote.Gauges) error {
	var slots []struct {
		Processing bool `json:"is_processing"`
	}
	if err := p.client.JSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/slots"}, &slots); err != nil {
		return err
	}
	for _, s := range slots {
		if s.Processing {
			g.Running++
		}
	}
	g.Usage = min(float64(g.Running)/float64(p.props.Slots), 1)
	return nil
}
