package router

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// shelf is a cache index with the test's clock, and workers 1 to 3 that publish to it.
type shelf struct {
	t    *testing.T
	c    cacheIndex
	now  kv.Mono
	next map[kv.Worker]uint64
	life map[kv.Worker]uint64
}

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, next: map[kv.Worker]uint64{}, life: map[kv.Worker]uint64{}}
	var cfg Config
	cfg.EnsureDefaults()
	if err := s.c.initialize(&cfg, func() kv.Mono { return s.now }); err != nil {
		t.Fatal(err)
	}
	for id := kv.WorkerID(1); id <= 3; id++ {
		s.start(kv.Worker{ID: id})
	}
	return s
}

// alive sets the existing workers.
func (s *shelf) alive(workers ...kv.Worker) {
	lives := map[kv.Worker]incarnation{}
	for _, w := range workers {
		lives[w] = incarnation{epoch: s.life[w], blockSize: 4, publishes: true}
	}
	s.c.setWorkers(lives)
}

// start starts an epoch of w.
func (s *shelf) start(w kv.Worker) {
	s.life[w]++
	s.next[w] = 1
	s.say(w, kv.Event{Kind: kv.Cleared})
}

// say delivers events of w.
func (s *shelf) say(w kv.Worker, events ...kv.Event) kvfeed.FeedVerdict {
	rec := &kvfeed.Record{Worker: w, Epoch: s.life[w], First: s.next[w], BlockSize: 4, Events: events}
	s.next[w] += uint64(len(events))
	v, ok := s.c.acceptRecord(streamPosition{life: 1, seq: 1}, rec)
	if !ok {
		s.t.Fatalf("the events of %v were not used", w)
	}
	s.check()
	return v
}

// lose drops n events of w.
func (s *shelf) lose(w kv.Worker, n uint64) { s.next[w] += n }

func (s *shelf) check() {
	s.t.Helper()
	if err := s.c.mu.pools.Check(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.c.mu.index.Check(); err != nil {
		s.t.Fatal(err)
	}
}

// chainOf returns the prefixes of blocks named by letters.
func chainOf(name string) (chain []kv.SeqHash) {
	var seq kv.SeqHash
	for i, b := range []byte(name) {
		seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(b))
		chain = append(chain, seq)
	}
	return chain
}

func storedAs(name string) kv.Event {
	ev := kv.Event{Kind: kv.Stored}
	for _, b := range []byte(name) {
		ev.Blocks = append(ev.Blocks, kv.BlockHash(b))
	}
	return ev
}

func removed(name string, from int) kv.Event {
	return kv.Event{Kind: kv.Removed, Seqs: chainOf(name)[from:]}
}

func moved(name string, to kv.PoolState, access ...kv.Worker) kv.Event {
	return kv.Event{Kind: kv.Moved, Seqs: chainOf(name), Move: kv.PoolMove{To: to, HasPool: true, Access: access}}
}

// finds looks a prompt up: by worker, the depth, and the attachable and labelled parts of it.
func (s *shelf) finds(name string, moe *kv.MoEQuery) string {
	return s.findsChain(chainOf(name), moe)
}

func (s *shelf) findsChain(chain []kv.SeqHash, moe *kv.MoEQuery) string {
	var m prefix.Match
	s.c.matchPrefix(&m, chain, moe)
	var all []string
	for _, o := range m.AppendOverlaps(nil) {
		row := fmt.Sprintf("%d.%d:%d", o.Worker.ID, o.Worker.Rank, o.Depth())
		if o.Attachable > 0 {
			row += fmt.Sprintf(" attachable %d", o.Attachable)
		}
		if o.Labelled > 0 {
			row += fmt.Sprintf(" labelled %d", o.Labelled)
		}
		if n := o.Blocks[kv.TierPool]; n > 0 {
			row += fmt.Sprintf(" fetched %d", n)
		}
		all = append(all, row)
	}
	return strings.Join(all, "; ")
}

func (s *shelf) want(name, want string) {
	s.t.Helper()
	if got := s.finds(name, nil); got != want {
		s.t.Errorf("%s is found as %q, want %q", name, got, want)
	}
}

var one, two, three = kv.Worker{ID: 1}, kv.Worker{ID: 2}, kv.Worker{ID: 3}

