package llamacpp

import (
	"context"
	"net/http"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
)

// loadScraper returns a function that reads the engine's load from its metrics, else from its slots; nil if
// neither is on.
func (p *serverProbe) loadScraper(ctx context.Context) func(context.Context, *remote.LoadGauges) error {
	for _, read := range []func(context.Context, *remote.LoadGauges) error{p.scrapeMetrics, p.scrapeSlots} {
		var g remote.LoadGauges
		if p.native && read(ctx, &g) == nil {
			return read
		}
	}
	p.AddWarning(engine.WarnNoMetrics, "start llama.cpp's server with --metrics",
		"the engine tells its load neither by /metrics nor by /slots: only the requests of this worker count")
	return nil
}

func (p *serverProbe) scrapeMetrics(ctx context.Context, g *remote.LoadGauges) error {
	return p.Client.FetchMetrics(ctx, "/metrics", func(text []byte) { p.parseMetrics(text, g) })
}

// parseMetrics reads the relevant series.
func (p *serverProbe) parseMetrics(text []byte, g *remote.LoadGauges) {
	remote.EachSample(text, "llamacpp:", func(m remote.MetricSample) {
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

func (p *serverProbe) scrapeSlots(ctx context.Context, g *remote.LoadGauges) error {
	var slots []struct {
		Processing bool `json:"is_processing"`
	}
	if err := p.Client.DoJSON(ctx, &remote.Call{Method: http.MethodGet, Path: "/slots"}, &slots); err != nil {
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
