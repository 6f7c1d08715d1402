package routerproxy

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
)

// processors is a plane on which worker 3 makes prompts with features, after worker 2 has failed in the
// middle of one.
type processors struct {
	rpc.Plane
	t     *testing.T
	asked []string
}

func (p *processors) Call(_ context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	p.asked = append(p.asked, method+" "+addr)
	if method == engine.MethodGenerate {
		req := new(engine.Request)
		if err := engine.DecodeRequest(body, req); err != nil {
			return err
		}
		if string(req.Features) != "made by w3" {
			p.t.Errorf("the engine gets %q", req.Features)
		}
		return finish(req, func(d *engine.Delta) error {
			d.Attempt = req.Attempt
			return recv(engine.AppendDelta(nil, d))
		})
	}
	req := new(engine.PreprocessRequest)
	if err := engine.DecodePreprocessRequest(body, req); err != nil {
		return err
	}
	if !req.Features {
		return fault.New(fault.Internal, "the request asks for no features")
	}
	made := &engine.Preprocessed{Attempt: req.Attempt, Tokens: []kv.Token{1, 2}, Media: []kv.Media{{Hash: 3, Start: 0, End: 1}}, Features: []byte("made by " + addr)}
	frames := 0
	return made.SendFrames(func(frame []byte) error {
		if frames++; addr == "w2" && frames == 2 {
			return fault.New(fault.Unavailable, "the connection broke")
		}
		return recv(frame)
	})
}

// TestFeatures: features come complete from a worker that makes them, and go to one that accepts them.
func TestFeatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane, registry := &processors{t: t}, servetest.NewRegistry()
		b := &book{pick: others(3), held: map[string]bool{}}
		var served []engine.Card
		workers := newCatalog(registry)
		r, err := New(Config{}, Deps{
			Router: b, Plane: plane, Catalog: workers, Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler),
			Serve: func(ctx context.Context, e engine.Engine) error {
				served = append(served, e.Card())
				<-ctx.Done()
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for id := kv.WorkerID(1); id <= 3; id++ {
			card := servetest.ModelCard("m")
			card.Preprocess, card.Features = true, id > 1
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			registry.Set(disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: fmt.Sprint("w", id), Meta: meta})
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- runWith(ctx, workers, r) }()
		synctest.Wait()
		if len(served) == 0 || !served[len(served)-1].Features {
			t.Fatal("the relay does not say that its engines take features")
		}
		e := r.NewEngine(served[len(served)-1], nil)
		go func() { ran <- e.Run(ctx) }()
		for range 3 { // the order of the workers does not matter
			p, err := e.(engine.Preprocessor).Preprocess(ctx, &engine.PreprocessRequest{ID: "p", Attempt: 1, Chat: []byte("{}"), Features: true})
			if err != nil || string(p.Features) != "made by w3" || len(p.Tokens) != 2 {
				t.Fatalf("%v, %v", p, err)
			}
		}
		req := request(1)
		req.Prompt, req.Media, req.Features = []kv.Token{1, 2}, []kv.Media{{Hash: 3, Start: 0, End: 1}}, []byte("made by w3")
		if err := e.Generate(ctx, req, func(*engine.Delta) error { return nil }); err != nil {
			t.Error(err)
		}
		all := strings.Join(plane.asked, ", ")
		if strings.Contains(all, "w1") || !slices.Contains(plane.asked, "generate w2") || !slices.Contains(plane.asked, "preprocess w2") {
			t.Errorf("asked: %s", all)
		}
		stop()
		for range 2 {
			if err := <-ran; err != nil {
				t.Error(err)
			}
		}
	})
}