// TestFindMatchesWithMoEMetadata: blocks count for a query by their own labels, separately from the
// score.
func TestFindMatchesWithMoEMetadata(t *testing.T) {
	s := newShelf(t)
	ev := storedAs("a")
	ev.Labels = []kv.MoELabel{{Has: kv.HasExpert | kv.HasGroup, Layer: 2, Expert: 7, Group: 3}}
	s.say(one, ev)
	s.say(two, storedAs("a"))
	for _, c := range []struct {
		query kv.MoEQuery
		want  string
	}{
		{kv.MoEQuery{Layer: 2, Experts: []uint32{7}, Group: 3, HasGroup: true, Fallback: true}, "1.0:1 labelled 1; 2.0:1"},
		{kv.MoEQuery{Layer: 2, Experts: []uint32{1, 7}}, "1.0:1 labelled 1; 2.0:1"},
		{kv.MoEQuery{Layer: 2}, "1.0:1 labelled 1; 2.0:1"},
		{kv.MoEQuery{Layer: 2, Experts: []uint32{99}, Group: 3, HasGroup: true}, "1.0:1; 2.0:1"},
		{kv.MoEQuery{Layer: 2, Experts: []uint32{7}, Group: 4, HasGroup: true}, "1.0:1; 2.0:1"},
		{kv.MoEQuery{Layer: 3, Experts: []uint32{7}}, "1.0:1; 2.0:1"},
	} {
		if got := s.finds("a", &c.query); got != c.want {
			t.Errorf("%+v finds %q, want %q", c.query, got, c.want)
		}
	}
}

// TestInTransitIsNoReuse: only blocks completely in the pool are reusable, and only for ranks with
// access.
func TestInTransitIsNoReuse(t *testing.T) {
	s := newShelf(t)
	other := kv.Worker{ID: 3, Rank: 1}
	s.say(one, storedAs("abc"))
	s.say(one, moved("abc", kv.InTransit, two, other))
	s.want("abc", "1.0:3")
	s.say(one, moved("ab", kv.Pooled))
	s.want("abc", "1.0:3; 2.0:2 attachable 2 fetched 2; 3.1:2 attachable 2 fetched 2")
	s.say(one, moved("abc", kv.Evicted))
	s.want("abc", "1.0:3")
}

// TestResidencyOutlivesTheCopy: a block in the pool stays when the worker that stored it evicts its own
// copy, clears its cache, restarts, or is removed.
func TestResidencyOutlivesTheCopy(t *testing.T) {
	const pooled = "2.0:3 attachable 3 fetched 3"
	for name, end := range map[string]func(*shelf){
		"removed":   func(s *shelf) { s.say(one, removed("abc", 0)) },
		"cleared":   func(s *shelf) { s.say(one, kv.Event{Kind: kv.Cleared}) },
		"restarted": func(s *shelf) { s.start(one) },
		"died": func(s *shelf) {
			s.alive(one, two)
			s.alive(two)
			s.now += kv.Mono(2 * time.Minute)
			s.c.checkFeeds(nil)
			s.c.tickPools()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			s.say(one, storedAs("abc"))
			s.say(one, moved("abc", kv.Pooled, two))
			s.want("abc", "1.0:3; "+pooled)
			end(s)
			s.check()
			s.want("abc", pooled)
		})
	}
}

// TestDeadWorkersDoNotScore: a removed worker in an access list is in no answer, and is again when it
// returns.
func TestDeadWorkersDoNotScore(t *testing.T) {
	s := newShelf(t)
	s.alive(one, two, three)
	s.say(one, storedAs("ab"))
	s.say(one, moved("ab", kv.Pooled, two, three))
	s.want("ab", "1.0:2; 2.0:2 attachable 2 fetched 2; 3.0:2 attachable 2 fetched 2")
	s.alive(one, three)
	s.want("ab", "1.0:2; 3.0:2 attachable 2 fetched 2")
	s.start(two)
	s.want("ab", "1.0:2; 2.0:2 attachable 2 fetched 2; 3.0:2 attachable 2 fetched 2")
}

// TestOldLifeHeardLate: events of an epoch that discovery has dropped do not count for the next one,
// although they arrived in between.
func TestOldLifeHeardLate(t *testing.T) {
	s := newShelf(t)
	s.alive(one, two)
	s.alive(two)
	s.say(one, kv.Event{Kind: kv.Cleared}, storedAs("ab"))
	s.want("ab", "1.0:2") // it may be new
	s.life[one]++
	s.alive(one, two)
	s.check()
	s.want("ab", "")
}

