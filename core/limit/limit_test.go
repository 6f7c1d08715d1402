package limit

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"penstock/core/kv"
)

// twin is an account which remembers everything: for every call it replays all that happened, in exact
// arithmetic.
type twin struct {
	limits   Limits
	from     kv.Mono
	requests []use
	tokens   []use
	inflight int
}

type use struct {
	at kv.Mono
	n  int64
}

// level returns the level at now of a bucket which was full at from.
func level(limit int, from, now kv.Mono, uses []use) *big.Rat {
	full := big.NewRat(int64(limit), 1)
	have, last := new(big.Rat).Set(full), from
	fill := func(to kv.Mono) {
		gained := new(big.Rat).Mul(full, big.NewRat(int64(to.Sub(last)), int64(time.Minute)))
		if have.Add(have, gained).Cmp(full) > 0 {
			have.Set(full)
		}
		last = to
	}
	for _, u := range uses {
		fill(u.at)
		have.Sub(have, big.NewRat(u.n, 1))
	}
	fill(now)
	return have
}

func (w *twin) enter(now kv.Mono) LimitKind {
	one := big.NewRat(1, 1)
	l := w.limits
	switch {
	case l.MaxInflight > 0 && w.inflight >= l.MaxInflight:
		return Inflight
	case l.TokensPerMinute > 0 && level(l.TokensPerMinute, w.from, now, w.tokens).Cmp(one) < 0:
		return Tokens
	case l.RequestsPerMinute > 0 && level(l.RequestsPerMinute, w.from, now, w.requests).Cmp(one) < 0:
		return Requests
	}
	w.requests = append(w.requests, use{now, 1})
	w.inflight++
	return None
}

// TestAgainstTwin compares an account with its twin: they admit the same requests at the same times, and a
// request which waits for the reported time is admitted then and not a microsecond before.
func TestAgainstTwin(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func(most int) int { return r.IntN(most) * r.IntN(2) }
		l := Limits{RequestsPerMinute: some(40), TokensPerMinute: some(5000), MaxInflight: some(5)}
		now := kv.Mono(r.Int64N(1e15) * 1000)
		a, w := New(now, l), &twin{limits: l, from: now}
		seen := map[LimitKind]int{}
		for step := range 120 {
			now = now.Add(time.Duration(r.Int64N(int64(4*time.Second))) * time.Duration(r.IntN(2)))
			now -= now % 1000
			switch r.IntN(4) {
			case 0:
				n := r.IntN(400)
				a.SpendTokens(now, n)
				w.tokens = append(w.tokens, use{now, int64(n)})
			case 1:
				if w.inflight > 0 {
					a.Release()
					w.inflight--
				}
			default:
				v := a.Admit(now)
				if want := w.enter(now); v.Exceeded != want {
					t.Fatalf("seed %d, step %d, %+v: %v, want %v", seed, step, l, v.Exceeded, want)
				}
				seen[v.Exceeded]++
				if (v.Exceeded == Requests || v.Exceeded == Tokens) != (v.Wait > 0) {
					t.Fatalf("seed %d, step %d: over %v and to wait %v", seed, step, v.Exceeded, v.Wait)
				}
				if v.Wait > 0 {
					then := *a
					if early := then.Admit(now.Add(v.Wait - time.Microsecond)); early.Exceeded != v.Exceeded {
						t.Fatalf("seed %d, step %d: let in before the wait of %v is over", seed, step, v.Wait)
					}
					if later := then.Admit(now.Add(v.Wait)); later.Exceeded == v.Exceeded {
						t.Fatalf("seed %d, step %d: still over %v after %v", seed, step, v.Exceeded, v.Wait)
					}
				}
			}
			if err := a.Check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		if seen[None] == 0 {
			t.Fatalf("seed %d: nothing was let in", seed)
		}
	}
}

// TestNothingIsLostToRounding: a bucket which is refilled all the time is as full as one which is not.
func TestNothingIsLostToRounding(t *testing.T) {
	for _, limit := range []int{1, 7, 60, 999_983, MaxLimit} {
		a := New(0, Limits{TokensPerMinute: limit})
		a.SpendTokens(0, 2*limit)
		r := rand.New(rand.NewPCG(uint64(limit), 1))
		var now kv.Mono
		const end = kv.Mono(90 * time.Second)
		for now < end {
			now = min(end, now+kv.Mono(r.Int64N(200_000)))
			a.SpendTokens(now, 0)
		}
		if got, want := a.tokens.level, -int64(limit)*partsPerUnit/2+int64(limit)*partsPerUnit; got != want {
			t.Errorf("limit %d: the level is %d after 90 s, want %d", limit, got, want)
		}
	}
}

// TestExtremes: numbers at the ends of their ranges do not wrap around.
func TestExtremes(t *testing.T) {
	const late = kv.Mono(1<<63 - 1)
	a := New(-late, Limits{RequestsPerMinute: MaxLimit, TokensPerMinute: MaxLimit})
	for range 3 {
		a.SpendTokens(-late, 1<<62)
	}
	if v := a.Admit(-late); v.Exceeded != Tokens || v.Wait < 49*time.Minute || v.Wait > 51*time.Minute {
		t.Errorf("a bucket that owes as much as it can: %+v", v)
	}
	if v := a.Admit(-late + kv.Mono(time.Hour)); v.Exceeded != None {
		t.Errorf("an hour later: %+v", v)
	}
	b := New(0, Limits{TokensPerMinute: 1})
	b.SpendTokens(0, 1<<62)
	for _, now := range []kv.Mono{-5, late} { // a clock which goes back counts as stopped
		if v := b.Admit(now); v.Exceeded != Tokens || v.Wait != maxWait {
			t.Errorf("at %d: %+v", now, v)
		}
	}
	if err := errorsOf(a, b); err != nil {
		t.Error(err)
	}
}

func errorsOf(all ...*Account) error {
	for _, a := range all {
		if err := a.Check(); err != nil {
			return err
		}
	}
	return nil
}

// TestSet: new limits apply at once, and what was used stays used.
func TestSet(t *testing.T) {
	a := New(0, Limits{RequestsPerMinute: 10})
	for range 10 {
		if v := a.Admit(0); v.Exceeded != None {
			t.Fatal(v)
		}
	}
	for _, step := range []struct {
		l    Limits
		want LimitKind
	}{
		{Limits{RequestsPerMinute: 10}, Requests},
		{Limits{RequestsPerMinute: 11}, None},
		{Limits{RequestsPerMinute: 5}, Requests},
		{Limits{MaxInflight: 11}, Inflight},
		{Limits{}, None},
		{Limits{RequestsPerMinute: 1}, None}, // requests were not limited before
		{Limits{RequestsPerMinute: 1}, Requests},
	} {
		a.SetLimits(0, step.l)
		if v := a.Admit(0); v.Exceeded != step.want {
			t.Errorf("%+v: %v, want %v", step.l, v.Exceeded, step.want)
		}
		if err := a.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, l := range []Limits{{RequestsPerMinute: -1}, {TokensPerMinute: MaxLimit + 1}, {MaxInflight: -5}} {
		if l.Validate() == nil {
			t.Errorf("%+v is valid", l)
		}
	}
	if err := (&Limits{MaxLimit, MaxLimit, 0}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestNoAllocation(t *testing.T) {
	a := New(0, Limits{100, 100, 100})
	var now kv.Mono
	if n := testing.AllocsPerRun(100, func() {
		now = now.Add(time.Millisecond)
		if a.Admit(now).Exceeded == None {
			a.SpendTokens(now, 3)
			a.Release()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
