package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"

	"github.com/google/go-cmp/cmp"
)

func TestDeltas(t *testing.T) {
	for name, c := range map[string]struct {
		events []string
		change func(*engine.Request)
		report CachedReporting
		want   []string
		code   fault.Code // 255 means none
		says   string
	}{
		"cached at the end": {
			events: []string{`{"t":[1]}`, `{"t":[2,40],"f":"stop"}`, `{"c":8}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1 2 40] cached 8 finish 1"},
			code:   255,
		},
		"cached at once": {
			events: []string{`{"t":[],"c":4}`, `{"t":[1]}`, `{"t":[2],"f":"length"}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1 2] cached 4 finish 2"},
			code:   255,
		},
		"never cached": {
			events: []string{`{"t":[1]}`, `{"t":[2],"f":"length"}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1 2] cached -1 finish 2"},
			code:   255,
		},
		"left out means none": {
			events: []string{`{"t":[1]}`, `{"t":[2],"f":"length"}`},
			report: ReportsNonzero,
			want:   []string{"accepted", "0@0[1 2] cached 0 finish 2"},
			code:   255,
		},
		"one delta": {
			events: []string{`{"t":[40],"f":"stop"}`, `{"c":4}`, `[DONE]`},
			want:   []string{"accepted", "0@0[40] cached 4 finish 1"},
			code:   255,
		},
		"the stop token is left out": {
			events: []string{`{"t":[1,2],"f":"stop"}`, `{"c":4}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1 2] cached 4 finish 1"},
			code:   255,
		},
		"more than was asked for": {
			events: []string{`{"t":[1,2,3,4,5,6,7]}`, `{"t":[8],"f":"length"}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1 2 3 4 5] cached -1 finish 2"},
			code:   255,
		},
		"echo of an end": {
			events: []string{`{"t":[1],"f":"length"}`, `{"t":[],"f":"length"}`, `{"c":0}`, `[DONE]`},
			want:   []string{"accepted", "0@0[1] cached 0 finish 2"},
			code:   255,
		},
		"several choices": {
			events: []string{`{"i":1,"t":[1]}`, `{"i":0,"t":[2],"f":"length"}`, `{"i":1,"t":[40],"f":"stop"}`, `{"c":4}`, `[DONE]`},
			change: func(r *engine.Request) { r.Choices = 2 },
			want:   []string{"accepted", "0@0[2] cached -1 finish 2", "1@0[1 40] cached 4 finish 1"},
			code:   255,
		},
		"breaks off": {
			events: []string{`{"t":[1]}`},
			want:   []string{"accepted", "0@0[1] cached -1 finish 0"},
			code:   fault.Unavailable, says: "before it was complete",
		},
		"an error inside": {
			events: []string{`{"t":[1]}`, `{"error":{"message":"EngineCore died","code":500}}`},
			want:   []string{"accepted", "0@0[1] cached -1 finish 0"},
			code:   fault.EngineError, says: "EngineCore died",
		},
		"an error inside that is the client's": {
			events: []string{`{"error":{"message":"too long","code":400}}`},
			want:   []string{"accepted"},
			code:   fault.Invalid, says: "too long",
		},
		"outside the vocabulary": {
			events: []string{`{"t":[50]}`},
			want:   []string{"accepted"},
			code:   fault.Internal, says: "outside the vocabulary",
		},
		"a choice that was not asked for": {
			events: []string{`{"i":1,"t":[5]}`},
			want:   []string{"accepted"},
			code:   fault.Internal, says: "was not asked for",
		},
		"no JSON": {
			events: []string{`{"t":[1}`},
			want:   []string{"accepted"},
			code:   fault.Internal,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, _ *http.Request) { events(w, c.events...) })
			b := base(t, s.URL, func(cfg *Config) { cfg.CachedReporting = c.report })
			req := testRequest(5)
			if c.change != nil {
				c.change(req)
			}
			got, err := deltas(b, req)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if c.code == 255 {
				if err != nil {
					t.Error(err)
				}
			} else {
				wantFault(t, "the end", err, c.code, c.says)
			}
			if l := b.Load(); l.Running+l.Waiting+l.PrefillTokens+l.UsedBlocks != 0 {
				t.Errorf("left in the account: %+v", l)
			}
		})
	}
}

// TestResumed checks that the output of earlier attempts follows the prompt, and counts.
func TestResumed(t *testing.T) {
	var bodies atomic.Value
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		all, _ := bodies.Load().(string)
		bodies.Store(all + string(b))
		events(w, `{"t":[7,8],"f":"length"}`, `{"c":8}`, `[DONE]`)
	})
	b := base(t, s.URL, nil)
	req := testRequest(4)
	req.Attempt, req.Generated = 2, [][]kv.Token{{11, 12}}
	got, err := deltas(b, req)
	if diff := cmp.Diff([]string{"accepted", "0@2[7 8] cached 8 finish 2"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	if got := bodies.Load(); got != "[1,2,3,4,5,6,7,8,9,11,12]" {
		t.Errorf("the prompt is %v", got)
	}
	// Nothing is left to generate, and no call is made.
	bodies.Store("")
	req.Generated = [][]kv.Token{{11, 12, 13, 14}}
	got, err = deltas(b, req)
	if diff := cmp.Diff([]string{"accepted", "0@4[] cached 0 finish 2"}, got); diff != "" || err != nil || bodies.Load() != "" {
		t.Errorf("%v %v %s", err, bodies.Load(), diff)
	}
	req.OutputSchema = &engine.OutputSchema{Schema: []byte(`{}`)}
	b2 := base(t, s.URL, func(c *Config) { c.Card.StructuredOutput = true })
	_, err = deltas(b2, req)
	wantFault(t, "a guide in the middle", err, fault.Unimplemented, "middle of an answer")
}

// TestSeveralCalls checks that choices at different positions get calls of their own, and keep their indexes;
// one that fails ends the others.
func TestSeveralCalls(t *testing.T) {
	var fail atomic.Bool
	var gone atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if fail.Load() {
			if strings.HasSuffix(string(b), ",11]") {
				w.WriteHeader(503)
				return
			}
			events(w, `{"t":[1]}`)
			<-r.Context().Done()
			gone.Add(1)
			return
		}
		events(w, fmt.Sprintf(`{"t":[%d,40],"f":"stop"}`, len(strings.Split(string(b), ","))), `{"c":4}`, `[DONE]`)
	})
	b := base(t, s.URL, nil)
	req := testRequest(6)
	req.Attempt, req.Choices, req.Generated = 2, 3, [][]kv.Token{{11}, {11, 12}, nil}
	last := map[int]string{}
	err := b.Generate(t.Context(), req, func(d *engine.Delta) error {
		last[d.Choice] += fmt.Sprint(d.Pos, d.Tokens, d.Finish, " ")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{0: "0 [] 0 1 [10 40] 1 ", 1: "2 [11 40] 1 ", 2: "0 [9 40] 1 "}
	for i, w := range want {
		if got := strings.ReplaceAll(last[i], "0 [] 0 ", ""); got != strings.ReplaceAll(w, "0 [] 0 ", "") {
			t.Errorf("choice %d: %q, want %q", i, last[i], w)
		}
	}
	fail.Store(true)
	wantFault(t, "one of three", b.Generate(t.Context(), req, func(*engine.Delta) error { return nil }), fault.Unavailable, "503")
}

func TestSeeds(t *testing.T) {
	if partSeed(7, 0, 0) != 7 || partSeed(7, 2, 0) != 9 {
		t.Error("the seed of a stream from its beginning is not the engine's own rule")
	}
	seen := map[uint64]bool{}
	for choice := range 4 {
		for position := range 100 {
			s := partSeed(1<<63+5, choice, position)
			if s >= 1<<63 || seen[s] {
				t.Fatalf("choice %d at %d: seed %d again, or too large", choice, position, s)
			}
			seen[s] = true
		}
	}
}

// TestDownAndUp checks that calls fail at once while an engine does not answer, and are served when it
// answers again.
func TestDownAndUp(t *testing.T) {
	addr := fixturetest.ReserveAddr(t)
	asked := make(chan bool, 100)
	b := base(t, "http://"+addr, func(c *Config) {
		c.CheckAlive = func(ctx context.Context) error {
			_, err := c.Client.ReadBody(ctx, &Call{Method: http.MethodGet, Path: "/health"}, 1000)
			asked <- err == nil
			return err
		}
	})
	_, err := deltas(b, testRequest(3))
	wantFault(t, "the first call", err, fault.Unavailable, "does not answer")
	calls := b.Stats().Calls
	_, err = deltas(b, testRequest(3))
	wantFault(t, "the second call", err, fault.Unavailable, "does not answer")
	if b.Stats().Calls != calls || b.Stats().Downs != 1 {
		t.Errorf("the second call was sent: %+v", b.Stats())
	}
	if w := b.Warnings(); len(w) != 1 || w[0].Code != engine.WarnUnreachable {
		t.Errorf("warnings %+v", w)
	}
	if <-asked {
		t.Fatal("it answers although nobody listens")
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		events(w, `{"t":[40],"f":"stop"}`, `[DONE]`)
	}))
	s.Listener.Close()
	s.Listener = ln
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	for !<-asked {
	}
	for b.health.downError() != nil { // the probe reports it next
		runtime.Gosched()
	}
	if _, err := deltas(b, testRequest(3)); err != nil {
		t.Error(err)
	}
}

// TestLate checks that an engine that is late with one response, but answers a probe, is not down.
func TestLate(t *testing.T) {
	asked := make(chan struct{}, 100)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices the client's end only after it has read the body
		<-r.Context().Done()
	})
	b := base(t, s.URL, func(c *Config) {
		c.Dialect = late{}
		c.CheckAlive = func(context.Context) error { asked <- struct{}{}; return nil }
	})
	_, err := deltas(b, testRequest(5))
	wantFault(t, "a late answer", err, fault.Unavailable, "did not begin to answer")
	<-asked
	if down := b.health.downError(); down != nil || b.Stats().Downs != 0 {
		t.Errorf("the engine is down: %v", down)
	}
}

// late is a dialect that waits a millisecond for a response.
type late struct{ plain }

// BuildCall implements Dialect.
func (late) BuildCall(p *SubRequest, call *Call) error {
	call.Wait = time.Millisecond
	return plain{}.BuildCall(p, call)
}

// TestAnotherEngine checks that an engine which was replaced between two requests gets no more requests.
func TestAnotherEngine(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { events(w, `{"t":[40],"f":"stop"}`, `[DONE]`) })
	var changed atomic.Bool
	b, err := New(Config{
		Card: testCard(), Client: clientOf(t, s.URL), Dialect: plain{},
		CheckAlive: func(context.Context) error {
			if changed.Load() {
				return DifferentEngineError("host", "another model")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.health.sameInterval = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	if _, err := deltas(b, testRequest(3)); err != nil {
		t.Fatal(err)
	}
	changed.Store(true)
	for b.health.downError() == nil {
		runtime.Gosched()
	}
	_, err = deltas(b, testRequest(3))
	wantFault(t, "a request", err, fault.Unavailable, "start the worker again")
	if w := b.Warnings(); len(w) != 1 || !strings.Contains(w[0].Remedy, "start this worker again") {
		t.Errorf("warnings %+v", w)
	}
	changed.Store(false)
	for b.health.downError() != nil {
		runtime.Gosched()
	}
	if _, err := deltas(b, testRequest(3)); err != nil {
		t.Errorf("the engine is back: %v", err)
	}
}

// TestSinkAndContext checks that the caller gets the sink's own error, and that the engine is stopped.
func TestSinkAndContext(t *testing.T) {
	gone := make(chan struct{}, 2)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		events(w, `{"t":[1]}`)
		<-r.Context().Done()
		gone <- struct{}{}
	})
	b := base(t, s.URL, nil)
	broken := errors.New("broken")
	if err := b.Generate(t.Context(), testRequest(5), func(d *engine.Delta) error {
		if !d.Accepted {
			return broken
		}
		return nil
	}); err != broken {
		t.Errorf("%v", err)
	}
	<-gone
	ctx, cancel := context.WithCancel(t.Context())
	if err := b.Generate(ctx, testRequest(5), func(d *engine.Delta) error {
		if !d.Accepted {
			cancel()
		}
		return nil
	}); err != context.Canceled {
		t.Errorf("%v", err)
	}
	<-gone
}

// TestGenerateAllocatesLittle checks that a token costs no allocation.
func TestGenerateAllocatesLittle(t *testing.T) {
	b := base(t, serve(t, func(http.ResponseWriter, *http.Request) {}).URL, nil)
	req := testRequest(90)
	a := newAttempt(b, req, func(*engine.Delta) error { return nil })
	a.load = b.load.startRequest(a)
	defer b.load.finishRequest(a.load)
	p := a.splitIntoParts(SingleCall)[0]
	event := []byte(`{"i":0,"t":[17]}`)
	if n := testing.AllocsPerRun(50, func() {
		if err := (plain{}).HandleEvent(p, event); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations per event", n)
	}
}

// TestBrokenOff checks that an engine which breaks off a response is probed before another request fails.
func TestBrokenOff(t *testing.T) {
	var dead atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		events(w, `{"t":[1]}`)
		dead.Store(true)
		panic(http.ErrAbortHandler)
	})
	asked := make(chan struct{}, 100)
	b := base(t, s.URL, func(c *Config) {
		c.CheckAlive = func(context.Context) error {
			defer func() { asked <- struct{}{} }()
			if dead.Load() {
				return errors.New("dead")
			}
			return nil
		}
	})
	_, err := deltas(b, testRequest(5))
	wantFault(t, "a connection that broke", err, fault.Unavailable, "broke off")
	<-asked
	for b.health.downError() == nil {
		runtime.Gosched()
	}
	dead.Store(false)
	for b.health.downError() != nil { // each probe comes after a pause
		runtime.Gosched()
	}
}