// TestDescriptionTakesBack: a worker that describes its cache in the middle of its feed takes back the
// pooled blocks that it does not repeat, even if no event is missing.
func TestDescriptionTakesBack(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(one, moved("abc", kv.Pooled, two))
	s.want("abc", "1.0:3; 2.0:3 attachable 3 fetched 3")
	s.say(one, kv.Event{Kind: kv.Cleared}, storedAs("abc"), moved("", kv.LocalGPU), moved("ab", kv.Pooled))
	s.want("abc", "1.0:3; 2.0:2 attachable 2 fetched 2")
}

// TestRepairInPartsIsNoTrust: the first part of repaired events is not counted, in pools either, until
// the rest has arrived, and never if a description replaces the rest.
func TestRepairInPartsIsNoTrust(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	from := s.next[one]
	s.lose(one, 2)
	s.say(one, storedAs("x"))
	to := s.next[one]
	s.next[one] = from
	s.say(one, moved("ab", kv.Pooled, two))
	s.want("abc", "")
	s.next[one] = to
	s.say(one, kv.Event{Kind: kv.Cleared})
	s.want("abc", "")
}

// TestFearedLossIsOne: a worker's pooled block does not return when its feed was suspected to miss
// events, and then does miss some.
func TestFearedLossIsOne(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(two, storedAs("x"))
	s.say(one, moved("abc", kv.Pooled, two))
	s.c.suspectAll()
	s.say(two)
	s.lose(one, 1) // that it is evicted
	s.say(one, kv.Event{Kind: kv.Cleared})
	s.want("abc", "")
}

// TestLostEndOfTheDead: if a worker died and published events did not arrive, the state of its pooled
// blocks is unknown for good.
func TestLostEndOfTheDead(t *testing.T) {
	s := newShelf(t)
	s.alive(one, two)
	s.say(one, storedAs("abc"))
	s.say(one, moved("abc", kv.Pooled, two))
	s.now += kv.Mono(settle)
	s.c.checkFeeds([]feedClaim{{one, kvfeed.PublishReport{Epoch: 1, Next: s.next[one] + 1, At: s.now}}})
	s.want("abc", "1.0:3; 2.0:3 attachable 3 fetched 3")
	s.alive(two)
	s.check()
	s.want("abc", "")
}

// TestStuckInTransit: a worker that dies during a copy leaves nothing that counts, and nothing that
// stays.
func TestStuckInTransit(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("ab"))
	s.say(one, moved("ab", kv.InTransit, two))
	s.alive(one, two)
	s.alive(two)
	s.now += kv.Mono(31 * time.Second)
	s.c.tickPools()
	if st := s.c.poolStats(); st.InTransit != 0 || st.Evicted != 2 || st.Counts.Stuck != 2 {
		t.Errorf("%+v", st)
	}
	s.want("ab", "")
}

// TestLostMoves: while events of a worker are missing, blocks reported only by it are in no answer;
// what it reports again counts again, the rest is dropped.
func TestLostMoves(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(one, moved("abc", kv.Pooled, two))
	s.say(three, storedAs("xy"))
	s.say(three, moved("xy", kv.Pooled))
	s.want("abc", "1.0:3; 2.0:3 attachable 3 fetched 3")
	s.lose(one, 1) // say, that c was evicted
	s.say(one, storedAs("z"))
	s.want("abc", "")
	s.want("xy", "2.0:2 attachable 2 fetched 2; 3.0:2")
	// The worker describes its cache, and then its pooled blocks.
	s.say(one, kv.Event{Kind: kv.Cleared}, storedAs("abcz"))
	s.say(one, moved("ab", kv.Pooled))
	s.want("abc", "1.0:3; 2.0:2 attachable 2 fetched 2")
	s.now += kv.Mono(2 * time.Minute)
	s.c.tickPools()
	if st := s.c.poolStats(); st.Pooled != 4 || st.Counts.Forgotten != 3 {
		t.Errorf("%+v", st)
	}
}

// TestLostWithinADescription: events were lost, and the record that shows it also starts a description
// of the cache.
func TestLostWithinADescription(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"))
	s.say(one, moved("abc", kv.Pooled, two))
	s.lose(one, 1)
	s.say(one, kv.Event{Kind: kv.Cleared}, storedAs("abc"), moved("a", kv.Pooled))
	s.want("abc", "1.0:3; 2.0:1 attachable 1 fetched 1")
}

