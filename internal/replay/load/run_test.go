package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/replay"
)

// list is a source of requests that are there.
type list struct {
	requests []replay.Request
	next     int
	err      error // instead of io.EOF
}

func (l *list) Next(r *replay.Request) error {
	if l.next == len(l.requests) {
		if l.err != nil {
			return l.err
		}
		return io.EOF
	}
	*r = l.requests[l.next]
	r.Index = l.next
	l.next++
	return nil
}

func (l *list) Close() error { return nil }

// record keeps everything.
type record struct {
	samples []replay.Sample
	gaps    []time.Duration // of the last whole answer
	ats     [][]time.Duration
	took    time.Duration // the run
}

func (r *record) RecordSample(s *replay.Sample) {
	r.samples = append(r.samples, *s)
	r.gaps = nil
}

func (r *record) RecordGap(between time.Duration, n int) {
	r.gaps = append(r.gaps, slices.Repeat([]time.Duration{between}, n)...)
}

func (r *record) RecordTokens(_ *replay.Sample, at []time.Duration) {
	r.ats = append(r.ats, slices.Clone(at))
}

// byIndex returns the samples in order of their requests.
func (r *record) byIndex() []replay.Sample {
	out := slices.Clone(r.samples)
	slices.SortFunc(out, func(a, b replay.Sample) int { return a.Index - b.Index })
	return out
}

// listener is a network in memory, for time that is not real.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// body is what the tests' server reads of a request.
type body struct {
	Prompt    []int `json:"prompt"`
	MaxTokens int   `json:"max_tokens"`
}

// paced is a server that gives a token every so often, the first after as long.
func paced(every time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b body
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Penstock-Worker", "9")
		for range b.MaxTokens {
			time.Sleep(every) // virtual: the work that this server pretends to do
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
			if http.NewResponseController(w).Flush() != nil {
				return
			}
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n", len(b.Prompt), b.MaxTokens)
	}
}

// virtual runs a workload against a handler, both in memory.
func virtual(ctx context.Context, t *testing.T, cfg Config, source replay.Source, handler http.Handler) (*record, Summary, error) {
	t.Helper()
	cfg.Model = "m"
	cfg.Endpoint.URL = "http://memory"
	if err := cfg.applyDefaults(); err != nil {
		t.Fatal(err)
	}
	p, err := cfg.Endpoint.resolveTarget()
	if err != nil {
		t.Fatal(err)
	}
	l := newListener()
	p.dial = l.dial
	srv := &http.Server{Handler: handler}
	served := make(chan error)
	go func() { served <- srv.Serve(l) }()
	rec := &record{}
	r := newLoadRun(cfg, p, &runClock{sleep: time.Sleep, prepare: func() {}})
	sum, err := r.execute(ctx, source, rec)
	rec.took = time.Since(sum.Start)
	if cerr := srv.Shutdown(context.Background()); cerr != nil {
		t.Error(cerr)
	}
	<-served
	return rec, sum, err
}

const ms = time.Millisecond

// at makes requests of two tokens at the given moments.
func at(moments ...time.Duration) *list {
	l := &list{}
	for _, m := range moments {
		l.requests = append(l.requests, replay.Request{At: m, Input: 10, Output: 2})
	}
	return l
}

func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moments := []time.Duration{0, 0, 3 * ms, 3*ms + 1, 500 * ms, 501 * ms}
		rec, sum, err := virtual(t.Context(), t, Config{}, at(moments...), paced(10*ms))
		if err != nil || sum.Answers != len(moments) || sum.Interrupted || sum.NoUsage+sum.NoCached+sum.Short+sum.Resent != 0 {
			t.Fatalf("%+v, %v", sum, err)
		}
		for i, s := range rec.byIndex() {
			due := moments[i]
			want := replay.Sample{Index: i, Due: due, Sent: due, First: due + 10*ms, Last: due + 20*ms, Done: due + 20*ms, Input: 10, Cached: 2, Output: 2, Worker: 9}
			if s != want {
				t.Errorf("%+v\nwant %+v", s, want)
			}
		}
		if !slices.Equal(rec.gaps, []time.Duration{10 * ms}) || !slices.Equal(rec.ats[len(rec.ats)-1], []time.Duration{511 * ms, 521 * ms}) {
			t.Errorf("gaps of the last answer %v, its tokens %v", rec.gaps, rec.ats[len(rec.ats)-1])
		}
	})
}

