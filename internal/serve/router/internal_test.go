package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
)

// serving returns a router that knows one worker of the model m.
func serving(t *testing.T, cfg Config, metrics *obs.Metrics) *Router {
	t.Helper()
	r, err := New(cfg, Planes{}, nil, metrics, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances([]disco.Instance{instance(t, "m", 4)})
	return r
}

// setInstances applies the snapshot of a registry with the given instances.
func (r *Router) setInstances(ins []disco.Instance) {
	r.mu.Lock()
	s := r.mu.snapshot
	r.mu.Unlock()
	r.applySnapshot(s.Next(catalog.Selection{Namespace: r.cfg.Namespace, Component: r.cfg.Component}, ins, time.Now()))
}

func instance(t *testing.T, model string, blockSize int) disco.Instance {
	t.Helper()
	meta, err := engine.EncodeCard(engine.Card{Name: model, BlockSize: blockSize, Ranks: 1, ContextLength: 100, VocabSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta}
}

// TestBlockSizeChangesMeanwhile: a prompt that was hashed for a pool which no longer exists when the
// lock is taken is hashed again.
func TestBlockSizeChangesMeanwhile(t *testing.T) {
	r := serving(t, Config{}, obs.NewMetrics())
	old, err := r.findPool("m")
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances([]disco.Instance{instance(t, "m", 8)})
	done, _ := r.runWithLock(old, &route.Query{}, func(*modelPool, *route.Query) error {
		t.Error("decided with hashes of the wrong block size")
		return nil
	})
	if done {
		t.Error("the pool that is gone answered")
	}
	d, err := r.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: make([]kv.Token, 20)})
	if err != nil || d.BlockSize != 8 {
		t.Errorf("routed to %+v, %v", d, err)
	}
}

// TestFillingCacheIsFollowed: what is known of how full a cache is does not lag behind one which fills up in a moment.
func TestFillingCacheIsFollowed(t *testing.T) {
	meta, err := engine.EncodeCard(engine.Card{Name: "m", BlockSize: 4, Blocks: 1000, Ranks: 1, ContextLength: 100, VocabSize: 100, KVEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	r := serving(t, Config{}, obs.NewMetrics())
	r.setInstances([]disco.Instance{{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta}})
	p, err := r.findPool("m")
	if err != nil {
		t.Fatal(err)
	}
	w := kv.Worker{ID: 1}
	first := hello(w.ID)
	v, _ := r.cache.acceptRecord(streamPosition{1, 1}, first)
	r.recordCacheUse(first, v)
	for i := range 10 {
		blocks := make([]kv.BlockHash, 100)
		for b := range blocks {
			blocks[b] = kv.BlockHash(1 + 100*i + b)
		}
		rec := &kvfeed.Record{Worker: w, Epoch: 1, First: uint64(i + 2), BlockSize: 4, Events: []kv.Event{{Kind: kv.Stored, Blocks: blocks}}}
		v, ok := r.cache.acceptRecord(streamPosition{1, uint64(i + 2)}, rec)
		if !ok || v.Outcome != kvfeed.Apply {
			t.Fatalf("%+v, %t", v, ok)
		}
		r.recordCacheUse(rec, v)
		full := float64(i+1) / 10
		if got, want := p.router.Rates().WorkerOf(w).EvictedShare(r.now(), 1000), full*(1+full)/2; got < want*0.9 || got > want*1.1 {
			t.Errorf("with %d of 1000 blocks cached a block costs others %.3f, want %.3f", 100*(i+1), got, want)
		}
	}
}

// TestEvictionsAreCounted: evictions which are not recorded at once are not lost, whichever worker sends events next.
func TestEvictionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serving(t, Config{}, obs.NewMetrics())
		a, b := instance(t, "m", 4), instance(t, "m", 4)
		b.ID = 2
		r.setInstances([]disco.Instance{a, b})
		p, err := r.findPool("m")
		if err != nil {
			t.Fatal(err)
		}
		evict := func(at time.Duration, id kv.WorkerID, blocks int) {
			time.Sleep(at - time.Duration(r.now())) // virtual time (synctest): until the time of this eviction
			ev := kv.Event{Kind: kv.Removed, Tier: kv.TierDevice, Seqs: make([]kv.SeqHash, blocks)}
			rec := &kvfeed.Record{Worker: kv.Worker{ID: id}, Epoch: 1, Events: []kv.Event{ev}}
			r.recordCacheUse(rec, kvfeed.FeedVerdict{Outcome: kvfeed.Apply})
		}
		evict(0, 1, 10)
		evict(500*time.Millisecond, 1, 20)
		evict(600*time.Millisecond, 1, 10)
		evict(1500*time.Millisecond, 2, 50)
		evict(1600*time.Millisecond, 1, 5)
		evict(1700*time.Millisecond, 1, 5)
		evict(2700*time.Millisecond, 1, 0)
		for id := range kv.WorkerID(2) {
			if got := p.router.Rates().WorkerOf(kv.Worker{ID: id + 1}).EvictedShare(r.now(), 1000); got < 0.95 || got > 1.05 {
				t.Errorf("worker %d, which evicted as much as the other one: %.3f, want about 1", id+1, got)
			}
		}
	})
}

