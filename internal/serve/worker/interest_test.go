package worker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/servetest"
)

// TestPublishesForRoutersWhichWantEvents: a worker publishes unless all routers of its component say that they
// follow no events. When it pauses it publishes that its cache is unknown; a router which joins later gets the
// whole cache.
func TestPublishesForRoutersWhichWantEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.EventsOnDemand = true
		r.start(r.engine)
		defer r.stop()
		addr := r.addr()
		router := func(id kv.WorkerID, meta []byte) disco.Instance {
			return disco.Instance{Kind: disco.KindRouter, ID: id, Namespace: "penstock", Component: "backend", Meta: meta}
		}
		prompt := 8
		// published returns the events which the worker publishes because of a request with a new prompt.
		published := func() (events []kv.Event) {
			t.Helper()
			before := len(r.records())
			prompt += 8
			if _, err := r.generate(t.Context(), addr, request(prompt)); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second)
			for _, rec := range r.records()[before:] {
				events = append(events, rec.Events...)
			}
			return events
		}
		settle := func(change func()) (events []kv.Event) {
			t.Helper()
			before := len(r.records())
			change()
			<-time.After(10 * time.Second)
			for _, rec := range r.records()[before:] {
				events = append(events, rec.Events...)
			}
			return events
		}
		isCleared := func(events []kv.Event) bool { return len(events) == 1 && events[0].Kind == kv.Cleared }
		isDescription := func(events []kv.Event) bool { return len(events) > 1 && events[0].Kind == kv.Cleared }

		if len(published()) == 0 {
			t.Error("nothing is published although no router is known")
		}
		if got := settle(func() { r.registry.Set(router(1, disco.RouterMeta{KVEvents: false}.Encode())) }); !isCleared(got) {
			t.Errorf("the end of interest publishes %+v", got)
		}
		if got := published(); len(got) > 0 {
			t.Errorf("%+v is published for nobody", got)
		}
		if got := settle(func() { r.registry.Set(router(2, nil)) }); !isDescription(got) {
			t.Errorf("a router of an earlier build gets %+v", got)
		}
		if len(published()) == 0 {
			t.Error("nothing is published for a router of an earlier build")
		}
		if got := settle(func() { r.registry.Set(router(2, disco.RouterMeta{KVEvents: false}.Encode())) }); !isCleared(got) {
			t.Errorf("the end of interest publishes %+v", got)
		}
		if got := settle(func() {
			if err := r.bus.Publish(t.Context(), bus.KVResyncTopic("penstock"), "7/0", nil); err != nil {
				t.Fatal(err)
			}
		}); !isDescription(got) {
			t.Errorf("a router which asks gets %+v", got)
		}
		if len(published()) == 0 {
			t.Error("nothing is published after a router asked")
		}
		if got := settle(func() { r.registry.Delete(router(1, nil)) }); !isCleared(got) {
			t.Errorf("a change of the routers publishes %+v", got)
		}
		if got := settle(func() { r.registry.Delete(router(2, nil)) }); !isDescription(got) {
			t.Errorf("without routers %+v is published", got)
		}
		r.checkFeed(r.records())
	})
}

// TestAlwaysPublishes: where discovery does not show all routers of the event plane, nothing is left out.
func TestAlwaysPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		addr := r.addr()
		r.registry.Set(disco.Instance{Kind: disco.KindRouter, ID: 1, Namespace: "penstock", Component: "backend", Meta: disco.RouterMeta{KVEvents: false}.Encode()})
		synctest.Wait()
		before := len(r.records())
		if _, err := r.generate(t.Context(), addr, request(8)); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if len(r.records()) == before {
			t.Error("nothing is published")
		}
	})
}
