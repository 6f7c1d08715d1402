package queue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/fault"
	"penstock/core/kv"
)

func mustQueue(t testing.TB, cfg Config) *Queue {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func mustPush(t testing.TB, q *Queue, at time.Duration, name string, item QueuedRequest) *Entry {
	t.Helper()
	e, err := q.Push(kv.Mono(at), item, name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// drain offers all entries at a time and returns their names in order.
func drain(q *Queue, at time.Duration) string {
	var names []string
	q.OfferHeads(kv.Mono(at), func(e *Entry) (float64, bool) {
		names = append(names, e.Value.(string))
		return 0, true
	})
	return strings.Join(names, " ")
}

func TestFCFS(t *testing.T) {
	q := mustQueue(t, Config{})
	mustPush(t, q, 2*time.Second, "second", QueuedRequest{})
	mustPush(t, q, 3*time.Second, "third", QueuedRequest{})
	mustPush(t, q, 4*time.Second, "jumped", QueuedRequest{Priority: Priority{Jump: 3 * time.Second}})
	mustPush(t, q, 4*time.Second, "humble", QueuedRequest{Priority: Priority{Jump: -time.Hour}})
	mustPush(t, q, 5*time.Second, "strict", QueuedRequest{Priority: Priority{Strict: 1}})
	if got, want := drain(q, 5*time.Second), "strict jumped second third humble"; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

func TestWSPT(t *testing.T) {
	q := mustQueue(t, Config{Policy: WSPT})
	mustPush(t, q, 0, "long", QueuedRequest{Tokens: 1000})
	mustPush(t, q, 1, "short", QueuedRequest{Tokens: 100})
	mustPush(t, q, 2, "cached", QueuedRequest{Tokens: 1000, Cached: 950})
	mustPush(t, q, 3, "heavy", QueuedRequest{Tokens: 1000, Priority: Priority{Jump: 99 * time.Second}})
	mustPush(t, q, 4, "nothing left", QueuedRequest{Tokens: 10, Cached: 64})
	if got, want := drain(q, time.Second), "nothing left heavy cached short long"; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// TestTypical: for a prompt of 1,024 tokens of which workers have 10, 20, 50 and 60 blocks of 16, 224 tokens
// count as left.
func TestTypical(t *testing.T) {
	q := mustQueue(t, Config{Policy: WSPT})
	for _, c := range []struct {
		depths []int
		left   float64
	}{
		{[]int{60, 10, 50, 20}, 224},
		{nil, 1024},
		{[]int{64}, 1}, // if nothing is left, one token is
		{[]int{1, 2}, 1024 - 32},
		{[]int{1, 2, 3}, 1024 - 48},
		{[]int{5, 4, 3, 2, 1}, 1024 - 64},
	} {
		item := QueuedRequest{Tokens: 1024, Cached: 16 * TypicalDepth(c.depths)}
		if got := q.sortKey(0, &item); got != 1/c.left {
			t.Errorf("depths %v: the key is 1/%g, want 1/%g", c.depths, 1/got, c.left)
		}
	}
}

// TestNoEntryStarves: entries past their patience go before all others, in the order of deadlines, although
// more important requests keep arriving.
func TestNoEntryStarves(t *testing.T) {
	for _, policy := range []Policy{FCFS, WSPT} {
		q := mustQueue(t, Config{Policy: policy, Patience: 10 * time.Second})
		mustPush(t, q, 0, "low", QueuedRequest{Tokens: 100_000})
		second, served := 0, 0
		for ; served == 0; second++ {
			if second > 20 {
				t.Fatalf("%s: not served within %d s", policy, second)
			}
			at := time.Duration(second) * time.Second
			mustPush(t, q, at, "high", QueuedRequest{Tokens: 1, Priority: Priority{Strict: 7, Jump: time.Hour}})
			first := ""
			q.OfferHeads(kv.Mono(at), func(e *Entry) (float64, bool) { // room for one entry
				if first != "" {
					return 0, false
				}
				first = e.Value.(string)
				return 0, true
			})
			if first == "low" {
				served = second
			}
		}
		if served != 10 {
			t.Errorf("%s: served after %d s, want 10", policy, served)
		}
	}
	q := mustQueue(t, Config{Patience: 10 * time.Second})
	mustPush(t, q, 0, "low", QueuedRequest{})
	mustPush(t, q, 4*time.Second, "high", QueuedRequest{Priority: Priority{Strict: 1}}) // past its deadline at 9 s
	mustPush(t, q, 8*time.Second, "later", QueuedRequest{})
	if got, want := drain(q, time.Minute), "high low later"; got != want {
		t.Errorf("all overdue: the order is %q, want %q", got, want)
	}
}

func TestFullQueueRefuses(t *testing.T) {
	q := mustQueue(t, Config{MaxEntries: 2, Patience: 40 * time.Second})
	first := mustPush(t, q, 0, "a", QueuedRequest{Tokens: 5})
	mustPush(t, q, 0, "b", QueuedRequest{Tokens: 5})
	_, err := q.Push(0, QueuedRequest{}, "c")
	refused(t, err)
	if !q.Remove(first) || q.Remove(first) {
		t.Error("an entry is to be removed once")
	}
	mustPush(t, q, 0, "c", QueuedRequest{})

	q = mustQueue(t, Config{MaxTokens: 100})
	big := mustPush(t, q, 0, "larger than all", QueuedRequest{Tokens: 500})
	_, err = q.Push(0, QueuedRequest{Tokens: 1}, "d")
	refused(t, err)
	q.Remove(big)
	mustPush(t, q, 0, "e", QueuedRequest{Tokens: 60})
	mustPush(t, q, 0, "f", QueuedRequest{Tokens: 40})
	_, err = q.Push(0, QueuedRequest{Tokens: 1}, "g")
	refused(t, err)
}

// TestClientsShareTheDepth: one client cannot fill the queue. Others find room, and get as much of it as the first one
// once it has less.
func TestClientsShareTheDepth(t *testing.T) {
	for _, cfg := range []Config{{MaxEntries: 90}, {MaxEntries: 1000, MaxTokens: 900}} {
		q := mustQueue(t, cfg)
		fill := func(client uint64) (entries []*Entry) {
			for {
				e, err := q.Push(0, QueuedRequest{Client: client, Tokens: 10}, "")
				if err != nil {
					refused(t, err)
					if want := map[bool]string{true: "requests without an API key", false: "requests of this API key"}[client == 0]; !strings.Contains(err.Error(), want) {
						t.Errorf("%v, want %s", err, want)
					}
					return entries
				}
				entries = append(entries, e)
			}
		}
		first, second := fill(0), fill(2)
		if len(first) != 80 || len(second) < 8 || len(second) > 10 {
			t.Errorf("one client has %d of 90 entries, and the next one %d", len(first), len(second))
		}
		for _, e := range first[:40] {
			q.Remove(e)
		}
		if n := len(second) + len(fill(2)); n < 40 || n > 45 {
			t.Errorf("once the first one has 40 of 90 entries, the second one has %d", n)
		}
		if err := q.Check(); err != nil {
			t.Error(err)
		}
	}
}

func refused(t *testing.T, err error) {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Code != fault.Overloaded || f.RetryAfter < time.Second {
		t.Errorf("the refusal is %#v, want Overloaded with a time to try again", err)
	}
}

// TestLanesDoNotWaitForEachOther: a head which cannot be placed delays only its own lane.
func TestLanesDoNotWaitForEachOther(t *testing.T) {
	q := mustQueue(t, Config{})
	mustPush(t, q, 0, "pinned", QueuedRequest{Lane: 9, Priority: Priority{Strict: 3}})
	mustPush(t, q, 1, "pinned too", QueuedRequest{Lane: 9})
	mustPush(t, q, 2, "any", QueuedRequest{})
	mustPush(t, q, 3, "any too", QueuedRequest{})
	var asked []string
	n := q.OfferHeads(4, func(e *Entry) (float64, bool) {
		asked = append(asked, e.Value.(string))
		return 0, e.Value == "any"
	})
	if want := []string{"pinned", "any", "any too"}; !slices.Equal(asked, want) || n != 1 {
		t.Errorf("asked %v and took %d, want %v and 1", asked, n, want)
	}
	if !q.MustFollow(0) || !q.MustFollow(9) || q.MustFollow(1) || q.Len() != 3 {
		t.Errorf("%d wait", q.Len())
	}
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{{Policy: "lifo"}, {MaxEntries: -1}, {MaxTokens: -1}, {Patience: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// TestSharesOfClients: of two clients with waiting requests, the one which has had less goes first, by the predicted
// ms of its requests. A client which comes later starts with the share of the waiting ones, and an idle client saves
// nothing up.
func TestSharesOfClients(t *testing.T) {
	q := mustQueue(t, Config{})
	ms := map[string]float64{}
	push := func(client uint64, name string, cost float64) {
		ms[name] = cost
		mustPush(t, q, time.Duration(len(ms)), name, QueuedRequest{Client: client})
	}
	offer := func(room int) string {
		var names []string
		q.OfferHeads(kv.Mono(time.Second), func(e *Entry) (float64, bool) {
			if len(names) == room {
				return 0, false
			}
			names = append(names, e.Value.(string))
			return ms[e.Value.(string)], true
		})
		return strings.Join(names, " ")
	}
	for i := range 6 {
		push(1, fmt.Sprintf("a%d", i), 10)
	}
	push(2, "b0", 30)
	push(2, "b1", 10)
	if got, want := offer(5), "a0 b0 a1 a2 a3"; got != want { // both have had 30 and 40 ms
		t.Errorf("the order is %q, want %q", got, want)
	}
	push(3, "late", 10)
	if got, want := offer(9), "b1 late a4 a5"; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
	// What is placed at once counts too.
	q.ChargeClient(2, 1000)
	push(2, "b2", 10)
	push(1, "a6", 10)
	if got, want := offer(9), "a6 b2"; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// TestSharesAreBounded: however many clients come, few are told apart.
func TestSharesAreBounded(t *testing.T) {
	q := mustQueue(t, Config{MaxEntries: 3 * maxShares})
	for client := range uint64(3 * maxShares) {
		q.ChargeClient(client, 5)
	}
	for client := range uint64(2 * maxShares) {
		mustPush(t, q, 0, "", QueuedRequest{Client: client})
	}
	if err := q.Check(); err != nil {
		t.Error(err)
	}
	drain(q, 1)
	if err := q.Check(); err != nil {
		t.Error(err)
	}
	q.ChargeClient(1, 1e9)
	q.ChargeClient(1, 1)
	q.ChargeClient(1<<40, 1) // makes room
	if n := len(q.shares.byClient); n > 3 {
		t.Errorf("%d clients are told apart, though all but one are idle", n)
	}
}

// TestTargets: the request with the least slack goes first, then requests without a target, then requests which
// cannot meet their target any more, by arrival.
func TestTargets(t *testing.T) {
	q := mustQueue(t, Config{})
	at := func(d time.Duration) kv.Mono { return kv.Mono(d) }
	mustPush(t, q, 1, "lost", QueuedRequest{LatestStart: at(2 * time.Second), Missed: true})
	mustPush(t, q, 2, "plain", QueuedRequest{})
	mustPush(t, q, 3, "in 9 s", QueuedRequest{LatestStart: at(9 * time.Second)})
	mustPush(t, q, 4, "in 5 s", QueuedRequest{LatestStart: at(5 * time.Second)})
	mustPush(t, q, 5, "in 4 s", QueuedRequest{LatestStart: at(4 * time.Second)})
	if !q.MustFollow(0) {
		t.Error("a new request overtakes requests which can meet their targets")
	}
	if got, want := drain(q, 4500*time.Millisecond), "in 5 s in 9 s plain lost in 4 s"; got != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
	mustPush(t, q, 1, "lost", QueuedRequest{LatestStart: 1, Missed: true})
	if q.MustFollow(0) {
		t.Error("a request waits behind one which cannot meet its target")
	}
}

// twin is a queue which sorts a plain list for every call.
type twin struct {
	policy   Policy
	patience time.Duration
	entries  []*Entry
	starts   map[uint64]float64
	virtual  float64
}

// start is the virtual time at which the next request of a client starts.
func (w *twin) start(client uint64) float64 {
	if slices.ContainsFunc(w.entries, func(e *Entry) bool { return e.Client == client }) {
		return w.starts[client]
	}
	return max(w.starts[client], w.virtual)
}

// charge counts the ms of a request before it is removed.
func (w *twin) charge(client uint64, ms float64) {
	start := w.start(client)
	w.virtual = max(w.virtual, start)
	w.starts[client] = start + ms
}

// missed reports whether the target of e is missed.
func (w *twin) missed(now kv.Mono, e *Entry) bool {
	return e.Missed || e.LatestStart != 0 && e.LatestStart < now
}

// first returns the entry which goes first at a time, among the entries whose lane is not in not.
func (w *twin) first(now kv.Mono, not map[uint64]bool) *Entry {
	var left, late []*Entry
	for _, e := range w.entries {
		switch {
		case not[e.Lane]:
		case now.Sub(e.Arrival) >= w.due(e):
			late = append(late, e)
		default:
			left = append(left, e)
		}
	}
	if len(late) > 0 {
		return slices.MinFunc(late, func(a, b *Entry) int { return int(a.Arrival.Add(w.due(a)) - b.Arrival.Add(w.due(b))) })
	}
	if len(left) == 0 {
		return nil
	}
	return slices.MaxFunc(left, func(a, b *Entry) int {
		if a.Priority.Strict != b.Priority.Strict {
			return int(a.Priority.Strict) - int(b.Priority.Strict)
		}
		if x, y := w.missed(now, a), w.missed(now, b); x != y {
			if x {
				return -1
			}
			return 1
		}
		if x, y := w.start(a.Client), w.start(b.Client); x != y {
			return cmp.Compare(y, x)
		}
		return cmp.Compare(w.rank(now, a), w.rank(now, b))
	})
}

func (w *twin) due(e *Entry) time.Duration {
	return w.patience / time.Duration(e.Priority.Strict+1)
}

func (w *twin) rank(now kv.Mono, e *Entry) float64 {
	if w.policy == WSPT {
		return (1 + e.Priority.Jump.Seconds()) / max(1, float64(e.Tokens-e.Cached))
	}
	if e.LatestStart != 0 && !w.missed(now, e) {
		return (e.Priority.Jump - time.Duration(e.LatestStart) + w.patience).Seconds()
	}
	return (e.Priority.Jump - e.Arrival.Sub(0)).Seconds()
}

// agrees runs random operations on a queue and its twin. Entries arrive at different times, so that the order
// is unique.
func agrees(t *rapid.T) {
	policy := rapid.SampledFrom([]Policy{FCFS, WSPT}).Draw(t, "policy")
	patience := time.Duration(rapid.IntRange(1, 60).Draw(t, "patience")) * time.Second
	q, err := New(Config{Policy: policy, Patience: patience, MaxEntries: 40})
	if err != nil {
		t.Fatal(err)
	}
	w := &twin{policy: policy, patience: patience, starts: map[uint64]float64{}}
	now := kv.Mono(0)
	drop := func(e *Entry) {
		w.entries = slices.DeleteFunc(w.entries, func(o *Entry) bool { return o == e })
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if err := q.Check(); err != nil {
				t.Fatal(err)
			}
			tokens := 0
			for _, e := range w.entries {
				tokens += e.Tokens
			}
			if q.Len() != len(w.entries) || q.Tokens() != tokens {
				t.Fatalf("%d wait with %d tokens, want %d with %d", q.Len(), q.Tokens(), len(w.entries), tokens)
			}
		},
		"push": func(t *rapid.T) {
			now++
			item := QueuedRequest{
				Lane:     rapid.Uint64Max(40).Draw(t, "lane"),
				Priority: Priority{Strict: rapid.Uint32Max(2).Draw(t, "strict"), Jump: time.Duration(rapid.IntRange(0, 20).Draw(t, "jump")) * time.Second},
				Tokens:   rapid.IntRange(0, 1000).Draw(t, "tokens"),
				Client:   rapid.Uint64Max(3).Draw(t, "client"),
				Missed:   rapid.IntRange(0, 4).Draw(t, "missed") == 0,
			}
			if rapid.Bool().Draw(t, "has a target") || item.Missed {
				item.LatestStart = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "slack")) * time.Second)
			}
			if policy == WSPT { // make keys unique
				item.Tokens, item.Priority.Jump = 1000+int(now), 0
			}
			e, err := q.Push(now, item, nil)
			own := 0
			for _, e := range w.entries {
				if e.Client == item.Client {
					own++
				}
			}
			if (err != nil) != (len(w.entries) >= 40 || own >= 8*(40-len(w.entries))) {
				t.Fatalf("with %d, %d of them of the client: %v", len(w.entries), own, err)
			}
			if err == nil {
				w.starts[e.Client] = w.start(e.Client)
				w.entries = append(w.entries, e)
			}
		},
		"later": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second) },
		"remove": func(t *rapid.T) {
			if len(w.entries) == 0 {
				return
			}
			e := w.entries[rapid.IntRange(0, len(w.entries)-1).Draw(t, "which")]
			if !q.Remove(e) || q.Remove(e) {
				t.Fatal("an entry is to be removed once")
			}
			drop(e)
		},
		"charge": func(t *rapid.T) {
			client, ms := rapid.Uint64Max(3).Draw(t, "client"), float64(rapid.IntRange(0, 9).Draw(t, "ms"))
			q.ChargeClient(client, ms)
			w.charge(client, ms)
		},
		"offer": func(t *rapid.T) {
			room := rapid.IntRange(0, 5).Draw(t, "room")
			refuse := rapid.Uint64Max(4).Draw(t, "a lane without any")
			not := map[uint64]bool{}
			taken := q.OfferHeads(now, func(e *Entry) (float64, bool) {
				if want := w.first(now, not); want != e {
					t.Fatalf("offered %+v, want %+v", e.QueuedRequest, want.QueuedRequest)
				}
				if e.Lane == refuse || room == 0 {
					not[e.Lane] = true
					return 0, false
				}
				room--
				ms := float64(e.Tokens % 10)
				w.charge(e.Client, ms)
				drop(e)
				return ms, true
			})
			if rest := w.first(now, not); rest != nil {
				t.Fatalf("took %d and did not offer %+v", taken, rest.QueuedRequest)
			}
		},
	})
}

func TestQueueAgreesWithNaiveTwin(t *testing.T) { rapid.Check(t, agrees) }

func FuzzQueue(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agrees)) }

func BenchmarkRemove(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			q := mustQueue(b, Config{MaxEntries: n + 1})
			for i := range n {
				mustPush(b, q, time.Duration(i*7919%n), "", QueuedRequest{Tokens: i})
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Remove(mustPush(b, q, time.Duration(n/2), "", QueuedRequest{}))
			}
		})
	}
}