// TestQueuedPromptsAreReuse: what a prompt shares with one which is queued at a worker counts as held there, unless
// nothing is predicted, the engine caches no prefixes, or the worker predicts its events.
func TestQueuedPromptsAreReuse(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		card engine.Card
		want int
	}{
		{"as usual", Config{}, engine.Card{}, 5},
		{"without predictions", Config{PredictedTTL: new(time.Duration(0))}, engine.Card{}, 0},
		{"no prefix cache", Config{}, engine.Card{NoPrefixCache: true}, 0},
		{"the worker predicts", Config{}, engine.Card{KVPredicted: true}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.card.Name, c.card.BlockSize, c.card.Ranks, c.card.ContextLength, c.card.VocabSize = "m", 4, 1, 100, 100
			meta, err := engine.EncodeCard(c.card)
			if err != nil {
				t.Fatal(err)
			}
			r := serving(t, c.cfg, obs.NewMetrics())
			in := instance(t, "m", 4)
			in.Meta = meta
			r.setInstances([]disco.Instance{in})
			p, err := r.findPool("m")
			if err != nil {
				t.Fatal(err)
			}
			q := route.Query{Key: activeseq.AttemptKey{ID: "a"}, Chain: []kv.SeqHash{1, 2, 3, 4, 5}, PromptTokens: 20}
			if _, err := p.router.Pick(r.now(), &q); err != nil {
				t.Fatal(err)
			}
			q.Key.ID = "b"
			ex, err := p.router.Explain(r.now(), &q)
			if err != nil || len(ex.Candidates) != 1 {
				t.Fatal(ex, err)
			}
			if got := ex.Candidates[0].Overlap[kv.TierDevice]; got != c.want {
				t.Errorf("%d blocks count as held, want %d", got, c.want)
			}
		})
	}
}

// TestLeaksAreCounted: a leaked reservation is counted, whether the upkeep or the next decision finds
// it.
func TestLeaksAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := obs.NewMetrics()
		r := serving(t, Config{ReservationTTL: time.Minute}, metrics)
		for _, id := range []string{"a", "b"} {
			if _, err := r.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: make([]kv.Token, 20)}); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * time.Minute)
		}
		r.runUpkeep()
		r.runUpkeep()
		wantMetric(t, metrics, "penstock_router_reservations_expired_total 2")
	})
}

// TestLostModelsAreBounded: models without workers are kept, but at most [catalog.MaxLost].
func TestLostModelsAreBounded(t *testing.T) {
	r := serving(t, Config{}, obs.NewMetrics())
	for i := range catalog.MaxLost + 10 {
		r.setInstances([]disco.Instance{instance(t, fmt.Sprintf("model %04d", i), 4)})
	}
	if n := len(r.mu.pools); n != catalog.MaxLost+1 {
		t.Errorf("%d models are known, want %d", n, catalog.MaxLost+1)
	}
	if _, err := r.findPool("model 0000"); err != nil {
		t.Errorf("a lost model: %v", err)
	}
	last := fmt.Sprintf("model %04d", catalog.MaxLost+9)
	if _, err := r.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: last, Tokens: make([]kv.Token, 20)}); err != nil {
		t.Errorf("the model that is served: %v", err)
	}
}

// TestRefusedEventsAreCounted: events with another block size than the card's do not change the index,
// and are counted.
func TestRefusedEventsAreCounted(t *testing.T) {
	metrics := obs.NewMetrics()
	r := serving(t, Config{}, metrics)
	sent := kvfeed.Record{Worker: kv.Worker{ID: 1}, Epoch: 1, First: 1, BlockSize: 8, Events: []kv.Event{
		{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: []kv.BlockHash{1, 2}},
	}}
	r.applyMessage(t.Context(), new(kvfeed.Record), bus.Message{Key: "1/0", Data: kvfeed.AppendRecord(nil, &sent)})
	wantMetric(t, metrics, `penstock_index_events_total{kind="stored",outcome="refused"} 1`)
	if n := r.cache.indexStats().Blocks; n != 0 {
		t.Errorf("%d blocks are in the index", n)
	}
}