// TestPooledBeforeStored: a pooled block with an unknown position among prefixes counts once a worker
// stores it; a description shows the position by a store in the pool's tier.
func TestPooledBeforeStored(t *testing.T) {
	s := newShelf(t)
	s.say(one, moved("abc", kv.Pooled, two))
	s.want("abc", "")
	if st := s.c.poolStats(); st.Parked != 3 {
		t.Errorf("%+v", st)
	}
	s.say(three, storedAs("ab"))
	s.want("abc", "2.0:2 attachable 2 fetched 2; 3.0:2")
	inPool := storedAs("abc")
	inPool.Tier = kv.TierPool
	gone := removed("abc", 0)
	gone.Tier = kv.TierPool
	s.say(one, inPool, moved("abc", kv.Pooled), gone)
	s.want("abc", "2.0:3 attachable 3 fetched 3; 3.0:2")
	if st := s.c.poolStats(); st.Parked != 0 {
		t.Errorf("%+v", st)
	}
}

// TestReuseIsNeverMoreThanThePrompt: a block that a worker has, can attach, and has labelled counts
// once.
func TestReuseIsNeverMoreThanThePrompt(t *testing.T) {
	s := newShelf(t)
	ev := storedAs("abc")
	for range 3 {
		ev.Labels = append(ev.Labels, kv.MoELabel{Has: kv.HasExpert, Layer: 1, Expert: 1})
	}
	s.say(one, ev)
	s.say(one, moved("abc", kv.Pooled, one, two))
	if got, want := s.finds("abc", &kv.MoEQuery{Layer: 1}), "1.0:3 attachable 3 labelled 3; 2.0:3 attachable 3 fetched 3"; got != want {
		t.Errorf("found as %q, want %q", got, want)
	}
}

// TestSnapshotKeepsLabelsAndPools: a restored snapshot has every label, every pool and its access list,
// and continues from there: blocks in transit time out, doubted ones can be trusted again, and later
// events find the blocks. The worker that moved them need not exist any more.
func TestSnapshotKeepsLabelsAndPools(t *testing.T) {
	s := newShelf(t)
	ev := storedAs("abc")
	ev.Labels = []kv.MoELabel{{Has: kv.HasExpert, Layer: 2, Expert: 7}, {}, {Has: kv.HasExpert | kv.HasGroup, Layer: 2, Expert: 7, Group: 3}}
	s.say(three, ev)
	s.say(one, storedAs("abcde"))
	s.say(one, moved("abc", kv.Pooled, two, three))
	s.say(one, kv.Event{Kind: kv.Moved, Seqs: chainOf("abcde")[3:], Move: kv.PoolMove{To: kv.InTransit, Pool: 9, HasPool: true}})
	s.alive(one, two, three)
	s.alive(two, three) // one died, and its own copies with it
	query := &kv.MoEQuery{Layer: 2}
	const want = "2.0:3 attachable 3 fetched 3; 3.0:3 attachable 3 labelled 2"
	if got := s.finds("abcde", query); got != want {
		t.Fatalf("found as %q, want %q", got, want)
	}
	_, data := s.c.takeSnapshot(0, 1<<16)

	later := newShelf(t)
	later.now = 12345
	if _, err := later.c.restoreSnapshot(data); err != nil {
		t.Fatal(err)
	}
	later.check()
	if got := later.finds("abcde", query); got != want {
		t.Errorf("found as %q, want %q", got, want)
	}
	if st := later.c.poolStats(); st.InTransit != 2 || st.Pooled != 3 || st.Pools != 2 {
		t.Errorf("%+v", st)
	}
	later.next[three], later.life[three] = s.next[three], s.life[three]
	later.say(three, kv.Event{Kind: kv.Moved, Seqs: chainOf("abc")[2:], Move: kv.PoolMove{To: kv.Evicted}})
	later.want("abcde", "2.0:2 attachable 2 fetched 2; 3.0:3 attachable 2")
	later.now += kv.Mono(31 * time.Second)
	later.c.tickPools()
	if st := later.c.poolStats(); st.InTransit != 0 || st.Counts.Stuck != 2 {
		t.Errorf("%+v", st)
	}
	again := newShelf(t)
	if _, err := again.c.restoreSnapshot(data[:len(data)-1]); err == nil {
		t.Error("half a snapshot was taken")
	}
}

// attached sets the existing workers, of which those in foreign have other memory, as their generations say.
func (s *shelf) attached(generations map[kv.Worker]string, foreign ...kv.Worker) {
	lives := map[kv.Worker]incarnation{}
	for w, g := range generations {
		lives[w] = incarnation{epoch: s.life[w], blockSize: 4, publishes: true, pool: &engine.CardPool{Generation: g}, foreignPool: slices.Contains(foreign, w)}
	}
	s.c.setWorkers(lives)
	s.check()
}

