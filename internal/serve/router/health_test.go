package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// condition is the outcome of calls to an address.
type condition int

const (
	sound   condition = iota
	refused           // connection refused
	hung              // no answer
)

// network is a request plane which a test can partition, and which counts pings.
type network struct {
	rpc.Plane
	mu struct {
		sync.Mutex
		at        map[string]condition
		out, most int // pings
		pings     map[string]int
	}
}

func newNetwork(inner rpc.Plane) *network {
	n := &network{Plane: inner}
	n.mu.at, n.mu.pings = map[string]condition{}, map[string]int{}
	return n
}

func (n *network) set(addr string, c condition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.at[addr] = c
}

// pings returns how many pings went to addr since the last call.
func (n *network) pings(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer delete(n.mu.pings, addr)
	return n.mu.pings[addr]
}

func (n *network) mostPings() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.most
}

func (n *network) enter(addr, method string) condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	if method == engine.MethodPing {
		n.mu.pings[addr]++
		n.mu.out++
		n.mu.most = max(n.mu.most, n.mu.out)
	}
	return n.mu.at[addr]
}

func (n *network) leave(method string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if method == engine.MethodPing {
		n.mu.out--
	}
}

// Call implements rpc.Plane.
func (n *network) Call(ctx context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	c := n.enter(addr, method)
	defer n.leave(method)
	switch c {
	case refused:
		return fault.New(fault.Unavailable, "call %s: no worker serves %q", method, addr)
	case hung:
		<-ctx.Done()
		return ctx.Err()
	}
	return n.Plane.Call(ctx, addr, method, body, recv)
}

// doubt makes discovery unsure of all instances for good, as if its store were unreachable.
func (c *cluster) doubt() map[kv.WorkerID]disco.Instance {
	byID := map[kv.WorkerID]disco.Instance{}
	for _, in := range c.registry.Instances() {
		in.Unconfirmed = true
		c.registry.Set(in)
		byID[in.ID] = in
	}
	synctest.Wait()
	return byID
}

// routedTo returns how many of n requests each worker gets; each is freed at once.
func (c *cluster) routedTo(n int) map[kv.WorkerID]int {
	c.t.Helper()
	got := map[kv.WorkerID]int{}
	for i := range n {
		id := fmt.Sprint("probe-", i)
		d, err := c.router.Route(c.t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: prompt(0, 8, i)})
		if err != nil {
			c.t.Fatal(err)
		}
		c.router.FreeReservation(id, 1, 0)
		got[d.Worker.ID]++
	}
	return got
}

// TestWithoutStore: when the store of discovery and of events is gone for good, serving continues with
// the last known workers. Dead ones are detected within two seconds, whether they refuse or are silent,
// returning ones are used again, and pings report their load.
func TestWithoutStore(t *testing.T) {
	for _, how := range []condition{refused, hung} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			net := newNetwork(c.rpc)
			defer c.startRouterOver(net, router.Config{Route: route.Config{Mode: route.RoundRobin}})()
			defer c.stopWorkers()
			for id := range kv.WorkerID(3) {
				c.startWorker(id+1, 1)
			}
			c.bus.Set(bustest.BusFaults{Drop: 1, Topics: []string{"penstock.load"}})
			ins := c.doubt()
			<-time.After(time.Hour)
			if got := c.routedTo(30); len(got) != 3 {
				t.Fatalf("after an hour requests go to %v", got)
			}
			for id, in := range ins {
				if n := net.pings(in.Addr); n < 2700 || n > 3700 {
					t.Errorf("worker %d was pinged %d times in an hour", id, n)
				}
			}
			var table struct {
				Rows []struct {
					State string
					Load  struct {
						Reported *engine.Load
						Age      float64 `json:"reported_seconds"`
					}
				}
			}
			c.get("/v1/router/workers", &table)
			for _, row := range table.Rows {
				if row.State != "unconfirmed" || row.Load.Reported == nil || row.Load.Age > 2 {
					t.Errorf("%+v", row)
				}
			}

			net.set(ins[2].Addr, how)
			<-time.After(2500 * time.Millisecond) // a period of pings, and the time for one
			if got := c.routedTo(30); got[2] != 0 || len(got) != 2 {
				t.Errorf("worker 2 is dead, and requests go to %v", got)
			}
			net.pings(ins[2].Addr)
			<-time.After(time.Minute)
			if n := net.pings(ins[2].Addr); n < 25 || n > 80 {
				t.Errorf("the dead worker was pinged %d times in a minute", n)
			}
			net.set(ins[2].Addr, sound)
			<-time.After(2100 * time.Millisecond) // pings in flight end, plus the longest wait
			if got := c.routedTo(30); got[2] != 10 {
				t.Errorf("worker 2 is back, and requests go to %v", got)
			}
		})
	}
}

