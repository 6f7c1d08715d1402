package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
)

// eyes is a scripted media resolver that counts what it lends.
type eyes struct {
	answer *engine.Preprocessed
	err    error
	made   int
	lent   int
	most   int
}

func (e *eyes) Preprocess(context.Context, *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	e.made++
	return e.answer, e.err
}

func (e *eyes) Attach(_ context.Context, objects []media.Object) ([]media.Object, func()) {
	e.lent++
	e.most++
	with := slices.Clone(objects)
	for i := range with {
		with[i].Tensor = media.Tensor{Shape: []int{1}, Place: fmt.Sprint("segment", i)}
	}
	return with, func() { e.lent-- }
}

// TestAttach: media data for the engines is lent to a request once, for all its workers, until it ends.
func TestAttach(t *testing.T) {
	object := media.Object{Kind: media.Image, Key: media.Key{Hash: 7}, Source: "http://a/1"}
	dies := fault.New(fault.Unavailable, "the connection broke")
	full := errors.New("full")
	for name, c := range map[string]struct {
		one, sink error // of the first worker, and of the caller
		want      error
		tries     int
		objects   []media.Object
		lent      int
	}{
		"answered": {nil, nil, nil, 1, []media.Object{object}, 1},
		"moved":    {dies, nil, nil, 2, []media.Object{object}, 1},
		"refused":  {fault.New(fault.Invalid, "no"), nil, fault.New(fault.Invalid, "no"), 1, []media.Object{object}, 1},
		"gone":     {nil, full, full, 1, []media.Object{object}, 1},
		"a text":   {nil, nil, nil, 1, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			sight := &eyes{}
			tries := 0
			r := newRig(t, Config{}, &book{pick: others(2)}, func(_ context.Context, addr string, req *engine.Request, send func(*engine.Delta) error) error {
				tries++
				if len(req.Objects) != len(c.objects) || len(req.Objects) > 0 && (req.Objects[0].Tensor.Place != "segment0" || req.Objects[0].Source != object.Source) || sight.lent != c.lent {
					t.Errorf("the worker got %+v, %d are lent", req.Objects, sight.lent)
				}
				if addr == "w1" && c.one != nil {
					return c.one
				}
				return finish(req, send)
			})
			r.engine = r.NewEngine(servetest.ModelCard("m"), sight)
			req := request(1)
			if req.Objects = c.objects; c.objects != nil {
				req.Media = []kv.Media{{Hash: 7, Start: 0, End: 1}}
			}
			err := r.run(func(ctx context.Context) error {
				return r.engine.Generate(ctx, req, func(*engine.Delta) error { return c.sink })
			})
			if fault.CodeOf(err) != fault.CodeOf(c.want) || (err == nil) != (c.want == nil) || tries != c.tries {
				t.Errorf("%v after %d tries, want %v after %d", err, tries, c.want, c.tries)
			}
			if sight.lent != 0 || sight.most != c.lent {
				t.Errorf("%d are still lent, %d were", sight.lent, sight.most)
			}
			if len(c.objects) > 0 && !c.objects[0].Tensor.IsZero() {
				t.Error("the caller's objects are changed")
			}
		})
	}
}

// TestLooks: prompts of conversations with media are made here, and others where a worker makes them.
func TestLooks(t *testing.T) {
	shown := &engine.Preprocessed{Tokens: []kv.Token{1}, TextOnly: media.OverLimit, TextOnlyError: fault.InvalidParam("a", "b")}
	for name, c := range map[string]struct {
		workers bool // make prompts
		shows   bool
		err     error
		made    int
	}{
		"shows":             {true, true, nil, 1},
		"refused":           {true, true, fault.InvalidParam("messages[0].content[0]", "no"), 1},
		"a text of workers": {true, false, nil, 0},
		"a text made here":  {false, false, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			sight := &eyes{answer: shown, err: c.err}
			r := newRig(t, Config{}, &book{pick: others(1)}, nil)
			card := servetest.ModelCard("m")
			card.Preprocess = c.workers
			r.engine = r.NewEngine(card, sight)
			maker, ok := r.engine.(engine.Preprocessor)
			if !ok {
				t.Fatal("it makes no prompts")
			}
			err := r.run(func(ctx context.Context) error {
				_, err := maker.Preprocess(ctx, &engine.PreprocessRequest{Attempt: 1, Chat: []byte("{}"), ResolveMedia: c.shows})
				return err
			})
			if sight.made != c.made {
				t.Errorf("%d prompts were made here", sight.made)
			}
			if c.made > 0 && !errors.Is(err, c.err) || c.made == 0 && fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSights: a model's card says that media are resolved here if they can be, whatever the workers'
// cards say.
func TestSights(t *testing.T) {
	for name, c := range map[string]struct {
		sees, can bool
		asked     int
	}{
		"sees":           {true, true, 1},
		"no worker can":  {true, false, 1},
		"texts only":     {false, true, 0},
		"and cannot see": {false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				r := newRig(t, Config{}, &book{pick: others(1)}, nil)
				r.deps.MediaResolver = func(card engine.Card) MediaResolver {
					if asked++; card.ResolvesMedia {
						t.Error("a worker's word is believed")
					}
					if !c.can {
						return nil
					}
					return &eyes{}
				}
				served := make(chan engine.Card, 1)
				r.deps.Serve = func(ctx context.Context, e engine.Engine) error {
					served <- e.Card()
					<-ctx.Done()
					return nil
				}
				ctx, stop := context.WithCancel(t.Context())
				ran := make(chan error, 1)
				go func() { ran <- r.Run(ctx) }()
				card := servetest.ModelCard("m")
				card.ResolvesMedia = true
				if c.sees {
					card.Media = []string{"image"}
				}
				meta, err := engine.EncodeCard(card)
				if err != nil {
					t.Fatal(err)
				}
				r.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: "w", Meta: meta})
				synctest.Wait()
				if got := <-served; got.ResolvesMedia != (c.sees && c.can) || asked != c.asked {
					t.Errorf("served as %+v, asked %d times", got, asked)
				}
				stop()
				if err := <-ran; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
