package disco_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/disco"
)

// processes answers at the addresses.
type processes struct {
	mu    sync.Mutex
	at    map[string]disco.Instance
	fail  map[string]error
	hang  map[string]bool
	asked int
}

func (p *processes) ask(ctx context.Context, addr string) (disco.Instance, error) {
	p.mu.Lock()
	in, err, hang := p.at[addr], p.fail[addr], p.hang[addr]
	p.asked++
	p.mu.Unlock()
	if hang {
		<-ctx.Done()
		return disco.Instance{}, ctx.Err()
	}
	if err == nil && in.Kind == "" {
		err = fault.New(fault.Unavailable, "no process at %s", addr)
	}
	return in, err
}

func (p *processes) set(addr string, in disco.Instance, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[addr], p.fail[addr] = in, err
	delete(p.hang, addr)
}

func static(t *testing.T, p *processes, addrs ...string) *disco.StaticRegistry {
	t.Helper()
	r, err := disco.NewStaticRegistry(disco.StaticConfig{Addrs: addrs, Ask: p.ask, Interval: 10 * time.Second, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newProcesses() *processes {
	return &processes{at: map[string]disco.Instance{}, fail: map[string]error{}, hang: map[string]bool{}}
}

// shown follows what a watch of workers shows, as "id/epoch@addr?".
func shown(t *testing.T, r disco.Registry) (last func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	text := "nothing"
	done := make(chan error, 1)
	go func() {
		done <- r.Watch(ctx, disco.KindWorker, func(set []disco.Instance) {
			var parts []string
			for _, in := range set {
				s := fmt.Sprintf("%d/%d@%s", in.ID, in.Epoch, in.Addr)
				if in.Unconfirmed {
					s += "?"
				}
				parts = append(parts, s)
			}
			mu.Lock()
			defer mu.Unlock()
			text = strings.Join(parts, " ")
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return text
	}
}

func life(id kv.WorkerID, epoch uint64) disco.Instance {
	return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: epoch, Addr: "not this"}
}

// TestStatic tells the story of three addresses.
func TestStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		p.set("a", life(1, 1), nil)
		p.hang["c"] = true
		last := shown(t, static(t, p, "a", "b", "c"))
		after := func(d time.Duration, want string) {
			t.Helper()
			<-time.After(d)
			if got := last(); got != want {
				t.Errorf("shown [%s], want [%s]", got, want)
			}
		}
		after(500*time.Millisecond, "nothing") // c has not answered yet
		after(time.Second, "1/1@a")
		p.set("b", life(2, 1), nil)
		p.set("c", disco.Instance{Kind: disco.KindRouter, ID: 9}, nil)
		after(20*time.Second, "1/1@a 2/1@b") // a router is none of the workers
		p.set("b", disco.Instance{}, nil)
		after(20*time.Second, "1/1@a 2/1@b?")
		after(time.Hour, "1/1@a 2/1@b?")
		p.set("b", life(3, 1), nil) // another process listens there now
		after(20*time.Second, "1/1@a 3/1@b")
		p.set("c", life(1, 2), nil) // a newer life elsewhere
		after(20*time.Second, "1/2@c 3/1@b")
		p.set("a", life(1, 2), nil) // the same at two addresses
		after(20*time.Second, "1/2@a 3/1@b")
		p.set("a", disco.Instance{}, errors.New("what"))
		after(20*time.Second, "1/2@c 3/1@b")
		p.set("b", disco.Instance{}, fault.New(fault.Draining, "leaving"))
		after(20*time.Second, "1/2@c")
		p.set("c", life(kv.MaxWorkerID+1, 1), nil) // no store would take it
		after(20*time.Second, "1/2@a?")
	})
}

// TestStaticAsksInTime: an address which answers is asked again after the interval and not before,
// one which does not after a growing part of it.
func TestStaticAsksInTime(t *testing.T) {
	for _, alive := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcesses()
			if alive {
				p.set("a", life(1, 1), nil)
			}
			last := shown(t, static(t, p, "a"))
			<-time.After(100 * time.Second)
			last()
			least, most := 10, 12
			if !alive {
				least, most = 12, 18
			}
			if p.asked < least || p.asked > most {
				t.Errorf("alive %v: asked %d times in ten intervals", alive, p.asked)
			}
		})
	}
}

// TestStaticWatchesTogether: several watches send no more requests than one, and see a change at
// the same time; a watch after all others have ended starts new requests.
func TestStaticWatchesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		p.set("a", life(1, 1), nil)
		r := static(t, p, "a")
		first := shown(t, r)
		<-time.After(5 * time.Second)
		second := shown(t, r)
		if first() != "1/1@a" || second() != "1/1@a" {
			t.Errorf("shown [%s] and [%s]", first(), second())
		}
		for range 1000 {
			p.set("a", life(1, 2), nil)
			if <-time.After(20 * time.Millisecond); first() != second() {
				t.Fatalf("shown [%s] and [%s]", first(), second())
			}
		}
		if first() != "1/2@a" || p.asked > 5 {
			t.Errorf("shown [%s], asked %d times in 25 s", first(), p.asked)
		}
		third, cancel := context.WithCancel(t.Context())
		other := static(t, p, "a")
		for range 2 {
			sets := 0
			if err := other.Watch(third, disco.KindWorker, func([]disco.Instance) { sets++; cancel() }); err != nil || sets != 1 {
				t.Errorf("%d sets, %v", sets, err)
			}
			third, cancel = context.WithCancel(t.Context())
		}
		cancel()
	})
}

// TestStaticLease: registering checks and keeps nothing.
func TestStaticLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcesses()
		r := static(t, p, "a")
		if last := shown(t, static(t, p)); last() != "" {
			t.Errorf("shown [%s] at no address", last())
		}
		l, err := r.Register(t.Context(), life(1, 1))
		if err != nil {
			t.Fatal(err)
		}
		if last := shown(t, r); last() != "" {
			t.Errorf("shown [%s]", last())
		}
		if err := l.Update(t.Context(), life(1, 1)); err != nil {
			t.Error(err)
		}
		if err := l.Update(t.Context(), life(1, 2)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("another life: %v", err)
		}
		for range 2 {
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := l.Update(t.Context(), life(1, 1)); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("after its release: %v", err)
		}
		if _, err := r.Register(t.Context(), life(kv.MaxWorkerID+1, 1)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("an id that no store takes: %v", err)
		}
		if err := r.Watch(t.Context(), "a b", nil); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("a kind that is none: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Register(ctx, life(1, 1)); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestStaticConfig(t *testing.T) {
	ask := newProcesses().ask
	for name, cfg := range map[string]disco.StaticConfig{
		"an empty address": {Addrs: []string{"a", ""}, Ask: ask},
		"nothing asks":     {Addrs: []string{"a"}}, "negative": {Addrs: []string{"a"}, Ask: ask, Interval: -1},
	} {
		if _, err := disco.NewStaticRegistry(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