// TestClosedLoop: so many requests are under way, never more, and the next is sent
// when one is over, whatever the workload's moments.
func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, sum, err := virtual(t.Context(), t, Config{Concurrency: 2}, at(time.Hour, -1, 0, 0, 0), paced(10*ms))
		if err != nil || sum.Answers != 5 {
			t.Fatalf("%+v, %v", sum, err)
		}
		slices.SortFunc(rec.samples, func(a, b replay.Sample) int { return int(a.Sent - b.Sent) })
		for i, want := range []time.Duration{0, 0, 20 * ms, 20 * ms, 40 * ms} {
			if s := rec.samples[i]; s.Sent != want || s.Due != want {
				t.Errorf("request %d was due at %v and sent at %v, want %v", s.Index, s.Due, s.Sent, want)
			}
		}
	})
}

// TestSessions: the requests of a session wait for the answer before them and for
// their delay, in both loops, and requests of others do not wait for them.
func TestSessions(t *testing.T) {
	requests := []replay.Request{
		{Session: "a", At: 0, Output: 2},
		{Session: "a", At: 1 * ms, Delay: 30 * ms, Output: 1},
		{Session: "b", At: 2 * ms, Delay: time.Hour, Output: 1}, // nothing is before it
		{Session: "a", At: 3 * ms, Output: 1},
		{At: 4 * ms, Output: 1},
		{Session: "b", At: 900 * ms, Delay: 30 * ms, Output: 1}, // its moment is later than its delay
	}
	for concurrency, want := range map[int][]time.Duration{
		0: {0, 50 * ms, 2 * ms, 60 * ms, 4 * ms, 900 * ms},
		3: {0, 50 * ms, 0, 60 * ms, 0, 40 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			rec, sum, err := virtual(t.Context(), t, Config{Concurrency: concurrency}, &list{requests: requests}, paced(10*ms))
			if err != nil || sum.Answers != len(requests) {
				t.Fatalf("%+v, %v", sum, err)
			}
			for i, s := range rec.byIndex() {
				if s.Sent != want[i] || s.Due != want[i] {
					t.Errorf("concurrency %d: request %d was due at %v and sent at %v, want %v", concurrency, i, s.Due, s.Sent, want[i])
				}
			}
		})
	}
}

// TestFailedTurn: a session goes on after a request that failed.
func TestFailedTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := []replay.Request{{Session: "a", Output: 1}, {Session: "a", Output: 1, Delay: ms}}
		rec, _, err := virtual(t.Context(), t, Config{}, &list{requests: requests}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		if err != nil || len(rec.samples) != 2 || rec.samples[1].Error != "status_429" || rec.samples[1].Sent != ms {
			t.Errorf("%+v, %v", rec.samples, err)
		}
	})
}

// TestDuration: nothing is sent after it, what is under way ends.
func TestDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, sum, err := virtual(t.Context(), t, Config{Duration: 50 * ms}, at(0, 49*ms, 51*ms, time.Hour), paced(10*ms))
		if err != nil || sum.Interrupted || sum.Abandoned > 0 || len(rec.samples) != 2 || rec.samples[1].Done != 69*ms {
			t.Errorf("%+v, %+v, %v", rec.samples, sum, err)
		}
	})
}

// TestInterrupt: nothing more is sent, what ends in time counts, the rest is left
// out and said.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 35*ms)
		defer cancel()
		source := at(0, 30*ms, 40*ms)
		source.requests[1].Output = 100
		rec, sum, err := virtual(ctx, t, Config{Grace: 100 * ms}, source, paced(15*ms))
		if err != nil || !sum.Interrupted || sum.Abandoned != 1 || sum.Answers != 1 || len(rec.samples) != 1 {
			t.Errorf("%+v, %+v, %v", rec.samples, sum, err)
		}
		if rec.took != 135*ms {
			t.Errorf("it took %v", rec.took)
		}
	})
}