// TestFailedCallQuarantines: one failed call suffices while there is another worker, its reservation
// stays until it is freed, and the first answer to a ping ends the quarantine.
func TestFailedCallQuarantines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		net := newNetwork(c.rpc)
		defer c.startRouterOver(net, router.Config{Route: route.Config{Mode: route.RoundRobin}})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		addr := c.registry.Instances()[0].Addr
		req := &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 8, 1), Pin: kv.Worker{ID: 1}}
		if _, err := c.router.Route(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for _, code := range []fault.Code{fault.Overloaded, fault.Limited} {
			c.router.ReportFailure(req.Pin, fault.New(code, "not now"))
			if got := c.routedTo(10); got[1] != 5 {
				t.Errorf("after %v requests go to %v", code, got)
			}
		}
		for _, code := range []fault.Code{fault.Unavailable, fault.Deadline} {
			net.set(addr, hung)
			c.router.ReportFailure(req.Pin, fault.New(code, "it broke"))
			synctest.Wait() // a ping is in flight
			if got := c.routedTo(10); got[1] != 0 {
				t.Errorf("after %v requests go to %v", code, got)
			}
			if row := c.workers()[1]; row.State != "suspect" || row.Load.ActiveRequests != 1 {
				t.Errorf("after %v: %+v", code, row)
			}
			net.set(addr, sound)
			<-time.After(1100 * time.Millisecond) // the ping in flight, and the first wait
			if got := c.routedTo(10); got[1] != 5 {
				t.Errorf("after an answer requests go to %v", got)
			}
			<-time.After(time.Minute)
		}
		c.router.FreeReservation("a", 1, 0)
		if row := c.workers()[1]; row.Load.ActiveRequests != 0 || row.State != "ready" {
			t.Errorf("%+v", row)
		}
		wantLine(t, c, `penstock_router_pings_total{outcome="failed"} 2`)
		wantLine(t, c, `penstock_router_failed_calls_total{code="unavailable"} 1`)
		wantLine(t, c, `penstock_router_quarantined_workers 0`)
		c.router.ReportFailure(kv.Worker{ID: 9}, fault.New(fault.Unavailable, "it is unknown"))
	})
}

// TestLastResort: a worker about which only a failed call is known still gets requests when there is no
// other; once a ping has failed too they are refused at once.
func TestLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		net := newNetwork(c.rpc)
		defer c.startRouterOver(net, router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		addr := c.registry.Instances()[0].Addr
		ask := func() error {
			_, err := c.router.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 8, 1)})
			c.router.FreeReservation("a", 1, 0)
			return err
		}
		net.set(addr, hung)
		c.router.ReportFailure(kv.Worker{ID: 1}, fault.New(fault.Unavailable, "it broke"))
		if err := ask(); err != nil {
			t.Errorf("suspected: %v", err)
		}
		if row := c.workers()[1]; row.State != "suspect" || !strings.Contains(row.Problem, "no other worker") {
			t.Errorf("%+v", row)
		}
		<-time.After(1010 * time.Millisecond)
		var f *fault.Error
		if err := ask(); !errors.As(err, &f) || f.Code != fault.Unavailable || f.RetryAfter == 0 {
			t.Errorf("not answering: %v", err)
		}
		net.set(addr, refused)
		<-time.After(5 * time.Second)
		if err := ask(); err == nil {
			t.Error("a worker that refuses is tried")
		}
		net.set(addr, sound)
		<-time.After(time.Second)
		if err := ask(); err != nil {
			t.Errorf("back: %v", err)
		}
		// A connection to a healthy worker broke: that has no effect.
		for range 100 {
			c.router.ReportFailure(kv.Worker{ID: 1}, fault.New(fault.Unavailable, "it broke"))
			if err := ask(); err != nil {
				t.Fatalf("suspected: %v", err)
			}
		}
	})
}

func wantLine(t *testing.T, c *cluster, line string) {
	t.Helper()
	rec := httptest.NewRecorder()
	c.metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if !strings.Contains(rec.Body.String(), line+"\n") {
		t.Errorf("%q is missing", line)
	}
}

