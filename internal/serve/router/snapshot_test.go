package router_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/snapshot"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/router"
)

// replicas are routers over one cluster of workers, which write and read snapshots.
type replicas struct {
	*cluster
	archive *bustest.FaultyArchive
	inner   *bus.MemArchive
}

func newReplicas(t *testing.T) *replicas {
	inner := bus.NewMemArchive()
	return &replicas{newCluster(t), bustest.NewFaultyArchive(inner, 1, bustest.ArchiveFaults{}), inner}
}

var eventTopic = bus.KVEventsTopic("penstock", "backend")

// replica is one router of several.
type replica struct {
	*replicas
	router  *router.Router
	metrics *obs.Metrics
	stop    func()
}

// often writes a snapshot every 20 messages.
var often = router.SnapshotPolicy{Threshold: 20}

func (c *replicas) start(s router.SnapshotPolicy) *replica {
	c.t.Helper()
	return c.startOver(c.bus, c.archive, s)
}

// startOver starts a replica with its own planes.
func (c *replicas) startOver(events bus.Bus, archive bus.Archive, s router.SnapshotPolicy) *replica {
	c.t.Helper()
	r := &replica{replicas: c, metrics: obs.NewMetrics()}
	var err error
	r.router, err = router.New(router.Config{Snapshots: s}, router.Planes{
		Bus: events, Registry: c.registry, RPC: c.rpc, Archive: archive,
	}, byteTokens{}, r.metrics, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	r.stop = c.run("router", r.router.Run)
	return r
}

// held returns the contents of a replica's index.
func (r *replica) held() map[kv.WorkerID][]kv.SeqHash {
	r.t.Helper()
	r.cluster.router = r.router
	return r.dump()
}

// exact checks that a replica has exactly what the engines hold.
func (r *replica) exact() {
	r.t.Helper()
	r.cluster.router = r.router
	r.checkIndex()
}

// value is the sum of a metric's samples which have a label of that value, or of all samples.
func (r *replica) value(name, label string) (sum float64) {
	r.t.Helper()
	families, err := r.metrics.Gatherer().Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			wanted := label == ""
			for _, l := range m.GetLabel() {
				wanted = wanted || l.GetValue() == label
			}
			if f.GetName() != name || !wanted {
				continue
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// load serves n requests, each with its own prompt of ten blocks.
func (c *replicas) load(r *replica, from, n int) {
	c.t.Helper()
	c.cluster.router = r.router
	for i := from; i < from+n; i++ {
		c.mustServe(fmt.Sprint("load ", i), prompt(1000*i, 41, i))
	}
}

// pass lets time pass, and everything due happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (c *replicas) names() (names []string) {
	c.t.Helper()
	list, err := c.inner.List(c.t.Context(), "")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, o := range list {
		names = append(names, o.Name)
	}
	return names
}

func (c *replicas) span() bus.TopicState {
	c.t.Helper()
	s, err := c.bus.DescribeTopic(c.t.Context(), eventTopic)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// A third replica that starts after the first two are dead has their state, from their snapshot and the
// messages after it, although the stream no longer has the workers' first messages.
func TestThirdReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		first, second := c.start(often), c.start(often)
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		for round := range 5 {
			c.load(first, 100*round, 15)
			pass(6 * time.Second)
		}
		want := first.held()
		if len(want[1])+len(want[2]) != 750 {
			t.Fatalf("the index has %d and %d blocks, want 750", len(want[1]), len(want[2]))
		}
		if got := second.held(); !maps.EqualFunc(got, want, slices.Equal) {
			t.Error("the second replica knows something else than the first")
		}
		if n := first.value("penstock_router_snapshots_total", "written") + second.value("penstock_router_snapshots_total", "written"); n < 3 || n > 5 {
			t.Errorf("both replicas have written %v snapshots, want one for each round at most", n)
		}
		if n := len(c.names()); n != 2 {
			t.Errorf("the archive has %v, want two snapshots", c.names())
		}
		if s := c.span(); s.First < 10 {
			t.Errorf("the stream is %+v: it was not purged", s)
		}
		first.stop()
		second.stop()

		c.engines[1].EvictBlocks(3) // while no router is there
		synctest.Wait()
		asked := c.asked(t)
		third := c.start(often)
		third.exact()
		if third.value("penstock_router_snapshot_restored_blocks", "") < 600 || third.value("penstock_router_snapshots_total", "restored") != 1 {
			t.Errorf("restored %v blocks", third.value("penstock_router_snapshot_restored_blocks", ""))
		}
		pass(time.Minute)
		third.exact()
		if n := third.value("penstock_index_events_total", "duplicate"); n != 0 {
			t.Errorf("%v events came that the snapshot covers", n)
		}
		if n := asked(); n != 0 {
			t.Errorf("workers were asked for their caches %d times: the snapshot was not enough", n)
		}
		third.stop()
	})
}