// TestGenerateIsStrict: a client's request is decoded or refused by field name before a worker sees it.
func TestGenerateIsStrict(t *testing.T) {
	r := serving(t, Config{}, obs.NewMetrics())
	for _, tt := range []struct{ body, param string }{
		{`{"sampling_options":{"temprature":1}}`, "temprature"},
		{`{"sampling_options":{"top_k":5000000000}}`, "top_k"},
		{`{"stop_conditions":{"min_tokens":5000000000}}`, "stop_conditions.min_tokens"},
	} {
		body := generateBody{Model: "m", TokenIDs: []kv.Token{1}}
		if err := json.Unmarshal([]byte(tt.body), &body); err != nil {
			t.Fatal(err)
		}
		_, err := r.engineRequest(&body)
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != tt.param {
			t.Errorf("%s: %v, want it to name %s", tt.body, err, tt.param)
		}
	}
}

func wantMetric(t *testing.T, metrics *obs.Metrics, line string) {
	t.Helper()
	rec := httptest.NewRecorder()
	metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if !strings.Contains(rec.Body.String(), line+"\n") {
		t.Errorf("%q is missing", line)
	}
}

// TestDecisionsAreBounded: the oldest request is dropped first, and of one request the first attempts.
func TestDecisionsAreBounded(t *testing.T) {
	var d decisionLog
	d.initialize(3)
	at := time.Unix(0, 0)
	add := func(id string, attempt uint32, err error) {
		d.recordDecision(&route.Request{ID: id, Attempt: attempt, Model: "m"}, &route.Decision{}, "", err, at)
	}
	for i := range 5 {
		add(fmt.Sprint(i), 1, nil)
	}
	if n := len(d.mu.byID); n != 3 {
		t.Errorf("%d requests are remembered, want 3", n)
	}
	for i, want := range []bool{false, false, true, true, true} {
		if _, err := d.findRequest(fmt.Sprint(i)); (err == nil) != want {
			t.Errorf("request %d: %v", i, err)
		}
	}
	for attempt := range uint32(2 * maxAttempts) {
		add("4", attempt, errors.New("no"))
	}
	got, err := d.findRequest("4")
	if err != nil || len(got.Attempts) != maxAttempts || got.Attempts[maxAttempts-1].Attempt != 2*maxAttempts-1 {
		t.Errorf("%d attempts are remembered, %v", len(got.Attempts), err)
	}
	if a := got.Attempts[0]; a.Error != fault.Internal.String() {
		t.Errorf("attempt %+v", a)
	}
}

// TestHostedExperts: a worker whose card names the experts that a request expects is preferred, in
// proportion to its share of them; this does not count as load.
func TestHostedExperts(t *testing.T) {
	r := serving(t, Config{Route: route.Config{Mode: route.KV}}, obs.NewMetrics())
	var list []disco.Instance
	for i, spec := range []string{"3:1", "3:1-2", "3:2@0.5", ""} {
		experts, err := engine.ParseExperts(spec)
		if err != nil {
			t.Fatal(err)
		}
		meta, err := engine.EncodeCard(engine.Card{Name: "m", BlockSize: 4, Ranks: 1, ContextLength: 100, VocabSize: 100, Experts: experts})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, disco.Instance{Kind: disco.KindWorker, ID: kv.WorkerID(i + 1), Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta})
	}
	req := &route.Request{Model: "m", Tokens: make([]kv.Token, 40), Override: route.Override{MoE: &route.MoEQuery{Layer: new(uint32(3)), Experts: []uint32{1, 2}}}}
	for range 2 { // the second time the cards are known
		r.setInstances(list)
		ex, err := r.Explain(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{0.5, 1, 0.25, 0} {
			c := ex.Candidates[i]
			if c.ExpertShare != want || c.Affinity != want || c.Cost != 20-want || c.PrefillTokens != 40 || c.DecodeBlocks != 10 {
				t.Errorf("worker %d: %+v, want a share of %g", i+1, c, want)
			}
		}
		if ex.Decision.Worker.ID != 2 {
			t.Errorf("worker %d is chosen", ex.Decision.Worker.ID)
		}
	}
	list[1].Epoch, list[1].Meta = 2, list[3].Meta // it returns without experts
	r.setInstances(list)
	if ex, err := r.Explain(t.Context(), req); err != nil || ex.Decision.Worker.ID != 1 {
		t.Errorf("worker %d is chosen, %v", ex.Decision.Worker.ID, err)
	}
}

