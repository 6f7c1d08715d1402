package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// TestSaltAnswers checks that only hits under the same salt, before and after misses under other salts, prove
// isolation.
func TestSaltAnswers(t *testing.T) {
	const unknown = engine.CachedUnknown
	for _, c := range []struct {
		name string
		of   saltProof
		want saltState
	}{
		{"kept apart", saltProof{0, 64, 0, 0, 64}, saltsIsolated},
		{"chance and templates", saltProof{1, 64, 20, 31, 63}, saltsIsolated},
		{"no word of none", saltProof{unknown, 64, unknown, unknown, 64}, saltsIsolated},
		{"another salt", saltProof{0, 64, 64, 0, 64}, saltsShared},
		{"no salt", saltProof{0, 64, 0, 64, 64}, saltsShared},
		{"as real SGLang 0.5.17 with cache_salt", saltProof{1, 249, 249, 249, 249}, saltsShared},
		{"nothing reported", saltProof{unknown, unknown, unknown, unknown, unknown}, saltsUnproven},
		{"nothing reused", saltProof{0, 0, 0, 0, 0}, saltsUnproven},
		{"everything is cached", saltProof{64, 64, 64, 64, 64}, saltsUnproven},
		{"forgotten meanwhile", saltProof{0, 64, 0, 0, 0}, saltsUnproven},
	} {
		if got := c.of.verdict(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// salted is plain with a salt: {"s":salt,"p":[tokens]}.
type salted struct{ plain }

func (salted) BuildCall(p *SubRequest, call *Call) error {
	call.Path = "/tokens"
	call.Large.B = fmt.Appendf(call.Large.B, `{"s":%q,"p":%s}`, p.Request.Salt.Namespace, strictjson.AppendTokens(nil, p.Request.Prompt))
	return nil
}

// tenants is an engine that isolates salts, or not.
type tenants struct {
	sync.Mutex
	seen   map[string]bool
	ignore bool
	status int            // of the responses to salted requests, if not 0
	hold   chan struct{}  // what salted requests wait for, if not nil
	asked  map[string]int // prompts by salt
}

func (e *tenants) serve(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Salt   string     `json:"s"`
		Prompt []kv.Token `json:"p"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.Lock()
	hold, status := e.hold, e.status
	e.Unlock()
	if q.Salt != "" && hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	if q.Salt != "" && status != 0 {
		w.WriteHeader(status)
		return
	}
	e.Lock()
	defer e.Unlock()
	if e.seen == nil {
		e.seen, e.asked = map[string]bool{}, map[string]int{}
	}
	e.asked[q.Salt]++
	if e.ignore {
		q.Salt = ""
	}
	key, cached := fmt.Sprint(q.Salt, q.Prompt), 0
	if e.seen[key] {
		cached = len(q.Prompt) - 1
	}
	e.seen[key] = true
	events(w, fmt.Sprintf(`{"i":0,"t":[5],"f":"length","c":%d}`, cached))
}

func (e *tenants) set(change func()) {
	e.Lock()
	defer e.Unlock()
	change()
}

func underSalt(salt string) *engine.Request {
	req := testRequest(1)
	req.Salt.Namespace = salt
	return req
}

func wantNoSalts(t *testing.T, what string, err error, says string) {
	t.Helper()
	if f := (*fault.Error)(nil); !errors.As(err, &f) || f.Code != fault.Ineligible || f.Param != "cache_salt" || !strings.Contains(f.Message, says) {
		t.Errorf("%s: %v, want it refused with %q", what, err, says)
	}
}

// TestSaltsWaitForProof checks that a request with a salt waits for the proof, and is refused if that takes
// long; others do not wait.
func TestSaltsWaitForProof(t *testing.T) {
	e := &tenants{hold: make(chan struct{})}
	s := serve(t, e.serve)
	b := base(t, s.URL, func(c *Config) { c.Dialect, c.ProveSalts = salted{}, true })
	if _, err := deltas(b, testRequest(1)); err != nil {
		t.Errorf("a request without a salt, before the proof: %v", err)
	}
	served := make(chan error, 1)
	go func() {
		_, err := deltas(b, underSalt("tenant"))
		served <- err
	}()
	select {
	case err := <-served:
		t.Fatalf("a request under a salt, before the proof: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(e.hold)
	if err := <-served; err != nil {
		t.Errorf("a request under a salt, after the proof: %v", err)
	}
	if w := b.saltWarnings(); w != nil {
		t.Errorf("warnings %v", w)
	}
	if s := b.Stats(); s.Compared != 2 || s.Calls != 2 {
		t.Errorf("the proof counts: %+v", s)
	}
}

func TestSaltsProofTakesLong(t *testing.T) {
	e := &tenants{hold: make(chan struct{})}
	s := serve(t, e.serve)
	b := base(t, s.URL, func(c *Config) { c.Dialect = salted{} }, func(b *Base) { b.salts.wait = time.Millisecond })
	_, err := deltas(b, underSalt("tenant"))
	wantNoSalts(t, "while the proof goes on", err, "try again in a moment")
	close(e.hold)
}

// TestSaltsProvenAgain checks that a restarted engine is proven again.
func TestSaltsProvenAgain(t *testing.T) {
	e := &tenants{}
	s := serve(t, e.serve)
	b := base(t, s.URL, func(c *Config) { c.Dialect, c.SaltsRemedy = salted{}, "take another one" })
	if _, err := deltas(b, underSalt("tenant")); err != nil {
		t.Fatal(err)
	}
	e.set(func() { e.ignore = true })
	b.salts.invalidateProofs()
	_, err := deltas(b, underSalt("tenant"))
	wantNoSalts(t, "an engine that ignores salts now", err, "take another one")
	if w := b.saltWarnings(); len(w) != 1 || w[0].Code != engine.WarnSaltsRefused || w[0].Remedy != "take another one" {
		t.Errorf("warnings %v", w)
	}
	if _, err := deltas(b, testRequest(1)); err != nil {
		t.Errorf("a request without a salt: %v", err)
	}
}

// TestSaltsRefusedByEngine checks that an engine that refuses the field serves no salts, and that an
// overloaded one is asked again.
func TestSaltsRefusedByEngine(t *testing.T) {
	e := &tenants{status: http.StatusBadRequest}
	s := serve(t, e.serve)
	b := base(t, s.URL, func(c *Config) { c.Dialect = salted{} })
	_, err := deltas(b, underSalt("tenant"))
	wantNoSalts(t, "an engine that refuses the field", err, "it refuses the field")

	e = &tenants{status: http.StatusTooManyRequests}
	s = serve(t, e.serve)
	b = base(t, s.URL, func(c *Config) { c.Dialect = salted{} }, func(b *Base) {
		b.salts.wait, b.salts.retryMin = 10*time.Millisecond, time.Millisecond
	})
	_, err = deltas(b, underSalt("tenant"))
	wantNoSalts(t, "an engine without room", err, "has not ended")
	b.salts.wait = time.Minute
	e.set(func() { e.status = 0 })
	if _, err = deltas(b, underSalt("tenant")); err != nil {
		t.Errorf("an engine with room again: %v", err)
	}
}

// TestSaltsKnown checks that no proof runs for what the adapter knows.
func TestSaltsKnown(t *testing.T) {
	e := &tenants{}
	s := serve(t, e.serve)
	ignores := base(t, s.URL, func(c *Config) { c.Dialect, c.Salts, c.ProveSalts = salted{}, SaltsIgnored, true })
	_, err := deltas(ignores, underSalt("tenant"))
	wantNoSalts(t, "an engine that is known to ignore salts", err, "ask without cache_salt")
	moot := base(t, s.URL, func(c *Config) { c.Dialect, c.Salts, c.ProveSalts = salted{}, SaltsUnneeded, true })
	if _, err := deltas(moot, underSalt("tenant")); err != nil {
		t.Errorf("an engine that reuses nothing: %v", err)
	}
	e.set(func() {
		if len(e.asked) != 1 || e.asked["tenant"] != 1 {
			t.Errorf("it was asked %v", e.asked)
		}
	})
}

// TestProofPrompts checks that the prompt of a proof has at least four blocks, and that none is like another.
func TestProofPrompts(t *testing.T) {
	s := serve(t, (&tenants{}).serve)
	b := base(t, s.URL, func(c *Config) { c.Card.ContextLength = 4096 })
	one, other := b.randomPrompt(), b.randomPrompt()
	if size := b.Card().BlockSize; len(one) <= 4*size || slices.Equal(one[:size], other[:size]) {
		t.Errorf("prompts %v and %v, of blocks of %d tokens", one, other, size)
	}
	if one, other := b.randomText(), b.randomText(); len(strings.Fields(one)) < 4*b.Card().BlockSize || one[:20] == other[:20] {
		t.Errorf("texts %q and %q", one, other)
	}
}

// TestSaltBodies checks that every passthrough path has a proof.
func TestSaltBodies(t *testing.T) {
	for _, path := range []string{pathChat, pathCompletions, "/v1/messages", "/v1/responses"} {
		body, err := saltBody(path, "m", []byte(`"text"`), "s")
		var all map[string]any
		if err != nil || json.Unmarshal(body, &all) != nil || all["cache_salt"] != "s" || all["model"] != "m" {
			t.Errorf("%s: %s, %v", path, body, err)
		}
	}
	if _, err := saltBody("/v1/rerank", "m", nil, "s"); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("an unknown path: %v", err)
	}
}

// TestSaltsOfOneLife checks that a proof which started before a restart of the engine does not count.
func TestSaltsOfOneLife(t *testing.T) {
	e := &tenants{}
	last, goOn := make(chan struct{}), make(chan struct{})
	var questions atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if questions.Add(1) == 5 { // the last of the first proof
			close(last)
			<-goOn
		}
		e.serve(w, r)
	})
	b := base(t, s.URL, func(c *Config) { c.Dialect, c.ProveSalts = salted{}, true })
	<-last
	e.set(func() { e.ignore = true })
	b.salts.invalidateProofs()
	close(goOn)
	_, err := deltas(b, underSalt("tenant"))
	wantNoSalts(t, "an engine that reuses across salts since its new start", err, "it reuses for one salt what it cached for another")
}

// TestAwaitStartChecks checks that the result of the first proof is there when AwaitStartChecks returns.
func TestAwaitStartChecks(t *testing.T) {
	e := &tenants{ignore: true, hold: make(chan struct{})}
	s := serve(t, e.serve)
	b := base(t, s.URL, func(c *Config) { c.Dialect, c.ProveSalts = salted{}, true })
	over, cancel := context.WithCancel(t.Context())
	cancel()
	b.AwaitStartChecks(over) // it ends with its context
	ended := make(chan struct{})
	go func() {
		b.AwaitStartChecks(t.Context())
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("it returns before the proof")
	default:
	}
	close(e.hold)
	<-ended
	if w := b.Warnings(); !slices.ContainsFunc(w, func(w engine.Warning) bool { return w.Code == engine.WarnSaltsRefused }) {
		t.Errorf("warnings %v", w)
	}
}
