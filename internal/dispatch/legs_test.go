package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// legFleet has decode workers 1 and 2 and prefill workers 11 and 12, whose engines are scripted: a prefill engine keeps the
// blocks of each prompt until a decode engine fetches them, once.
type legFleet struct {
	*fleet
	mu       sync.Mutex // of what calls change
	d        *Dispatcher
	prefills []*catalog.Worker
	// epoch is that of the prefill workers. news is closed when it has changed.
	epoch uint64
	news  chan struct{}
	// held are the references which prefill engines keep blocks for, and fetched how often each was fetched.
	held, fetched map[string]int
	given         int
	calls         []string
	releases      []string // at any time
	// cached are the prompts which prefill workers have computed, by worker and length.
	cached map[string]bool
	// fail is asked before a call is served, and may fail it, or wait for its end.
	fail func(ctx context.Context, call string) error
	// first is the first token of every answer.
	first kv.Token
	// prompt is that of a request, split is what it asks for, overlap what every worker holds of a prompt, in blocks, and ttft the time to the first
	// token which is predicted of a worker.
	prompt  []kv.Token
	split   disagg.SplitSettings
	overlap int
	ttft    map[kv.WorkerID]time.Duration
}

const legAnswer = 4 // tokens

func newLegFleet(change func(c *engine.Card)) *legFleet {
	l := &legFleet{epoch: 1, news: make(chan struct{}), held: map[string]int{}, fetched: map[string]int{}, cached: map[string]bool{}, first: 100, prompt: []kv.Token{7, 8, 9, 10, 11}}
	card := func(_ kv.WorkerID, c *engine.Card) {
		c.Role, c.KVConnector, c.Numerics, c.BlockSize = engine.RoleDecode, engine.NIXLConnector, "n", 2
		if change != nil {
			change(c)
		}
	}
	l.fleet, l.d = newFleet(2, card)
	for _, id := range []kv.WorkerID{11, 12} {
		p := &engine.Card{Role: engine.RolePrefill, KVConnector: engine.NIXLConnector, Numerics: "n", BlockSize: 2}
		w := &catalog.Worker{Card: p}
		w.ID, w.Addr = id, fmt.Sprint("w", uint64(id))
		l.prefills = append(l.prefills, w)
	}
	l.d.Router, l.d.Plane, l.d.View = l, l, func() WorkerView { return l }
	l.d.Limits.MaxWait = time.Second
	l.d.Legs = LegsConfig{PrefillWait: 10 * time.Second, FirstTokenWait: 20 * time.Second, ReleaseWait: 5 * time.Second}
	return l
}

func (l *legFleet) model() *catalog.Model {
	return &catalog.Model{Workers: l.workers, PrefillWorkers: l.prefills}
}

func (l *legFleet) WorkerEpoch(id kv.WorkerID) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id > 10 {
		return l.epoch, true
	}
	return 1, true
}

// Superseded implements WorkerView.
func (l *legFleet) Superseded() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.news
}

// restartPrefill gives the prefill workers another epoch.
func (l *legFleet) restartPrefill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch++
	close(l.news)
	l.news = make(chan struct{})
}

// Route chooses the first worker of the role.
func (l *legFleet) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	from := l.workers
	if req.Role == route.PrefillWorkers {
		from = l.prefills
	}
	for _, w := range from {
		if !slices.Contains(req.Exclude, w.ID) && (req.Pin.ID == 0 || req.Pin.ID == w.ID) {
			l.fleet.held++
			return route.Decision{Worker: kv.Worker{ID: w.ID}, Addr: w.Addr, BlockSize: 2, OverlapBlocks: l.overlap, TTFT: l.ttft[w.ID]}, nil
		}
	}
	return route.Decision{}, errNoWorker
}

