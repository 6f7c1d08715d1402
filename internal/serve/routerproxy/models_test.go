package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
)

// TestAdapters: a proxy lists the adapters of all its workers, continues to serve when they change, and
// passes on which adapter a request is for.
func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		var asked []string
		b.pick = func(req *route.Request) (route.Decision, error) {
			asked = append(asked, req.Model+" "+req.Salt.LoRA)
			return decision(1), nil
		}
		r := newRig(t, Config{}, b, func(_ context.Context, _ string, req *engine.Request, send func(*engine.Delta) error) error {
			asked = append(asked, req.Model)
			return finish(req, send)
		})
		set := func(id kv.WorkerID, adapters ...string) {
			card := servetest.ModelCard("m")
			card.Adapters = adapters
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			r.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: "w", Meta: meta})
			synctest.Wait()
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 2)
		go func() { ran <- r.Run(ctx) }()
		set(1, "law")
		var lists []string
		watcher := r.engine.(engine.AdapterWatcher)
		go func() { ran <- watcher.WatchAdapters(ctx, func(a []string) { lists = append(lists, fmt.Sprint(a)) }) }()
		synctest.Wait()
		set(2, "law", "med")
		set(1)
		req := request(1)
		req.Model, req.Salt.LoRA = "med", "med"
		if _, err := r.generate(req); err != nil {
			t.Error(err)
		}
		stop()
		if err := errors.Join(<-ran, <-ran); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(lists, r.served, asked), "[[law] [law med] [law med]] [begin m 1048576 end m 1048576] [med med med]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestMiscounts: a proxy lists the kinds of media that any of its workers counts differently, and
// continues to serve when they change.
func TestMiscounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, &book{}, nil)
		set := func(id kv.WorkerID, kinds ...string) {
			card := servetest.ModelCard("m")
			card.MiscountedMedia = kinds
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			r.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: "w", Meta: meta})
			synctest.Wait()
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 2)
		go func() { ran <- r.Run(ctx) }()
		set(1, "video")
		var lists []string
		watcher := r.engine.(engine.MediaCountWatcher)
		go func() {
			ran <- watcher.WatchMediaCounts(ctx, func(k []string) { lists = append(lists, fmt.Sprint(k)) })
		}()
		synctest.Wait()
		set(2, "audio", "video")
		set(1)
		set(2)
		stop()
		if err := errors.Join(<-ran, <-ran); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(lists, r.served), "[[video] [audio video] [audio video] []] [begin m 1048576 end m 1048576]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// TestWarnings: the proxy passes on the warnings of the model's workers, but not that one of them is
// unreachable.
func TestWarnings(t *testing.T) {
	b := &book{warnings: map[kv.WorkerID][]engine.Warning{
		1: {{Code: engine.WarnNoEvents, Detail: "none come", Remedy: "turn them on"}, {Code: engine.WarnUnreachable}},
		2: {{Code: engine.WarnBlockSize}},
	}}
	r := newRig(t, Config{}, b, nil)
	r.list(t, servetest.ModelCard("m"))
	got := r.engine.(engine.WarningSource).Warnings()
	if want := (engine.Warning{Code: engine.WarnNoEvents, Detail: "worker 1 behind the router: none come", Remedy: "turn them on"}); len(got) != 1 || got[0] != want {
		t.Errorf("%+v", got)
	}
	// If no worker can take a request the proxy is unreachable too, so that frontends use another.
	b.silent = true
	got = r.engine.(engine.WarningSource).Warnings()
	if len(got) != 2 || got[0].Code != engine.WarnUnreachable || got[0].Detail != "behind the router: none of 1 workers can take a request (1 not answering)" {
		t.Errorf("%+v", got)
	}
}

// TestNoReuse: a proxy reuses nothing only if none of its workers does.
func TestNoReuse(t *testing.T) {
	for _, c := range []struct{ first, second, want bool }{{true, false, false}, {false, true, false}, {true, true, true}} {
		first, second := engine.Card{NoPrefixCache: c.first}, engine.Card{NoPrefixCache: c.second}
		m := &catalog.Model{Card: first, Workers: []*catalog.Worker{{Card: &first}, {Card: &second}}}
		// Workers which take no features do not count.
		a, b := engine.Card{Features: true, Fetches: c.first}, engine.Card{Features: true, Fetches: c.second}
		for _, workers := range [][]*catalog.Worker{{{Card: &a}, {Card: &b}}, {{Card: &a}, {Card: &engine.Card{}}, {Card: &b}}} {
			if got := unionCard(&catalog.Model{Card: a, Workers: workers}).Fetches; got != c.want {
				t.Errorf("workers %v and %v fetch: %v", c.first, c.second, got)
			}
		}
		if got := unionCard(m).NoPrefixCache; got != c.want {
			t.Errorf("workers %v and %v: %v", c.first, c.second, got)
		}
	}
}

// TestAbilitiesOfOneWorker: the card of a proxy has nothing which belongs to one of its workers, so that the model is
// served on when that one ends.
func TestAbilitiesOfOneWorker(t *testing.T) {
	plain := servetest.ModelCard("m")
	own := plain
	own.KVEvents, own.EmbeddingEvents, own.EmbeddingRegion = true, true, "@region-of-worker-1"
	own.Role, own.MaxBatchedTokens, own.Blocks = engine.RoleDecode, 7, 9
	own.Pool = &engine.CardPool{ID: 1, Generation: "0123456789abcdef"}
	own.Experts = []engine.HostedExperts{{Layer: 1}}
	a := cardIdentity(unionCard(&catalog.Model{Card: own, Workers: []*catalog.Worker{{Card: &own}, {Card: &plain}}}))
	b := cardIdentity(unionCard(&catalog.Model{Card: plain, Workers: []*catalog.Worker{{Card: &plain}}}))
	if string(a) != string(b) {
		t.Errorf("%s\nwithout the worker:\n%s", a, b)
	}
}

// TestRestartAfterEnd: a model whose card has changed is served again when its streams have ended: its address is taken
// until then.
func TestRestartAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, &book{}, nil)
		drained := make(chan struct{})
		serve := r.deps.Serve
		r.deps.Serve = func(ctx context.Context, e engine.Engine) error {
			<-ctx.Done()
			if e.Card().ContextLength == 100 {
				<-drained
			}
			return serve(ctx, e)
		}
		set := func(context int) {
			card := servetest.ModelCard("m")
			card.ContextLength = context
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			r.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: uint64(context), Namespace: "penstock", Component: "backend", Addr: "w", Meta: meta})
			synctest.Wait()
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx) }()
		for i, contextLength := range []int{100, 200, 300} {
			set(contextLength)
			if got := r.ModelCount(); got != 1 {
				t.Errorf("card %d: %d are served, want the first", i, got)
			}
		}
		close(drained)
		synctest.Wait()
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if want := []string{"begin m 100", "end m 100", "begin m 300", "end m 300"}; !slices.Equal(r.served, want) {
			t.Errorf("%v, want %v", r.served, want)
		}
	})
}