// ofPool0 are the pools of a shelf, and which workers can attach them.
func (s *shelf) ofPool0() string { return fmt.Sprint(s.c.poolRows()) }

// TestForeignPool: what a worker with other memory says of a pool is not believed, whether its card or its events come
// first, and a worker cannot attach what was in other memory with the ID of its pool.
func TestForeignPool(t *testing.T) {
	fill := func(s *shelf) {
		s.say(one, storedAs("abc"), moved("abc", kv.Pooled), moved("", kv.Pooled, one, two))
	}
	other := func(s *shelf) {
		s.say(three, storedAs("xy"), moved("xy", kv.Pooled), moved("", kv.Pooled, three), moved("ab", kv.Evicted))
		unnamed := moved("c", kv.Evicted)
		unnamed.Seqs, unnamed.Move.HasPool = chainOf("abc")[2:], false
		s.say(three, unnamed)
	}
	all := map[kv.Worker]string{one: "m", two: "m", three: "n"}
	const found = "1.0:3 attachable 3; 2.0:3 attachable 3 fetched 3"
	t.Run("card first", func(t *testing.T) {
		s := newShelf(t)
		s.attached(all, three)
		fill(s)
		other(s)
		s.want("abc", found)
		s.want("xy", "3.0:2")
		s.attached(map[kv.Worker]string{one: "m", two: "m"})
		s.want("abc", found)
	})
	t.Run("events first", func(t *testing.T) {
		s := newShelf(t)
		s.attached(map[kv.Worker]string{one: "m", two: "m"})
		fill(s)
		other(s)
		s.attached(all, three)
		s.want("xy", "3.0:2")
		if rows := s.ofPool0(); rows != "[]" {
			t.Errorf("pools: %s", rows)
		}
		if h, fed := s.c.mu.tracker.HealthOf(one); fed {
			t.Errorf("worker 1 is not asked for its cache: %+v", h)
		}
		s.attached(all, three) // nothing is dropped again
		s.start(one)
		fill(s)
		s.attached(all, three)
		s.want("abc", found)
	})
	t.Run("later workers", func(t *testing.T) {
		s := newShelf(t)
		s.attached(map[kv.Worker]string{one: "m", two: "m"})
		fill(s)
		s.attached(map[kv.Worker]string{two: "m"})
		s.want("abc", "2.0:3 attachable 3 fetched 3")
		_, data := s.c.takeSnapshot(0, 1<<16)
		s.attached(map[kv.Worker]string{})
		s.start(three)
		s.attached(map[kv.Worker]string{three: "n"})
		s.say(three, moved("", kv.Pooled, three))
		s.want("abc", "")
		if rows := s.ofPool0(); rows != "[{0 0 [{3 0}]}]" {
			t.Errorf("pools: %s", rows)
		}
		for generation, pooled := range map[string]int{"m": 3, "n": 0} {
			for _, cards := range []string{"before", "after"} {
				later := newShelf(t)
				card := map[kv.Worker]string{two: generation}
				if cards == "before" {
					later.attached(card)
				}
				if _, err := later.c.restoreSnapshot(data); err != nil {
					t.Fatal(err)
				}
				if cards == "after" {
					later.attached(card)
				}
				later.check()
				if st := later.c.poolStats(); st.Pooled != pooled {
					t.Errorf("memory %s, with cards %s a snapshot: %+v", generation, cards, st)
				}
			}
		}
		s.attached(map[kv.Worker]string{})
		s.c.mu.pools.DropPool(0, nil)
		s.attached(map[kv.Worker]string{})
		if n := len(s.c.mu.generations); n != 0 {
			t.Errorf("%d pools without blocks and workers are remembered", n)
		}
	})
}

// advised is a router with workers 1 to 3, with blocks of 4 tokens, that receives their events.
type advised struct {
	t *testing.T
	r *Router
}