func (l *legFleet) Call(ctx context.Context, addr, _ string, body []byte, recv func(frame []byte) error) error {
	var req engine.Request
	if err := engine.DecodeRequest(body, &req); err != nil {
		return err
	}
	call := fmt.Sprintf("%s %s", addr, [...]string{"whole", "prefill", "decode"}[req.Leg])
	if req.Leg == engine.LegDecode && req.Stop.IgnoreEOS {
		call = addr + " release"
		if len(req.Prompt)+len(req.Generated) > 1 {
			call += " into the prefix cache" // what it fetches may be of another prompt
		}
	}
	l.noteCall(call)
	if err := l.failCall(ctx, call); err != nil {
		return err
	}
	send := func(d engine.Delta) error {
		d.Attempt = req.Attempt
		return recv(engine.AppendDelta(nil, &d))
	}
	have := 0
	if len(req.Generated) > 0 {
		have = len(req.Generated[0])
	}
	if req.Leg == engine.LegPrefill {
		if err := send(engine.Delta{Accepted: true}); err != nil {
			return err
		}
		d := engine.Delta{Pos: have, Tokens: []kv.Token{l.first + kv.Token(have)}, Cached: l.cachedOf(addr, len(req.Prompt)), Finish: engine.FinishLength}
		if l.first == 99 {
			d.Finish = engine.FinishStop
			return send(d)
		}
		d.Handoff = &engine.Handoff{Opaque: fmt.Appendf(nil, `{"ref":%q}`, l.keep(addr, len(req.Prompt)+have))}
		return send(d)
	}
	wrong := kv.Token(0)
	if req.Handoff != nil && !l.fetch(strings.Split(string(req.Handoff.Opaque), `"`)[3], len(req.Prompt)+have) {
		wrong = 1000 // of another prompt
	}
	if err := send(engine.Delta{Accepted: true}); err != nil {
		return err
	}
	if err := l.failCall(ctx, call+", accepted"); err != nil {
		return err
	}
	for pos := have; pos < min(legAnswer, req.Stop.MaxTokens); pos++ {
		d := engine.Delta{Pos: pos, Tokens: []kv.Token{l.first + kv.Token(pos) + wrong}}
		if pos == min(legAnswer, req.Stop.MaxTokens)-1 {
			d.Finish = engine.FinishLength
		}
		if err := send(d); err != nil {
			return err
		}
		if err := l.failCall(ctx, fmt.Sprint(call, " ", pos)); err != nil {
			return err
		}
	}
	return nil
}

// noteCall logs a call. Releases run beside the calls of the next attempt.
func (l *legFleet) noteCall(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasSuffix(call, "release") {
		l.releases = append(l.releases, call)
	} else {
		l.calls = append(l.calls, call)
	}
}

func (l *legFleet) failCall(ctx context.Context, call string) error {
	if l.fail == nil {
		return nil
	}
	return l.fail(ctx, call)
}

// cachedOf returns how many tokens of a prompt a prefill worker has cached, which has computed it then.
func (l *legFleet) cachedOf(addr string, tokens int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprint(addr, "/", tokens)
	if l.cached[key] {
		return tokens - 1
	}
	l.cached[key] = true
	return 2
}

// keep keeps the blocks of a prompt of so many tokens, and returns their reference.
func (l *legFleet) keep(addr string, tokens int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.given++
	ref := fmt.Sprint(addr, "/", l.given)
	l.held[ref] = tokens
	return ref
}

// fetch reports whether a reference has the blocks of a prompt of so many tokens, and frees them.
func (l *legFleet) fetch(ref string, tokens int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fetched[ref]++
	right := l.held[ref] == tokens
	delete(l.held, ref)
	return right
}

// allCalls returns the calls, the releases last.
func (l *legFleet) allCalls() string { return strings.Join(slices.Concat(l.calls, l.releases), "; ") }

// generate runs a request, and returns its answer.
func (l *legFleet) generate(ctx context.Context) (*sink, error) {
	g := &Generation{Request: engine.Request{Prompt: l.prompt, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: legAnswer}}}
	s := &sink{g: g}
	g.Request.Split = l.split
	g.Route, g.Workers, g.Sink = route.Request{ID: "r"}, l.model, s
	return s, l.d.Generate(ctx, g, 1)
}

var errDead = fault.New(fault.Unavailable, "dead")

// failAt fails the calls which are listed.
func failAt(err error, calls ...string) func(context.Context, string) error {
	return func(_ context.Context, call string) error {
		if slices.Contains(calls, call) {
			return err
		}
		return nil
	}
}

