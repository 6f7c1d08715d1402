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
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/serve/router"
)

// replicas are routers over one cluster of workers that leave and read snapshots.
type replicas struct {
	*cluster
	archive *bus.FaultyArchive
	inner   *bus.MemArchive
}

func newReplicas(t *testing.T) *replicas {
	inner := bus.NewMemArchive()
	return &replicas{newCluster(t), bus.NewFaultyArchive(inner, 1, bus.ArchiveFaults{}), inner}
}

var eventTopic = bus.KVEvents("penstock", "backend")

// replica is one router of several.
type replica struct {
	*replicas
	router  *router.Router
	metrics *obs.Metrics
	stop    func()
}

// start starts a replica that leaves a snapshot every 20 messages.
func (c *replicas) start(reset router.Reset) *replica {
	c.t.Helper()
	r := &replica{replicas: c, metrics: obs.NewMetrics()}
	var err error
	r.router, err = router.New(router.Config{Snapshots: router.Snapshots{Threshold: 20, Reset: reset}}, router.Planes{
		Bus: c.bus, Registry: c.registry, RPC: c.rpc, Archive: c.archive,
	}, byteTokens{}, r.metrics, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	r.stop = c.run("router", r.router.Run)
	return r
}

// held is what a replica's index has.
func (r *replica) held() map[kv.WorkerID][]kv.SeqHash {
	r.t.Helper()
	r.cluster.router = r.router
	return r.dump()
}

// exact checks that a replica knows what the engines hold, and nothing else.
func (r *replica) exact() {
	r.t.Helper()
	r.cluster.router = r.router
	r.checkIndex()
}

// value is the sum of a metric's samples that have a label of that value; "" is any.
func (r *replica) value(name, label string) (sum float64) {
	r.t.Helper()
	families, err := r.metrics.Gatherer().Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || label != "" && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() != label) {
				continue
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// load serves n requests, each with a prompt of its own of ten blocks.
func (c *replicas) load(r *replica, from, n int) {
	c.t.Helper()
	c.cluster.router = r.router
	for i := from; i < from+n; i++ {
		c.mustServe(fmt.Sprint("load ", i), prompt(i, 41, uint64(i)))
	}
}

// pass lets time pass in which all that is due is done.
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

func (c *replicas) span() bus.Span {
	c.t.Helper()
	s, err := c.bus.Span(c.t.Context(), eventTopic)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// A third replica that starts after the first two are dead knows what they knew, from
// their snapshot and what came after it, while the stream does not begin any more where
// the workers began.
func TestThirdReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newReplicas(t)
		defer c.stopWorkers()
		first, second := c.start(router.Keep), c.start(router.Keep)
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

		c.engines[1].Evict(3) // while no router is there
		synctest.Wait()
		asked := c.asked(t)
		third := c.start(router.Keep)
		third.exact()
		if third.value("penstock_router_snapshot_restored_blocks", "") < 600 || third.value("penstock_router_snapshots_total", "restored") != 1 {
			t.Errorf("restored %v blocks", third.value("penstock_router_snapshot_restored_blocks", ""))
		}
		pass(time.Minute)
		third.exact()
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
		return c.bus.Subscribe(ctx, bus.KVResync("penstock"), 0, func(bus.Message) error { n++; return nil }, nil)
	})
	return func() int {
		t.Helper()
		stop()
		return n
	}
}

// settled is a cluster with two snapshots and a stream that was purged; its routers are
// stopped.
func settled(t *testing.T) *replicas {
	c := newReplicas(t)
	r := c.start(router.Keep)
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

// A snapshot that cannot be read is passed over for the older one, and that one for the
// plain stream: then workers are asked.
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
				r := c.start(router.Keep)
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

// A replica that dies between any two steps of a snapshot, or that cannot do one of them,
// leaves a state that the next one reads.
func TestDyingWithinASnapshot(t *testing.T) {
	for step := range 12 {
		t.Run(fmt.Sprint("step ", step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newReplicas(t)
				defer c.stopWorkers()
				c.startWorker(1, 1)
				c.startWorker(2, 1)
				ctx, die := context.WithCancel(t.Context())
				defer die()
				left := step
				dying := &dyingPlanes{Bus: c.bus, Archive: c.archive, step: func() {
					if left--; left < 0 {
						die()
					}
				}}
				first, err := router.New(router.Config{Snapshots: router.Snapshots{Threshold: 20}}, router.Planes{
					Bus: dying, Registry: c.registry, RPC: c.rpc, Archive: dyingArchive{dying},
				}, byteTokens{}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() { done <- first.Run(ctx) }()
				synctest.Wait()
				witness := c.start(router.Keep) // serves meanwhile, and writes none: see below
				c.archiveFails(witness)
				for round := range 4 {
					c.load(witness, 100*round, 15)
					pass(6 * time.Second)
				}
				die()
				if err := <-done; err != nil {
					t.Error(err)
				}
				witness.stop()
				c.archive.Set(bus.ArchiveFaults{})
				r := c.start(router.Keep)
				r.cluster.router = r.router
				r.neverMore()
				pass(10 * time.Second)
				r.exact()
				r.stop()
			})
		})
	}
}