// TestStrictQuery: without fallback a request goes only to a worker that holds a block of it under the
// requested expert.
func TestStrictQuery(t *testing.T) {
	r, err := New(Config{}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances(batching(t, 3, 4))
	hasher, err := kv.NewHasher(4, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]kv.Token, 12)
	labels := make([]kv.MoELabel, 3)
	labels[1] = kv.MoELabel{Has: kv.HasExpert, Layer: 1, Expert: 7}
	for id, of := range map[kv.WorkerID][]kv.MoELabel{1: nil, 2: labels} {
		w := kv.Worker{ID: id}
		rec := kvfeed.Record{Worker: w, Epoch: 1, First: 1, BlockSize: 4, Events: []kv.Event{
			{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: hasher.AppendBlockHashes(nil, tokens, nil), Labels: of},
		}}
		r.applyMessage(t.Context(), new(kvfeed.Record), bus.Message{Key: engine.WorkerKey(w), Data: kvfeed.AppendRecord(nil, &rec)})
	}
	ask := func(id string, layer uint32, mode route.Mode) (route.Decision, error) {
		return r.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: tokens, Override: route.Override{
			Mode: &mode, MoE: &route.MoEQuery{Layer: &layer, Experts: []uint32{7}, Fallback: new(false)},
		}})
	}
	for i, mode := range []route.Mode{route.KV, route.Random, route.RoundRobin, route.LeastLoaded, route.PowerOfTwo} {
		for j := range 5 {
			if d, err := ask(fmt.Sprint(i, "/", j), 1, mode); err != nil || d.Worker.ID != 2 {
				t.Errorf("%s: %+v, %v", mode, d, err)
			}
		}
	}
	if _, err := ask("none", 2, route.KV); fault.CodeOf(err) != fault.Ineligible {
		t.Errorf("for an expert of which there is no block: %v", err)
	}
	for _, p := range r.mu.pools {
		if n := p.active.Len(); n != 25 {
			t.Errorf("%d requests are active, want 25", n)
		}
	}
}

// hello is the first record of a worker's epoch.
func hello(id kv.WorkerID) *kvfeed.Record {
	return &kvfeed.Record{Worker: kv.Worker{ID: id}, Epoch: 1, First: 1, BlockSize: 4, Events: []kv.Event{{Kind: kv.Cleared}}}
}

// TestUnlistedWorkersKeepNoneOut: however many unlisted workers publish events, a listed one is followed.
func TestUnlistedWorkersKeepNoneOut(t *testing.T) {
	r := serving(t, Config{}, obs.NewMetrics())
	for id := range maxSources + 10 {
		r.cache.acceptRecord(streamPosition{}, hello(kv.WorkerID(id+2)))
	}
	if n := len(r.cache.mu.sources); n > maxSources+1 {
		t.Errorf("%d strangers are followed", n)
	}
	if v, ok := r.cache.acceptRecord(streamPosition{}, hello(1)); !ok || v.Outcome != kvfeed.Apply {
		t.Errorf("the worker that discovery knows: %v, %t", v.Outcome, ok)
	}
}

// TestSnapshotOfUnlistedFeeds: feeds in a snapshot without records, of unlisted workers, are left out:
// they would never be dropped.
func TestSnapshotOfUnlistedFeeds(t *testing.T) {
	from, to := serving(t, Config{}, obs.NewMetrics()), serving(t, Config{}, obs.NewMetrics())
	for id := range kv.WorkerID(1000) {
		from.cache.acceptRecord(streamPosition{1, 1}, hello(id+1))
	}
	for id := range kv.WorkerID(1000) {
		if id+1 != 500 {
			delete(from.cache.mu.sources, kv.Worker{ID: id + 1})
		}
	}
	_, data := from.cache.takeSnapshot(0, 0)
	if _, err := to.cache.restoreSnapshot(data); err != nil {
		t.Fatal(err)
	}
	var left []kv.WorkerID
	for _, h := range to.cache.mu.tracker.AppendHealth(nil) {
		left = append(left, h.Worker.ID)
	}
	if !slices.Equal(left, []kv.WorkerID{500}) {
		t.Errorf("feeds of %v are left", left)
	}
}