// hangAt lets the listed calls wait for their end.
func hangAt(calls ...string) func(context.Context, string) error {
	return func(ctx context.Context, call string) error {
		if !slices.Contains(calls, call) {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// TestLegs: whatever fails, the answer is the same as of a request which is served whole, no reference is fetched twice, and no
// blocks are left behind where the prefill worker lives.
func TestLegs(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(l *legFleet)
		calls  string
		cached int
		left   int // references whose blocks end with their lease
	}{
		{"two legs", nil, "w11 prefill; w1 decode", 2, 0},
		{
			"a prefill worker is killed", func(l *legFleet) { l.fail = failAt(errDead, "w11 prefill") },
			"w11 prefill; w12 prefill; w1 decode", 2, 0,
		},
		{
			"both are killed", func(l *legFleet) { l.fail = failAt(errDead, "w11 prefill", "w12 prefill") },
			"w11 prefill; w12 prefill; w1 whole", 0, 0,
		},
		{
			"a prefill worker is silent", func(l *legFleet) { l.fail = hangAt("w11 prefill") },
			"w11 prefill; w12 prefill; w1 decode", 2, 0,
		},
		{
			"a prefill engine knows no legs", func(l *legFleet) {
				l.fail = failAt(fault.New(fault.Unimplemented, "no legs"), "w11 prefill", "w12 prefill")
			},
			"w11 prefill; w12 prefill; w1 whole", 0, 0,
		},
		{
			"a prompt is refused", func(l *legFleet) { l.fail = failAt(fault.New(fault.Invalid, "too long"), "w11 prefill") },
			"w11 prefill; w1 whole", 0, 0,
		},
		{
			"the decode worker does not answer", func(l *legFleet) { l.fail = failAt(errDead, "w1 decode") },
			"w11 prefill; w1 decode; w11 prefill; w2 decode; w2 release", 2, 0,
		},
		{
			"the decode worker hangs before its engine has the leg", func(l *legFleet) { l.fail = hangAt("w1 decode") },
			"w11 prefill; w1 decode; w11 prefill; w2 decode", 2, 1,
		},
		{
			"the prefill worker restarts while the decode worker hangs", func(l *legFleet) {
				l.fail = func(ctx context.Context, call string) error {
					if call != "w1 decode" || l.epoch > 1 {
						return nil
					}
					time.Sleep(14 * time.Second) // virtual time (synctest): less than HandoffWait
					l.restartPrefill()
					<-ctx.Done()
					return ctx.Err()
				}
			},
			"w11 prefill; w1 decode; w12 prefill; w1 decode", 2, 1,
		},
		{
			"the decode worker is killed before its first token", func(l *legFleet) { l.fail = failAt(errDead, "w1 decode, accepted") },
			"w11 prefill; w1 decode; w11 prefill; w2 decode", 2, 0,
		},
		{
			"the decode worker is killed after its first token", func(l *legFleet) { l.fail = failAt(errDead, "w1 decode 1") },
			"w11 prefill; w1 decode; w11 prefill; w2 decode", 2, 0,
		},
		{
			"decode engines cannot fetch", func(l *legFleet) {
				l.fail = failAt(fault.New(fault.EngineError, "Internal server error"), "w1 decode")
			},
			"w11 prefill; w1 decode; w11 prefill; w1 decode; w1 whole", 0, 2,
		},
		{
			"the first token is late", func(l *legFleet) { l.fail = hangAt("w1 decode, accepted") },
			"w11 prefill; w1 decode; w1 whole", 0, 0,
		},
		{
			"no decode leg ends well", func(l *legFleet) {
				l.d.Limits.MaxFailures = 9
				l.fail = failAt(errDead, "w1 decode, accepted", "w2 decode, accepted")
			},
			"w11 prefill; w1 decode; w11 prefill; w2 decode; w1 whole", 0, 0,
		},
		{"the first token ends the answer", func(l *legFleet) { l.first = 99 }, "w11 prefill", 2, 0},
		{"no prefill workers", func(l *legFleet) { l.prefills = nil }, "w1 whole", 0, 0},
		{"prefill workers which the router refuses", func(l *legFleet) {
			for _, w := range l.prefills {
				w.Card.Numerics = "other"
			}
		}, "w1 whole", 0, 0},
		{"another connector", func(l *legFleet) {
			for _, w := range l.workers {
				w.Card.KVConnector = "of a later version"
			}
		}, "w1 whole", 0, 0},
		{"decided", func(l *legFleet) { l.split.Policy = new(disagg.NeverRemote) }, "w1 whole", 0, 0},
		{"a prefill worker goes away in its leg", func(l *legFleet) {
			l.d.Legs.Budget = l.d.Legs.PrefillWait // a leg which waits for its deadline is the last one
			l.fail = func(ctx context.Context, call string) error {
				if call != "w11 prefill" {
					return nil
				}
				l.restartPrefill()
				<-ctx.Done()
				return ctx.Err()
			}
		}, "w11 prefill; w12 prefill; w1 decode", 2, 0},
		{"a restart of the prefill worker between the legs", func(l *legFleet) {
			l.fail = func(_ context.Context, call string) error {
				if call == "w11 prefill" {
					l.restartPrefill()
				}
				return nil
			}
		}, "w11 prefill; w12 prefill; w1 decode", 2, 1},
		{"a restart of the prefill worker while the decode engine waits for its blocks", func(l *legFleet) {
			l.fail = func(ctx context.Context, call string) error {
				if call != "w1 decode, accepted" || l.epoch > 1 {
					return nil
				}
				l.restartPrefill()
				<-ctx.Done()
				return ctx.Err()
			}
		}, "w11 prefill; w1 decode; w12 prefill; w1 decode", 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLegFleet(nil)
				if tt.change != nil {
					tt.change(l)
				}
				s, err := l.generate(t.Context())
				want := "[100 101 102 103]"
				if l.first == 99 {
					want = "[99]"
				}
				if got := fmt.Sprint(s.got); got != want || err != nil {
					t.Errorf("%s, %v, want %s", got, err, want)
				}
				if calls := l.allCalls(); calls != tt.calls {
					t.Errorf("the calls were\n     %s\nwant %s", calls, tt.calls)
				}
				if by := s.g.PrefillWorker.ID; (by != 0) != (tt.cached > 0) || by != 0 && !strings.Contains(tt.calls, fmt.Sprintf("w%d prefill", uint64(by))) {
					t.Errorf("the prompt was computed by %d", by)
				}
				if s.g.Cached != tt.cached {
					t.Errorf("%d tokens are reported as cached, want %d", s.g.Cached, tt.cached)
				}
				l.check(t, tt.left)
			})
		})
	}
}

