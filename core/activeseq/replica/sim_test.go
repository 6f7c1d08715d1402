package replica

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

const ms = kv.Mono(time.Millisecond)

// node is a router: a table for each of two models, and its replica.
type node struct {
	id      uint64
	tables  [2]*activeseq.ReservationTable
	replica *Replica
	known   int // workers 1 to known
	keys    []activeseq.AttemptKey
}

// TableOf implements TableFinder: odd workers serve one model, even ones the other.
func (n *node) TableOf(w kv.Worker) *activeseq.ReservationTable {
	if int(w.ID) > n.known {
		return nil
	}
	return n.tables[w.ID%2]
}

func newNode(t testing.TB, id, epoch uint64, workers int) *node {
	t.Helper()
	n := &node{id: id, known: workers}
	var err error
	if n.replica, err = New(Config{Router: id, Epoch: epoch}, n); err != nil {
		t.Fatal(err)
	}
	for i := range n.tables {
		if n.tables[i], err = activeseq.New(activeseq.Config{BlockSize: 4, Journal: n.replica}); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// truth returns the reservations of a router, each with its load.
func (n *node) truth() map[uint64]string {
	out := map[uint64]string{}
	for i := range n.replica.local.reservations {
		if e := &n.replica.local.reservations[i]; !e.ended {
			v, _ := e.ref.Reservation()
			out[e.number] = describe(v)
		}
	}
	return out
}

// belief returns what this router counts for another one.
func (n *node) belief(id uint64) map[uint64]string {
	out := map[uint64]string{}
	for _, p := range n.replica.peers {
		if p.router == id {
			for number, e := range p.reservations {
				v, _ := e.ref.Reservation()
				out[number] = describe(v)
			}
		}
	}
	return out
}

func describe(v activeseq.Reservation) string {
	return fmt.Sprintf("%v %v %d %d %d %d", v.Worker, v.Chain, v.PromptTokens, v.PrefillTokens, v.OutputTokens, v.ExpectedOutput)
}

// world is a set of routers and the messages in transit between them.
type world struct {
	t      testing.TB
	rng    *rand.Rand
	now    kv.Mono
	nodes  []*node
	mail   []letter
	serial int
	out    [][]byte
	faults bool
	cut    [2]int // no messages between routers in and outside this range
	sent   int    // bytes
}

type letter struct {
	at   kv.Mono
	to   *node
	data []byte
}

// act makes a router do something random.
func (w *world) act(n *node) {
	kind := w.rng.IntN(10)
	if len(n.keys) == 0 || kind < 4 && len(n.keys) < 60 {
		chain := make([]kv.SeqHash, w.rng.IntN(8))
		group := kv.SeqHash(w.rng.IntN(3))
		for i := range chain {
			chain[i] = group<<32 | kv.SeqHash(i+1)
		}
		worker := kv.Worker{ID: kv.WorkerID(1 + w.rng.IntN(min(6, n.known)))}
		w.serial++
		key := activeseq.AttemptKey{ID: strconv.Itoa(w.serial), Attempt: 1}
		err := n.tables[worker.ID%2].Reserve(w.now, key, worker, activeseq.Demand{
			Chain: chain, PromptTokens: 4*len(chain) + w.rng.IntN(9), OverlapBlocks: w.rng.IntN(3), ExpectedOutput: w.rng.IntN(2) * 40,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		n.keys = append(n.keys, key)
		return
	}
	at := w.rng.IntN(len(n.keys))
	key := n.keys[at]
	for _, t := range n.tables {
		switch kind {
		case 4, 5:
			t.MarkPrefilled(key)
		case 6, 7:
			t.AddOutput(key, w.rng.IntN(20))
		default:
			t.Free(key)
		}
	}
	if kind >= 8 || kind < 4 {
		n.keys = slices.Delete(n.keys, at, at+1)
	}
}

// exchange sends the messages of all routers which are due.
func (w *world) exchange() {
	for i, n := range w.nodes {
		if n.replica.Deadline() > w.now {
			continue
		}
		w.out = n.replica.Tick(w.now, w.out[:0])
		for _, data := range w.out {
			w.sent += len(data)
			for j, to := range w.nodes {
				w.send(i, j, to, data)
			}
		}
	}
	keep := w.mail[:0]
	for _, l := range w.mail {
		if l.at > w.now {
			keep = append(keep, l)
			continue
		}
		if err := l.to.replica.HandleMessage(w.now, l.data); err != nil {
			w.t.Fatal(err)
		}
	}
	w.mail = keep
}

// send sends a message, or loses it. The sender receives its own messages too, as on the planes.
func (w *world) send(from, j int, to *node, data []byte) {
	at := w.now + ms
	if !w.faults {
		w.mail = append(w.mail, letter{at, to, data})
		return
	}
	side := func(i int) bool { return i >= w.cut[0] && i < w.cut[1] }
	if side(from) != side(j) {
		return
	}
	for range 1 + w.rng.IntN(5)/4 { // one in five is duplicated
		if w.rng.IntN(5) == 0 {
			continue
		}
		late := kv.Mono(0)
		if w.rng.IntN(3) == 0 {
			late = kv.Mono(w.rng.IntN(200)) * ms
		}
		w.mail = append(w.mail, letter{at + late, to, data})
	}
}

// run lets time pass while routers act.
func (w *world) run(d time.Duration, busy float64) {
	for end := w.now.Add(d); w.now < end; w.now += ms {
		for _, n := range w.nodes {
			if w.rng.Float64() < busy {
				w.act(n)
			}
		}
		w.exchange()
	}
}

// agree reports the first router which does not know exactly what all others have.
func (w *world) agree() error {
	for _, n := range w.nodes {
		adopted := 0
		for _, other := range w.nodes {
			if n == other {
				continue
			}
			truth, belief := other.truth(), n.belief(other.id)
			adopted += len(truth)
			if !maps.Equal(truth, belief) {
				return fmt.Errorf("router %d knows %d reservations of router %d, which has %d", n.id, len(belief), other.id, len(truth))
			}
		}
		if have := n.tables[0].AdoptedCount() + n.tables[1].AdoptedCount(); have != adopted {
			return fmt.Errorf("the tables of router %d have %d reservations of others, not %d", n.id, have, adopted)
		}
		for id := range kv.WorkerID(8) {
			worker := kv.Worker{ID: id}
			if got, want := n.tables[id%2].LoadOf(worker), w.nodes[0].tables[id%2].LoadOf(worker); got != want {
				return fmt.Errorf("worker %d has the load %+v at router %d, %+v at the first", id, got, n.id, want)
			}
		}
	}
	return nil
}

func (w *world) check() {
	w.t.Helper()
	for _, n := range w.nodes {
		if err := n.replica.Check(); err != nil {
			w.t.Fatal(err)
		}
		for _, table := range n.tables {
			if err := table.Check(); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func newWorld(t testing.TB, seed uint64, routers int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range routers {
		w.nodes = append(w.nodes, newNode(t, uint64(i+1), 1, 6))
	}
	return w
}

// settled is how long after the last action everything has arrived: growth is published at intervals, and
// messages take time.
const settled = growthInterval + 20*time.Millisecond

// TestHeals: whatever happened to messages, once faults end all routers agree within ConvergenceTime,
// although they keep acting.
func TestHeals(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed, 2+int(seed%3))
			w.run(time.Second, 0.3)
			for range 4 {
				w.faults = true
				w.cut = [2]int{}
				if w.rng.IntN(2) == 0 {
					w.cut = [2]int{0, 1} // the first one is partitioned
				}
				w.run(time.Duration(1+w.rng.IntN(15))*time.Second, 0.2)
				switch w.rng.IntN(4) {
				case 0: // a router restarts under its old name
					at := w.rng.IntN(len(w.nodes))
					old := w.nodes[at]
					w.nodes[at] = newNode(t, old.id, old.replica.cfg.Epoch+1, 6)
					for i := range w.mail {
						if w.mail[i].to == old {
							w.mail[i].to = w.nodes[at]
						}
					}
				case 1: // a worker is removed, and all routers notice
					for _, n := range w.nodes {
						n.tables[0].DropWorker(kv.Worker{ID: 2})
					}
				}
				w.check()
			}
			w.faults = false
			w.run(200*time.Millisecond, 0.2) // late messages arrive
			w.run(ConvergenceTime, 0.2)
			w.run(settled, 0)
			w.check()
			if err := w.agree(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNothingLostNothingAsked: without faults there are no requests, and no lists except the initial ones.
func TestNothingLostNothingAsked(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.run(10*time.Second, 0.5)
	w.run(settled, 0)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
	for _, n := range w.nodes {
		if s := n.replica.Stats(); s.Mismatches+s.Refused+s.Resent+s.Unsent > 0 || s.Healed > 2 || s.Changes < 1000 {
			t.Errorf("router %d: %+v", n.id, s)
		}
	}
}

// TestJoin: a router which joins later soon knows all reservations, in as many pages as necessary.
func TestJoin(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.run(100*time.Millisecond, 0)
	chain := make([]kv.SeqHash, maxChain+100)
	for i := range chain {
		chain[i] = kv.SeqHash(i + 1)
	}
	for i := range 200 { // 32 KiB each, more than is kept
		d := activeseq.Demand{Chain: chain, PromptTokens: 4 * len(chain)}
		if err := w.nodes[0].tables[1].Reserve(w.now, activeseq.AttemptKey{ID: strconv.Itoa(i)}, kv.Worker{ID: 1}, d); err != nil {
			t.Fatal(err)
		}
	}
	w.run(100*time.Millisecond, 0)
	w.nodes = append(w.nodes, newNode(t, 9, 1, 6))
	w.run(500*time.Millisecond, 0)
	for _, n := range w.nodes[1:] {
		// Blocks beyond the longest chain count for each request, because they cannot be known to be shared.
		want := activeseq.Load{Requests: 200, PrefillTokens: 200 * 4 * len(chain), Blocks: maxChain + 200*100}
		if got := n.tables[1].LoadOf(kv.Worker{ID: 1}); got != want {
			t.Errorf("router %d counts %+v, want %+v", n.id, got, want)
		}
	}
	if pages := w.nodes[0].replica.Stats().Pages; pages < 10 {
		t.Errorf("%d pages", pages)
	}
	w.check()
}

// TestJoinWithoutJournal: a router which joins receives existing reservations, not the history.
func TestJoinWithoutJournal(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.run(100*time.Millisecond, 0)
	first := w.nodes[0]
	for i := range 5000 {
		key := activeseq.AttemptKey{ID: strconv.Itoa(i)}
		if err := first.tables[1].Reserve(w.now, key, kv.Worker{ID: 1}, activeseq.Demand{PromptTokens: 64}); err != nil {
			t.Fatal(err)
		}
		first.tables[1].Free(key)
		w.run(time.Millisecond, 0)
	}
	w.run(100*time.Millisecond, 0)
	sent := w.sent
	w.nodes = append(w.nodes, newNode(t, 9, 1, 6))
	w.run(ConvergenceTime, 0)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
	stats := first.replica.Stats()
	if stats.Resent > 0 || stats.Pages != 1 {
		t.Errorf("the router which joined was sent %d old batches and %d pages, want none and one", stats.Resent, stats.Pages)
	}
	if joined := w.sent - sent; joined > 16<<10 {
		t.Errorf("joining cost %d bytes though nothing is active", joined)
	}
	w.check()
}

// TestGone: a router's reservations end with it, at once if it says so, else after a timeout.
func TestGone(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.run(2*time.Second, 0.2)
	leaver, dead, stays := w.nodes[0], w.nodes[1], w.nodes[2]
	if err := stays.replica.HandleMessage(w.now, leaver.replica.LeaveMessage()); err != nil {
		t.Fatal(err)
	}
	w.nodes = w.nodes[2:]
	w.mail = nil
	if len(stays.belief(leaver.id)) > 0 || len(stays.belief(dead.id)) == 0 {
		t.Fatal("not the one that left is gone")
	}
	cfg := stays.replica.cfg
	w.run(cfg.PeerTimeout-cfg.DigestEvery-2*time.Millisecond, 0) // it may have sent changes after its digest
	if len(stays.belief(dead.id)) == 0 {
		t.Error("gone before its time")
	}
	w.run(2*cfg.DigestEvery, 0)
	if len(stays.replica.AppendPeers(nil)) > 0 || stays.tables[0].AdoptedCount()+stays.tables[1].AdoptedCount() > 0 {
		t.Error("something of it is left")
	}
	w.check()
}

// TestDeaf: a router which does not receive its own messages does not time out others early, though it does
// not wait forever. When it receives messages again, it waits until the others had time to send.
func TestDeaf(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.run(2*time.Second, 0.2)
	w.faults = true
	away := func(d time.Duration) {
		for end := w.now.Add(d); w.now < end; w.now += ms {
			w.exchange()
			w.mail = nil
		}
	}
	cfg := w.nodes[0].replica.cfg
	for _, d := range []time.Duration{cfg.PeerTimeout / 2, cfg.PeerTimeout, 2 * cfg.PeerTimeout, cfg.DeafTimeout - 2*cfg.PeerTimeout} {
		w.faults = true
		away(d)
		for i, n := range w.nodes {
			if other := w.nodes[1-i]; len(n.belief(other.id)) == 0 {
				t.Fatalf("router %d forgot the other within %v", n.id, d)
			}
		}
		w.faults = false
		first, second := w.nodes[0], w.nodes[1]
		for late := w.now.Add(cfg.PeerTimeout - time.Millisecond); w.now < late; w.now += ms {
			w.nodes = []*node{first} // the other one is late to send
			w.exchange()
		}
		w.nodes = []*node{first, second}
		if len(first.belief(second.id)) == 0 {
			t.Fatalf("forgotten before it had time to speak, after %v", d)
		}
		w.run(ConvergenceTime+settled, 0)
		if err := w.agree(); err != nil {
			t.Fatal(err)
		}
	}
	away(cfg.DeafTimeout)
	if n := len(w.nodes[0].replica.AppendPeers(nil)); n > 0 {
		t.Errorf("%d are known after %v of nothing", n, cfg.DeafTimeout)
	}
	w.check()
}

// TestWorkersComeLater: reservations on an unknown worker are counted once it becomes known.
func TestWorkersComeLater(t *testing.T) {
	w := newWorld(t, 1, 2)
	late := w.nodes[1]
	late.known = 2
	w.nodes[1] = newNode(t, 7, 1, 6) // sends in its place
	w.nodes = append(w.nodes, late)
	w.run(2*time.Second, 0.2)
	unplaced := 0
	for _, p := range late.replica.AppendPeers(nil) {
		unplaced += p.Unplaced
	}
	if unplaced == 0 {
		t.Fatal("all is counted")
	}
	late.known = 6
	late.replica.RequestUnplaced(w.now)
	w.run(time.Second, 0)
	if err := w.agree(); err != nil {
		t.Fatal(err)
	}
}

// TestEchoes: a router knows its place among the routers, and which of its changes came back.
func TestEchoes(t *testing.T) {
	a, b := newNode(t, 7, 1, 2), newNode(t, 5, 1, 2)
	now := kv.Mono(0)
	exchange := func() {
		for range 2 {
			now += 300 * ms
			for _, n := range []*node{a, b} {
				for _, data := range n.replica.Tick(now, nil) {
					for _, to := range []*node{a, b} {
						if err := to.replica.HandleMessage(now, data); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	exchange()
	if x, y := a.replica.PlaceOf(), b.replica.PlaceOf(); x != 1 || y != 0 {
		t.Errorf("router 7 is at place %d, router 5 at %d", x, y)
	}
	if err := a.tables[1].Reserve(now, activeseq.AttemptKey{ID: "a"}, kv.Worker{ID: 1}, activeseq.Demand{PromptTokens: 8}); err != nil {
		t.Fatal(err)
	}
	if n := a.replica.EchoedNumber(); n != 0 {
		t.Errorf("change %d came back before it was sent", n)
	}
	exchange()
	if x, y := a.replica.EchoedNumber(), b.replica.EchoedNumber(); x != 1 || y != 0 {
		t.Errorf("of router 7 change %d came back, of router 5 change %d", x, y)
	}
}

// TestAloneSaysNothing: a router without peers sends only digests.
func TestAloneSaysNothing(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.run(10*time.Second, 0.5)
	if s := w.nodes[0].replica.Stats(); s.Changes+s.Batches > 0 {
		t.Errorf("%+v", s)
	}
	if w.sent > 40*(headerSize+24) {
		t.Errorf("%d bytes", w.sent)
	}
}

// TestAcrossRouters is a scenario with two routers, three workers, and a request of 8 tokens at the first
// worker. Both routers count it, and neither does once it is freed; the same if the prompt was not hashed.
func TestAcrossRouters(t *testing.T) {
	for _, chain := range [][]kv.SeqHash{{11, 12}, nil} {
		w := newWorld(t, 1, 2)
		w.run(10*time.Millisecond, 0)
		key := activeseq.AttemptKey{ID: "a", Attempt: 1}
		for i, n := range w.nodes {
			worker := kv.Worker{ID: kv.WorkerID(1 + 2*i)} // of the same model
			if err := n.tables[1].Reserve(w.now, key, worker, activeseq.Demand{Chain: chain, PromptTokens: 8}); err != nil {
				t.Fatal(err)
			}
		}
		w.run(10*time.Millisecond, 0)
		for _, n := range w.nodes {
			for _, id := range []kv.WorkerID{1, 3, 5} {
				want := activeseq.Load{Requests: 1, PrefillTokens: 8, Blocks: 2}
				if id == 5 {
					want = activeseq.Load{}
				}
				if got := n.tables[1].LoadOf(kv.Worker{ID: id}); got != want {
					t.Errorf("router %d counts %+v at worker %d, want %+v", n.id, got, id, want)
				}
			}
		}
		w.nodes[0].tables[1].MarkPrefilled(key)
		w.nodes[0].tables[1].MarkPrefilled(key) // a second call changes nothing
		w.run(10*time.Millisecond, 0)
		if got := w.nodes[1].tables[1].LoadOf(kv.Worker{ID: 1}); got.PrefillTokens != 0 || got.Requests != 1 {
			t.Errorf("computed: %+v", got)
		}
		for _, n := range w.nodes {
			n.tables[1].Free(key)
		}
		w.run(10*time.Millisecond, 0)
		for _, n := range w.nodes {
			for _, id := range []kv.WorkerID{1, 3, 5} {
				if got := n.tables[1].LoadOf(kv.Worker{ID: id}); got != (activeseq.Load{}) {
					t.Errorf("router %d still counts %+v at worker %d", n.id, got, id)
				}
			}
		}
	}
}

// TestAnyOrder: applying the changes alone, in any order and any number of times, gives the state of their
// router. No requests, digests or lists are needed.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(50) {
		w := newWorld(t, seed, 2)
		w.run(20*time.Millisecond, 0)
		from, to := w.nodes[0], newNode(t, 9, 1, 6)
		var batches [][]byte
		for range 200 {
			w.act(from)
			w.now += 10 * ms
			for _, data := range from.replica.Tick(w.now+2*ms, nil) {
				if messageKind(data[2]) == kindChanges {
					batches = append(batches, data)
				}
			}
		}
		for _, data := range from.replica.Tick(w.now+kv.Mono(time.Second), nil) { // publishes the growth
			if messageKind(data[2]) == kindChanges {
				batches = append(batches, data)
			}
		}
		batches = append(batches, batches[len(batches)/2:]...)
		w.rng.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
		for _, data := range batches {
			if err := to.replica.HandleMessage(w.now, data); err != nil {
				t.Fatal(err)
			}
			if err := to.replica.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if truth, belief := from.truth(), to.belief(from.id); !maps.Equal(truth, belief) {
			t.Fatalf("seed %d: %d reservations are known, there are %d\n%v\n%v", seed, len(belief), len(truth), belief, truth)
		}
		if s := to.replica.Stats(); s.Refused+s.Healed > 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}