// asked counts the requests to describe a cache from now on.
func (c *replicas) asked(t *testing.T) func() int {
	n := 0
	stop := c.run("count", func(ctx context.Context) error {
		return c.bus.Subscribe(ctx, bus.KVResyncTopic("penstock"), 0, func(bus.Message) error { n++; return nil }, nil)
	})
	return func() int {
		t.Helper()
		stop()
		return n
	}
}

// settled is a cluster with two snapshots and a purged stream; its routers are stopped.
func settled(t *testing.T) *replicas {
	c := newReplicas(t)
	r := c.start(often)
	c.startWorker(1, 1)
	c.startWorker(2, 1)
	for round := range 3 {
		c.load(r, 100*round, 15)
		pass(6 * time.Second)
	}
	c.load(r, 1000, 3)
	synctest.Wait()
	r.exact()
	r.stop()
	if n := len(c.names()); n != 2 {
		t.Fatalf("the archive has %v", c.names())
	}
	return c
}

// anew rewrites a snapshot with another header.
func anew(t *testing.T, data []byte, change func(*snapshot.Header)) []byte {
	t.Helper()
	h, sections, err := snapshot.Open(data, func(snapshot.Section) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	change(&h)
	w := snapshot.NewWriter(nil, h)
	for _, s := range sections {
		w.AddSection(s.Kind, s.Version, s.Need, func(dst []byte) []byte { return append(dst, s.Data...) })
	}
	return w.Finish()
}

// An unreadable snapshot is skipped for the older one, and that one for the plain stream: then workers
// are asked.
func TestUnreadableSnapshots(t *testing.T) {
	for name, test := range map[string]struct {
		spoil           func(c *replicas, newest, older string)
		restored, asked int
		unreadable      float64
	}{
		"none": {func(*replicas, string, string) {}, 1, 0, 0},
		"the newest is damaged": {func(c *replicas, newest, _ string) {
			data, _ := c.inner.Get(c.t.Context(), newest)
			data[len(data)/2] ^= 1
			_ = c.inner.Put(c.t.Context(), newest, data)
		}, 1, 0, 1},
		"the newest is cut off": {func(c *replicas, newest, _ string) {
			data, _ := c.inner.Get(c.t.Context(), newest)
			_ = c.inner.Put(c.t.Context(), newest, data[:len(data)/2])
		}, 1, 0, 1},
		"the newest is missing": {func(c *replicas, newest, _ string) {
			_ = c.inner.Delete(c.t.Context(), newest)
		}, 1, 0, 0},
		"both are damaged": {func(c *replicas, newest, older string) {
			_ = c.inner.Put(c.t.Context(), newest, []byte("x"))
			_ = c.inner.Put(c.t.Context(), older, nil)
		}, 0, 2, 2},
		"both are missing": {func(c *replicas, newest, older string) {
			_ = c.inner.Delete(c.t.Context(), newest)
			_ = c.inner.Delete(c.t.Context(), older)
		}, 0, 2, 0},
		"one is of another life": {func(c *replicas, newest, _ string) {
			data, _ := c.inner.Get(c.t.Context(), newest)
			_ = c.inner.Delete(c.t.Context(), newest)
			_ = c.inner.Put(c.t.Context(), "penstock.backend.snapshot.ffffffffffffffff.00000000000000000099", data)
		}, 1, 0, 0},
		"the newest says that it is of a message to come": {func(c *replicas, newest, _ string) {
			data, _ := c.inner.Get(c.t.Context(), newest)
			_ = c.inner.Put(c.t.Context(), newest, anew(c.t, data, func(h *snapshot.Header) { h.Seq += 1000 }))
		}, 1, 0, 1},
		"the newest says that it is of another life": {func(c *replicas, newest, _ string) {
			data, _ := c.inner.Get(c.t.Context(), newest)
			_ = c.inner.Put(c.t.Context(), newest, anew(c.t, data, func(h *snapshot.Header) { h.StreamID++ }))
		}, 1, 0, 1},
		"others are in the way": {func(c *replicas, _, _ string) {
			for _, name := range []string{"zzz", "penstock.backend.snapshot.z", "penstock.backend.snapshot.fffffffffffffff.1", "penstock.other.snapshot.ffffffffffffffff.00000000000000000099"} {
				_ = c.inner.Put(c.t.Context(), name, []byte("x"))
			}
		}, 1, 0, 0},
		"the stream has lost what follows": {func(c *replicas, _, _ string) {
			_ = c.bus.Purge(c.t.Context(), eventTopic, c.span().Last)
		}, 0, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := settled(t)
				defer c.stopWorkers()
				names := c.names()
				test.spoil(c, names[1], names[0])
				asked := c.asked(t)
				r := c.start(often)
				if test.restored == 1 {
					r.exact() // at once
				}
				r.cluster.router = r.router
				r.neverMore()
				pass(10 * time.Second)
				r.exact()
				if n := r.value("penstock_router_snapshots_total", "restored"); n != float64(test.restored) {
					t.Errorf("%v snapshots were restored, want %d", n, test.restored)
				}
				if n := r.value("penstock_router_snapshots_total", "unreadable"); n != test.unreadable {
					t.Errorf("%v snapshots were unreadable, want %v", n, test.unreadable)
				}
				if n := asked(); n < test.asked || test.asked == 0 && n > 0 {
					t.Errorf("workers were asked %d times, want %d", n, test.asked)
				}
				r.stop()
			})
		})
	}
}