// TestLegsPolicy: what is set about where prompts are computed decides whether a request is divided. The prompt has five
// tokens.
func TestLegsPolicy(t *testing.T) {
	policy := func(p disagg.SplitPolicy) disagg.SplitSettings { return disagg.SplitSettings{Policy: &p} }
	local := func(n int) disagg.SplitSettings { return disagg.SplitSettings{MaxLocalPrefillLength: &n} }
	for _, tt := range []struct {
		name    string
		split   disagg.SplitSettings
		overlap int
		divided bool
	}{
		{"nothing is set", disagg.SplitSettings{}, 0, true},
		{"cost", policy(disagg.ByCost), 0, true},
		{"always", policy(disagg.AlwaysRemote), 0, true},
		{"always, and a block is held", policy(disagg.AlwaysRemote), 1, true},
		{"always, and all blocks are held", policy(disagg.AlwaysRemote), 2, false},
		{"never", policy(disagg.NeverRemote), 0, false},
		{"threshold", policy(disagg.ByThreshold), 0, false},
		{"longer than the limit", local(4), 0, true},
		{"as long as the limit", local(5), 0, false},
		{"longer than the limit without the cached tokens", local(2), 1, true},
		{"as long as the limit without the cached tokens", local(3), 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLegFleet(nil)
			l.split, l.overlap = tt.split, tt.overlap
			want := "w1 whole"
			if tt.divided {
				want = "w11 prefill; w1 decode"
			}
			if _, err := l.generate(t.Context()); err != nil || l.allCalls() != want {
				t.Errorf("%s: the calls were %s, want %s, %v", tt.name, l.allCalls(), want, err)
			}
		})
	}
}

