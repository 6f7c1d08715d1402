package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestCachedLate: a proxy follows the contract about cached tokens whatever its workers do: it reports
// the first worker's number when that worker reports it.
func TestCachedLate(t *testing.T) {
	const unknown = engine.CachedUnknown
	first := func(cached int) engine.Delta { return engine.Delta{Tokens: whole[:1], Cached: cached} }
	rest := func(cached int) engine.Delta {
		return engine.Delta{Pos: 1, Tokens: whole[1:], Cached: cached, Finish: engine.FinishLength}
	}
	for _, tt := range []struct {
		name  string
		one   []engine.Delta // of the first worker, which then fails
		two   []engine.Delta // of the second, if it is needed
		want  int
		heard string // by the router
	}{
		{"at once", []engine.Delta{first(1), rest(0)}, nil, 1, "[513:1]"},
		{"late", []engine.Delta{first(unknown), rest(1)}, nil, 1, "[513:-1 513:1]"},
		{"never", []engine.Delta{first(unknown), rest(unknown)}, nil, unknown, "[513:-1]"},
		{"moved, known", []engine.Delta{first(1)}, []engine.Delta{rest(0)}, 1, "[513:1 514:0]"},
		{"moved, known late", []engine.Delta{first(unknown)}, []engine.Delta{rest(1)}, unknown, "[513:-1 514:1]"},
		{"moved to a late one", []engine.Delta{first(1)}, []engine.Delta{{Pos: 1, Tokens: whole[1:2], Cached: unknown}, {Pos: 2, Tokens: whole[2:], Cached: 1, Finish: engine.FinishLength}}, 1, "[513:1 514:-1 514:1]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &book{pick: others(2)}
			r := newRig(t, Config{}, b, func(_ context.Context, addr string, _ *engine.Request, send func(*engine.Delta) error) error {
				deltas, err := tt.one, send(&engine.Delta{Accepted: true})
				if addr == "w2" {
					deltas = tt.two
				}
				for _, d := range deltas {
					err = errors.Join(err, send(&d))
				}
				return errors.Join(err, fault.New(fault.Unavailable, "the connection broke"))
			})
			req := request(3)
			record := enginetest.NewRecorder(req)
			if err := r.run(func(ctx context.Context) error { return r.engine.Generate(ctx, req, record.Sink) }); err != nil {
				t.Fatal(err)
			}
			if err := record.Complete(); err != nil || record.Choices[0].Cached != tt.want {
				t.Errorf("%d cached, want %d (%v)", record.Choices[0].Cached, tt.want, err)
			}
			if heard := fmt.Sprint(b.cached); heard != tt.heard {
				t.Errorf("the router heard %s, want %s", heard, tt.heard)
			}
		})
	}
}