// A replica that dies at any step of its snapshots leaves a state that the next one can read.
func TestDyingWithinASnapshot(t *testing.T) {
	const steps = 32 // more than there are: the last ones live
	lived := false
	for step := range steps {
		synctest.Test(t, func(t *testing.T) {
			c := newReplicas(t)
			defer c.stopWorkers()
			witness := c.start(router.SnapshotPolicy{}) // requests go through it; it writes no snapshot
			c.startWorker(1, 1)
			c.startWorker(2, 1)
			m := &mortal{Bus: c.bus, Archive: c.archive, left: step}
			first := c.startOver(m, m, often)
			for round := range 4 {
				c.load(witness, 100*round, 15)
				pass(6 * time.Second)
			}
			lived = m.left > 0
			first.stop()
			witness.stop()
			r := c.start(often)
			r.cluster.router = r.router
			r.neverMore()
			pass(10 * time.Second)
			r.exact()
			r.stop()
			if t.Failed() {
				t.Logf("it died after %d steps", step)
			}
		})
	}
	if !lived {
		t.Errorf("a replica takes more than %d steps", steps)
	}
}

// mortal are the planes of a replica that dies after some steps: afterwards its actions on snapshots
// have no effect.
type mortal struct {
	bus.Bus
	bus.Archive
	left int
}

func (m *mortal) step() error {
	if m.left == 0 {
		return errors.New("dead")
	}
	m.left--
	return nil
}

func (m *mortal) Purge(ctx context.Context, t bus.Topic, below uint64) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Bus.Purge(ctx, t, below)
}

func (m *mortal) Put(ctx context.Context, name string, data []byte) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Archive.Put(ctx, name, data)
}

func (m *mortal) Delete(ctx context.Context, name string) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.Archive.Delete(ctx, name)
}

func (m *mortal) List(ctx context.Context, prefix string) ([]bus.ArchiveObject, error) {
	if err := m.step(); err != nil {
		return nil, err
	}
	return m.Archive.List(ctx, prefix)
}

// A replica that reads slower than the stream is purged restarts from a snapshot; one whose stream is
// replaced while it follows it keeps its state.
func TestSlowReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		writer := c.start(often)
		gate := &gatedBus{Bus: c.bus, open: make(chan struct{})}
		slow := c.startOver(gate, c.archive, router.SnapshotPolicy{})
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		for round := range 4 {
			c.load(writer, 100*round, 15)
			pass(6 * time.Second)
		}
		if n := len(slow.held()); n != 0 {
			t.Fatalf("the slow replica knows of %d workers already", n)
		}
		close(gate.open)
		pass(5 * time.Second)
		slow.exact()
		if n := slow.value("penstock_router_snapshots_total", "restored"); n != 1 {
			t.Errorf("it read %v snapshots, want 1", n)
		}
		slow.stop()
		writer.stop()
	})
}