// waitOfLeg returns for how long each call of a leg which gives nothing was left waiting, if the router predicts a time to
// the first token of its worker. A stream may be silent for five minutes. The prompt has so many tokens.
func waitOfLeg(t *testing.T, call string, worker kv.WorkerID, tokens int, predicted time.Duration) (took []time.Duration, calls string) {
	synctest.Test(t, func(t *testing.T) {
		l := newLegFleet(nil)
		l.prompt = make([]kv.Token, tokens)
		l.d.Legs, l.d.StallTimeout = LegsConfig{}, 5*time.Minute
		l.ttft = map[kv.WorkerID]time.Duration{worker: predicted}
		l.fail = func(ctx context.Context, at string) error {
			if at != call {
				return nil
			}
			began := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(began)) // virtual
			return ctx.Err()
		}
		s, err := l.generate(t.Context())
		if err != nil || len(s.got) != legAnswer {
			t.Errorf("%s, with %v predicted: %d tokens, %v", call, predicted, len(s.got), err)
		}
		calls = l.allCalls()
	})
	return took, calls
}

// TestLegsWait: a prefill leg which gives nothing is given up after eight times the time which the router predicts of its
// worker, and as long as a stream may be silent at most. Before the router has learned how slow the worker is, the leg has
// a minute and 0.1 s for each token of the prompt: one which is given up teaches nothing.
func TestLegsWait(t *testing.T) {
	for _, tt := range []struct {
		tokens          int
		predicted, want time.Duration
	}{
		{5, 0, 5 * time.Minute},
		{5, time.Millisecond, 60*time.Second + 500*time.Millisecond},
		{5, 10 * time.Second, 80 * time.Second},
		{5, time.Hour, 5 * time.Minute},
		{1000, time.Millisecond, 160 * time.Second},
		{1000, 25 * time.Second, 200 * time.Second},
		{100_000, time.Millisecond, 5 * time.Minute},
	} {
		if took, calls := waitOfLeg(t, "w11 prefill", 11, tt.tokens, tt.predicted); !slices.Equal(took, []time.Duration{tt.want}) {
			t.Errorf("%d tokens, with %v predicted: given up after %v, want %v: %s", tt.tokens, tt.predicted, took, tt.want, calls)
		}
	}
}

// TestSilenceBoundsPrefillLeg: a leg is never given more time than a stream may be silent, though PrefillWait is longer.
func TestSilenceBoundsPrefillLeg(t *testing.T) {
	d := &Dispatcher{StallTimeout: 2 * time.Minute, Legs: LegsConfig{PrefillWait: time.Hour}}
	for predicted, want := range map[time.Duration]time.Duration{0: 0, time.Second: 2 * time.Minute, time.Hour: 2 * time.Minute} {
		if got := d.boundPrefill(&route.Decision{TTFT: predicted}, 10_000); got != want {
			t.Errorf("with %v predicted: %v, want %v", predicted, got, want)
		}
	}
}

// TestDecodeLegWaits: a decode leg may be silent as long as a stream may be, whatever is predicted: its engine may have no
// memory for it yet. What it waits for is no fault of the prefill worker.
func TestDecodeLegWaits(t *testing.T) {
	for _, predicted := range []time.Duration{0, time.Millisecond, time.Hour} {
		took, calls := waitOfLeg(t, "w1 decode, accepted", 1, 5, predicted)
		if len(took) == 0 || slices.ContainsFunc(took, func(d time.Duration) bool { return d != 5*time.Minute }) {
			t.Errorf("with %v predicted: given up after %v: %s", predicted, took, calls)
		}
	}
}

// check checks that nothing is left of a request, and that no reference was used twice.
func (l *legFleet) check(t *testing.T, left int) {
	t.Helper()
	if l.fleet.held != 0 || len(l.held) != left {
		t.Errorf("%d reservations and the blocks of %v are left", l.fleet.held, l.held)
	}
	for ref, n := range l.fetched {
		if n > 1 {
			t.Errorf("%s was fetched %d times", ref, n)
		}
	}
}

// TestLegsReservations: the router is told of both legs, each under a reservation of its own, and the prompt is no load of the
// decode worker.
func TestLegsReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLegFleet(nil)
		if _, err := l.generate(t.Context()); err != nil {
			t.Fatal(err)
		}
		const want = "r/1 prefilled -1; r prefill/16 first 2; r prefill/16 freed 1; r/1 first 0; r/1 output 2; r/1 output 2; r/1 freed 4"
		if log := strings.Join(l.log, "; "); log != want {
			t.Errorf("the router heard %s\nwant %s", log, want)
		}
	})
}