// slow is a source whose first request takes until done is closed.
type slow struct {
	list
	done <-chan struct{}
}

func (s *slow) Next(r *replay.Request) error {
	<-s.done
	return s.list.Next(r)
}

// TestInterruptAtOnce: a run whose workload is still being read when the context ends
// sends nothing. Under the race detector: what reads it looks at the run's clock.
func TestInterruptAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	source := &slow{done: ctx.Done()}
	for i := range 200 {
		source.requests = append(source.requests, replay.Request{Session: fmt.Sprint(i % 3), Output: 1})
	}
	url := play(t, func(*net.TCPConn, int) bool { t.Error("a request was sent"); return true })
	cancel()
	rec := &record{}
	sum, err := Run(ctx, Config{Endpoint: Endpoint{URL: url}, Model: "m"}, source, rec)
	if err != nil || !sum.Interrupted || len(rec.samples) > 0 {
		t.Errorf("%+v, %+v, %v", rec.samples, sum, err)
	}
}

// TestConnections: a request beyond the bound waits for one that is over, and is late.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, _, err := virtual(t.Context(), t, Config{MaxConnections: 4}, at(0, 0, 0, 0, 0, 1*ms), paced(10*ms))
		if err != nil {
			t.Fatal(err)
		}
		late := 0
		for _, s := range rec.samples {
			if s.Sent == 20*ms && s.Sent > s.Due {
				late++
			}
		}
		if late != 2 {
			t.Errorf("%d late, want 2: %+v", late, rec.samples)
		}
	})
}

// TestManyWait: more requests of a session than may be made ahead wait, in order, and
// so do those behind them.
func TestManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &list{}
		for i := range 300 {
			source.requests = append(source.requests, replay.Request{At: time.Duration(i), Session: fmt.Sprint(i % 3), Output: 1})
		}
		rec, sum, err := virtual(t.Context(), t, Config{Ahead: 2}, source, paced(ms))
		if err != nil || sum.Answers != 300 {
			t.Fatalf("%+v, %v", sum, err)
		}
		last := map[int]int{}
		for _, s := range rec.samples {
			if s.Index < last[s.Index%3] {
				t.Errorf("request %d ended after %d", s.Index, last[s.Index%3])
			}
			last[s.Index%3] = s.Index
		}
	})
}

func TestWorkloadFaults(t *testing.T) {
	broken := errors.New("line 3: no such thing")
	for name, tt := range map[string]struct {
		source *list
		want   string
	}{
		"error":      {&list{requests: at(0).requests, err: broken}, broken.Error()},
		"no moment":  {at(0, -1), "choose a rate"},
		"bad fields": {&list{requests: []replay.Request{{Extra: json.RawMessage("[]")}}}, "extra fields of request 0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, _, err := virtual(t.Context(), t, Config{}, tt.source, paced(ms))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		})
	}
}

// TestTooMany: what would take all memory is refused before anything is made.
func TestTooMany(t *testing.T) {
	for _, cfg := range []Config{{Concurrency: 1 << 30}, {MaxConnections: 1 << 30}, {Ahead: 1 << 30}} {
		cfg.Model, cfg.Endpoint.URL = "m", "http://127.0.0.1:1"
		if _, err := Run(t.Context(), cfg, &list{}, &record{}); !errors.Is(err, errTooMany) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestEmptyWorkload(t *testing.T) {
	for _, concurrency := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			if _, sum, err := virtual(t.Context(), t, Config{Concurrency: concurrency}, &list{}, paced(ms)); err != nil || sum.Interrupted {
				t.Errorf("%+v, %v", sum, err)
			}
		})
	}
}

// TestTogether: tokens of one event, and events of one read, are no time apart.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, sum, err := virtual(t.Context(), t, Config{}, at(0), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			event := "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
			fmt.Fprint(w, event+event)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(5 * ms) // virtual
			fmt.Fprint(w, event+"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n")
		}))
		slices.Sort(rec.gaps)
		if err != nil || sum.Together != 2 || sum.NoCached != 1 || !slices.Equal(rec.gaps, []time.Duration{0, 0, 0, 5 * ms}) {
			t.Errorf("%v, %+v, %v", rec.gaps, sum, err)
		}
	})
}