// A replica that is behind keeps the snapshot of one that is not.
func TestLateWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		writer := c.start(router.SnapshotPolicy{Threshold: 1000})
		gate := &gatedBus{Bus: c.bus, open: make(chan struct{})}
		late := c.startOver(gate, c.archive, router.SnapshotPolicy{Threshold: 1000, Look: 12 * time.Second})
		c.startWorker(1, 1)
		c.load(writer, 0, 25)
		pass(20 * time.Second)
		names := c.names()
		if n := late.value("penstock_router_snapshots_total", "written"); n != 0 || len(names) != 1 {
			t.Errorf("it wrote %v snapshots; there are %v", n, names)
		}
		close(gate.open)
		pass(time.Second)
		late.exact()
		late.stop()
		writer.stop()
	})
}

// gatedBus holds cache events back from the second on until it is opened.
type gatedBus struct {
	bus.Bus
	open chan struct{}
}

func (b *gatedBus) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	if t != eventTopic {
		return b.Bus.Subscribe(ctx, t, from, sink, ready)
	}
	n := 0
	return b.Bus.Subscribe(ctx, t, from, func(m bus.Message) error {
		if n++; n > 1 {
			select {
			case <-b.open:
			case <-ctx.Done():
				return nil
			}
		}
		return sink(m)
	}, ready)
}

// Faults of the archive and of the bus' stream queries: snapshots are late or missing, and in the end
// each replica is exact.
func TestSnapshotsUnderFaults(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			c := newReplicas(t)
			defer c.stopWorkers()
			c.archive = bustest.NewFaultyArchive(c.inner, seed, bustest.ArchiveFaults{Fail: 0.3, Corrupt: 0.3, Truncate: 0.1, Lose: 0.3})
			c.startWorker(1, 1)
			c.startWorker(2, 1)
			first, second := c.start(often), c.start(often)
			for round := range 6 {
				c.bus.Set(bustest.BusFaults{Fail: 0.2, Drop: 0.05, Duplicate: 0.1, Topics: []string{eventTopic.Name}})
				c.load(first, 100*round, 15)
				pass(6 * time.Second)
				c.bus.Set(bustest.BusFaults{})
				second.stop()
				second = c.start(often)
				second.cluster.router = second.router
				second.neverMore()
			}
			c.archive.Set(bustest.ArchiveFaults{})
			pass(2 * time.Minute)
			first.exact()
			second.exact()
			first.stop()
			second.stop()
			third := c.start(often)
			pass(10 * time.Second)
			third.exact()
			third.stop()
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
}

// TestFailedSnapshotsAreTriedLessOften: events wait for each encoding, so the router does not offer a
// snapshot every few seconds to an archive that refuses; when it accepts again one is written within
// the interval.
func TestFailedSnapshotsAreTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		c.startWorker(1, 1)
		r := c.start(often)
		defer r.stop()
		c.archive.Set(bustest.ArchiveFaults{Fail: 1})
		c.load(r, 0, 30)
		pass(15 * time.Minute)
		if n := r.value("penstock_router_snapshots_total", "failed"); n < 5 || n > 10 { // after 5, 10, 20, 40, 80, 160, 180, … seconds
			t.Errorf("tried %v times in a quarter of an hour", n)
		}
		c.archive.Set(bustest.ArchiveFaults{})
		pass(3 * time.Minute)
		if n := r.value("penstock_router_snapshots_total", "written"); n != 1 {
			t.Errorf("%v snapshots written once that was possible", n)
		}
	})
}