// TestAnotherProcessAnswers: another process answers at the address of a quarantined worker. Only the worker
// itself, in this epoch or a later one, leaves quarantine.
func TestAnotherProcessAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		pong func(send func([]byte) error) error
		back bool
	}{
		{"another worker", pong(engine.LoadReport{WorkerID: 2, Epoch: 5}), false},
		{"an earlier life", pong(engine.LoadReport{WorkerID: 1, Epoch: 4}), false},
		{"the worker", pong(engine.LoadReport{WorkerID: 1, Epoch: 5}), true},
		{"a later life", pong(engine.LoadReport{WorkerID: 1, Epoch: 6}), true},
		{"nothing", func(func([]byte) error) error { return nil }, false},
		{"nonsense", func(send func([]byte) error) error { return send([]byte("pong")) }, false},
		{"a crash", func(func([]byte) error) error { panic("no") }, false},
		{"a server that knows no pings", func(func([]byte) error) error { return fault.New(fault.Unimplemented, "no pings") }, true},
		{"a worker that is full", func(func([]byte) error) error { return fault.New(fault.Overloaded, "full") }, true},
		{"a worker that drains", func(func([]byte) error) error { return fault.New(fault.Draining, "leaving") }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{})()
			meta, err := engine.EncodeCard(servetest.ModelCard("m"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.run("server", func(ctx context.Context) error {
				return c.rpc.Serve(ctx, "here", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
					return tt.pong(send)
				}, nil)
			})()
			c.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 5, Namespace: "penstock", Component: "backend", Addr: "here", Meta: meta})
			synctest.Wait()
			c.router.ReportFailure(kv.Worker{ID: 1}, fault.New(fault.Unavailable, "it broke"))
			<-time.After(3 * time.Second)
			_, err = c.router.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 8, 1)})
			if back := err == nil; back != tt.back {
				t.Errorf("%s: %v", tt.name, err)
			}
		})
	}
}

// pong returns a handler of pings that answers with a report.
func pong(r engine.LoadReport) func(send func([]byte) error) error {
	return func(send func([]byte) error) error {
		b, err := json.Marshal(engine.Pong{LoadReport: r})
		if err != nil {
			return err
		}
		return send(b)
	}
}

// TestIdleFleetIsNotPinged: workers that report are not pinged.
func TestIdleFleetIsNotPinged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		net := newNetwork(c.rpc)
		defer c.startRouterOver(net, router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		<-time.After(10 * time.Second) // a new worker may be pinged
		net.pings(c.registry.Instances()[0].Addr)
		<-time.After(10 * time.Minute)
		if n := net.pings(c.registry.Instances()[0].Addr); n != 0 {
			t.Errorf("%d pings", n)
		}
		// Its reports stop: it is alive, and pings show that.
		c.bus.Set(bustest.BusFaults{Drop: 1, Topics: []string{"penstock.load"}})
		<-time.After(time.Minute)
		if n := net.pings(c.registry.Instances()[0].Addr); n < 8 || n > 12 {
			t.Errorf("%d pings in a minute without reports", n)
		}
		if d := c.mustServe("a", prompt(0, 8, 1)); d.Worker.ID != 1 {
			t.Errorf("routed to %+v", d)
		}
	})
}

// TestUnansweredPing: if a worker takes a ping and does not answer, the log says how long the router
// waited.
func TestUnansweredPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		net := newNetwork(c.rpc)
		defer c.startRouterOver(net, router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		net.set(c.registry.Instances()[0].Addr, hung)
		c.bus.Set(bustest.BusFaults{Drop: 1, Topics: []string{"penstock.load"}}) // it is pinged then
		<-time.After(time.Minute)
		if said := c.said.String(); !strings.Contains(said, "no answer to a ping within 1s") || strings.Contains(said, "context deadline") {
			t.Errorf("the log says %s", said)
		}
	})
}

// TestPingsAreBounded: however many workers hang, at most maxPings pings are in flight, and a returning
// worker among them is found.
func TestPingsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		net := newNetwork(c.rpc)
		defer c.startRouterOver(net, router.Config{})()
		meta, err := engine.EncodeCard(servetest.ModelCard("m"))
		if err != nil {
			t.Fatal(err)
		}
		const workers = 600
		for id := range kv.WorkerID(workers) {
			addr := fmt.Sprint("worker-", id+1)
			net.set(addr, hung)
			c.registry.Set(disco.Instance{
				Kind: disco.KindWorker, ID: id + 1, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: addr, Meta: meta, Unconfirmed: true,
			})
		}
		<-time.After(20 * time.Second)
		wantLine(t, c, fmt.Sprint("penstock_router_quarantined_workers ", workers))
		if most := net.mostPings(); most != 256 {
			t.Errorf("%d pings were out at once", most)
		}
		_, err = c.router.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 8, 1)})
		if fault.CodeOf(err) != fault.Unavailable || err == nil {
			t.Errorf("with all workers hung: %v", err)
		}
		defer c.run("server", func(ctx context.Context) error {
			return c.rpc.Serve(ctx, "worker-567", func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
				return pong(engine.LoadReport{WorkerID: 567, Epoch: 1})(send)
			}, nil)
		})()
		net.set("worker-567", sound)
		<-time.After(20 * time.Second)
		if got := c.routedTo(3); got[567] != 3 {
			t.Errorf("routed to %v", got)
		}
	})
}