func newAdvised(t *testing.T) *advised {
	r, err := New(Config{}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var all []disco.Instance
	for id := kv.WorkerID(1); id <= 3; id++ {
		in := instance(t, "m", 4)
		in.ID = id
		all = append(all, in)
	}
	r.setInstances(all)
	return &advised{t, r}
}

// hears makes a worker publish events after a Cleared one.
func (a *advised) hears(w kv.Worker, events ...kv.Event) {
	a.t.Helper()
	rec := &kvfeed.Record{Worker: w, Epoch: 1, First: 1, BlockSize: 4, Events: append([]kv.Event{{Kind: kv.Cleared}}, events...)}
	if v, ok := a.r.cache.acceptRecord(streamPosition{life: 1, seq: 1}, rec); !ok || v.Outcome != kvfeed.Apply {
		a.t.Fatalf("%v, %v", v, ok)
	}
}

// tokens returns a prompt, and its full blocks as a worker stores them.
func tokens(t *testing.T, n int) ([]kv.Token, kv.Event, []kv.SeqHash) {
	prompt := make([]kv.Token, n)
	for i := range prompt {
		prompt[i] = kv.Token(i)
	}
	h, err := kv.NewHasher(4, kv.Salt{})
	if err != nil {
		t.Fatal(err)
	}
	blocks := h.AppendBlockHashes(nil, prompt, nil)
	return prompt, kv.Event{Kind: kv.Stored, Blocks: blocks}, kv.AppendChain(nil, blocks)
}

// TestStrictExpertsFilter: without fallback only workers with a labelled block may be chosen; without
// any the request fails.
func TestStrictExpertsFilter(t *testing.T) {
	a := newAdvised(t)
	prompt, stored, _ := tokens(t, 10)
	a.hears(one, stored)
	labelled := stored
	labelled.Labels = []kv.MoELabel{{Has: kv.HasExpert, Layer: 2, Expert: 7}, {}}
	a.hears(two, labelled)
	for _, c := range []struct {
		expert     uint32
		fallback   bool
		candidates int
	}{{7, true, 3}, {7, false, 1}, {99, true, 3}, {99, false, 0}} {
		layer := uint32(2)
		ex, err := a.r.Explain(t.Context(), &route.Request{Model: "m", Tokens: prompt, Override: route.Override{
			MoE: &route.MoEQuery{Layer: &layer, Experts: []uint32{c.expert}, Fallback: &c.fallback},
		}})
		if len(ex.Candidates) != c.candidates || (fault.CodeOf(err) == fault.Ineligible) != (c.candidates == 0) {
			t.Errorf("%+v: %d candidates, %v", c, len(ex.Candidates), err)
		}
		if c.candidates == 1 && (ex.Decision.Worker != two || ex.Candidates[0].Labelled != 1) {
			t.Errorf("%+v: %+v", c, ex)
		}
	}
}

// TestPreferencesAreNoReuse: whatever is reported of blocks, reuse is at most the prompt, so that a
// worker's work is never negative; labels and a pool of its own blocks do not change it.
func TestPreferencesAreNoReuse(t *testing.T) {
	prompt, stored, chain := tokens(t, 40)
	layer := uint32(2)
	ask := func(a *advised) map[kv.Worker]route.Candidate {
		ex, err := a.r.Explain(t.Context(), &route.Request{Model: "m", Tokens: prompt, Override: route.Override{MoE: &route.MoEQuery{Layer: &layer}}})
		if err != nil {
			t.Fatal(err)
		}
		all := map[kv.Worker]route.Candidate{}
		for _, c := range ex.Candidates {
			all[c.Worker] = c
		}
		return all
	}
	plain := newAdvised(t)
	plain.hears(one, stored)
	before := ask(plain)

	full := newAdvised(t)
	for range stored.Blocks {
		stored.Labels = append(stored.Labels, kv.MoELabel{Has: kv.HasExpert, Layer: 2, Expert: 1})
	}
	full.hears(one, stored, kv.Event{Kind: kv.Moved, Seqs: chain, Move: kv.PoolMove{To: kv.Pooled, HasPool: true, Access: []kv.Worker{one, two}}})
	after := ask(full)
	for _, w := range []kv.Worker{one, two, three} {
		if c := after[w]; c.PrefillTokens < 0 || c.PrefillBlocks < 0 {
			t.Errorf("worker %v: %+v", w, c)
		}
	}
	if b, a := before[one], after[one]; a.PrefillTokens != b.PrefillTokens || a.Overlap != b.Overlap || a.Labelled != 10 || a.Attachable != 10 {
		t.Errorf("worker 1 without labels and pool: %+v; with: %+v", b, a)
	}
	if c := after[two]; c.PrefillTokens != before[one].PrefillTokens || c.Overlap[kv.TierPool] != 10 || c.FetchBlocks <= 0 {
		t.Errorf("worker 2, which attaches the pool: %+v", c)
	}
	if c := after[three]; c.PrefillTokens != len(prompt) || c.Attachable != 0 {
		t.Errorf("worker 3, which has no access: %+v", c)
	}
}