// A reset deletes everything, but not while another router uses it.
func TestResetStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := settled(t)
		defer c.stopWorkers()
		reset := func(how router.ResetMode) error {
			r, err := router.New(router.Config{Snapshots: router.SnapshotPolicy{Reset: how}}, router.Planes{
				Bus: c.bus, Registry: c.registry, RPC: c.rpc, Archive: c.archive,
			}, byteTokens{}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return r.Run(ctx)
		}
		live := c.start(router.SnapshotPolicy{})
		before := c.span()
		err := reset(router.ResetIfAlone)
		if fault.CodeOf(err) != fault.Conflict || !strings.Contains(err.Error(), "--namespace") || !strings.Contains(err.Error(), "1 other routers") {
			t.Errorf("beside a live router: %v", err)
		}
		if len(c.names()) != 2 || c.span() != before {
			t.Error("it was reset all the same")
		}
		if n := len(c.routers()); n != 1 {
			t.Errorf("%d routers are registered, want the live one", n)
		}
		other := disco.Instance{Kind: disco.KindRouter, ID: 9, Namespace: "another", Component: "backend"}
		c.registry.Set(other)
		live.stop()
		if err := reset(router.ResetIfAlone); err != nil {
			t.Errorf("alone: %v", err)
		}
		if s := c.span(); len(c.names()) != 0 || s.First <= before.Last {
			t.Errorf("after the reset there are %v and a stream of %+v", c.names(), s)
		}
		live = c.start(often)
		pass(10 * time.Second)
		live.exact()
		if err := reset(router.ResetForce); err != nil {
			t.Errorf("forced: %v", err)
		}
		pass(10 * time.Second)
		live.exact()
		live.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		c := settled(t)
		defer c.stopWorkers()
		r, err := router.New(router.Config{Snapshots: router.SnapshotPolicy{Reset: router.ResetIfAlone}}, router.Planes{
			Bus: c.bus, Registry: blindRegistry{c.registry}, RPC: c.rpc, Archive: c.archive,
		}, byteTokens{}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); fault.CodeOf(err) != fault.Conflict || !strings.Contains(err.Error(), "does not show") {
			t.Errorf("where routers are not shown: %v", err)
		}
	})
}

// blindRegistry lists workers only, like a list of addresses.
type blindRegistry struct{ disco.Registry }

func (r blindRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	if kind != disco.KindWorker {
		<-ctx.Done()
		return nil
	}
	return r.Registry.Watch(ctx, kind, sink)
}

func (c *replicas) routers() (all []disco.Instance) {
	for _, in := range c.registry.Instances() {
		if in.Kind == disco.KindRouter && in.Namespace == "penstock" {
			all = append(all, in)
		}
	}
	return all
}

// Entries without events for longer than the stream keeps messages are not dropped.
func TestQuietCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		r := c.start(router.SnapshotPolicy{Threshold: 1 << 20})
		c.startWorker(1, 1)
		c.load(r, 0, 3) // by far less than a threshold
		pass(10 * time.Second)
		c.load(r, 100, 3)
		pass(3 * time.Hour)
		if s := c.span(); s.Messages != 0 {
			t.Fatalf("the stream still has %d messages", s.Messages)
		}
		if n := r.value("penstock_router_snapshots_total", "written"); n != 2 {
			t.Errorf("%v snapshots were written of a quiet cluster, want 2", n)
		}
		if age := r.value("penstock_router_snapshot_age_seconds", ""); age < 2*3600 || age > 3*3600 {
			t.Errorf("the snapshot is %v s old", age)
		}
		r.stop()
		asked := c.asked(t)
		next := c.start(often)
		next.exact()
		pass(time.Minute)
		next.exact()
		if n := asked(); n != 0 {
			t.Errorf("the worker was asked %d times", n)
		}
		next.stop()
	})
}

// Neither the stream nor a snapshot has tokens or text of a prompt: only hashes.
func TestNoTokensAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		r := c.start(often)
		c.startWorker(1, 1)
		// Tokens which differ from every count, length and small id.
		const first = 0x5eed_0000
		for round := range 3 {
			for i := range 30 {
				c.cluster.router = r.router
				c.mustServe(fmt.Sprint(round, " ", i), prompt(first+1000*i, 41, first+31*i))
			}
			pass(6 * time.Second)
		}
		var kept [][]byte
		for _, name := range c.names() {
			data, err := c.inner.Get(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, data)
		}
		stop := c.run("tap", func(ctx context.Context) error {
			return c.bus.Subscribe(ctx, eventTopic, 0, func(m bus.Message) error {
				kept = append(kept, slices.Clone(m.Data))
				return nil
			}, nil)
		})
		stop()
		if len(kept) < 10 || len(kept[0]) < 1000 {
			t.Fatalf("%d messages and snapshots, the first of %d bytes: too little to say anything", len(kept), len(kept[0]))
		}
		for i, data := range kept {
			for at := range len(data) - 3 {
				for _, word := range []uint32{binary.LittleEndian.Uint32(data[at:]), binary.BigEndian.Uint32(data[at:])} {
					if word>>16 == first>>16 && word&0xffff < 30_000 {
						t.Errorf("item %d has token %#x at byte %d", i, word, at)
					}
				}
			}
		}
		r.stop()
	})
}