// TestLegsCancelled: a request whose client goes away leaves no blocks behind, whenever that is.
func TestLegsCancelled(t *testing.T) {
	for _, tt := range []struct{ at, calls string }{
		{"w11 prefill", "w11 prefill"},
		{"w1 decode", "w11 prefill; w1 decode; w1 release"},
		{"w1 decode, accepted", "w11 prefill; w1 decode"},
		{"w1 decode 1", "w11 prefill; w1 decode"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLegFleet(nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l.fail = func(in context.Context, call string) error {
				if call != tt.at {
					return nil
				}
				cancel()
				<-in.Done()
				return in.Err()
			}
			if _, err := l.generate(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", tt.at, err)
			}
			if calls := l.allCalls(); calls != tt.calls {
				t.Errorf("%s: the calls were %s, want %s", tt.at, calls, tt.calls)
			}
			l.check(t, 0)
		})
	}
}

// TestPrefillPin: the worker which a request names computes its prompt; if there is none of that id, the decode
// worker does.
func TestPrefillPin(t *testing.T) {
	for pin, want := range map[kv.WorkerID]string{12: "w12 prefill; w1 decode", 13: "w1 whole"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLegFleet(nil)
			g := &Generation{Request: engine.Request{Prompt: []kv.Token{7, 8, 9, 10, 11}, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: legAnswer}}}
			g.Route, g.Workers, g.Sink = route.Request{ID: "r", PrefillPin: pin}, l.model, &sink{g: g}
			err := l.d.Generate(t.Context(), g, 1)
			if calls := l.allCalls(); err != nil || calls != want {
				t.Errorf("pinned to %d: %s, %v", pin, calls, err)
			}
		})
	}
}

// hintingRouter adds holders to the decisions of a legFleet.
type hintingRouter struct {
	*legFleet
	holders []kv.PrefixHolder
}

func (r hintingRouter) Route(ctx context.Context, req *route.Request) (route.Decision, error) {
	d, err := r.legFleet.Route(ctx, req)
	d.Prefill = r.holders
	return d, err
}

// requestPlane keeps what requests tell of prefill workers.
type requestPlane struct {
	*legFleet
	hints *[]engine.PrefillHint
}

func (p requestPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	var req engine.Request
	if err := engine.DecodeRequest(body, &req); err != nil {
		return err
	}
	*p.hints = append(*p.hints, req.Prefill)
	return p.legFleet.Call(ctx, addr, method, body, recv)
}

// TestPrefillHint: a decode worker which asks prefill workers itself is told which of them hold the prompt, and which one
// the request names. Others are told nothing.
func TestPrefillHint(t *testing.T) {
	holders := []kv.PrefixHolder{{Worker: 12, Tokens: 4}, {Worker: 11, Tokens: 2}}
	for _, tt := range []struct {
		name   string
		change func(*engine.Card)
		want   engine.PrefillHint
	}{
		{"it exchanges blocks", func(c *engine.Card) { c.KVConnector, c.Exchange = "", &disagg.Metadata{} }, engine.PrefillHint{Pin: 11, Holders: holders}},
		{"it does not", func(c *engine.Card) { c.KVConnector = "" }, engine.PrefillHint{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLegFleet(tt.change)
			var hints []engine.PrefillHint
			l.d.Router, l.d.Plane = hintingRouter{l, holders}, requestPlane{l, &hints}
			g := &Generation{Request: engine.Request{Prompt: []kv.Token{7, 8, 9, 10, 11}, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: legAnswer}}}
			g.Route, g.Workers, g.Sink = route.Request{ID: "r", PrefillPin: 11}, l.model, &sink{g: g}
			if err := l.d.Generate(t.Context(), g, 1); err != nil || len(hints) != 1 || hints[0].Pin != tt.want.Pin || !slices.Equal(hints[0].Holders, tt.want.Holders) {
				t.Errorf("%s: it is told %+v, %v", tt.name, hints, err)
			}
		})
	}
}
