package frontend

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc/rpctest"
)

var story = regexp.MustCompile(`,"nvext":\{[^\n]*\}`)

// TestMigrationIsInvisible: a request whose workers fail at any point has the same answer as one whose
// worker did not, except for nvext.
func TestMigrationIsInvisible(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		moved := 0
		for seed := range uint64(120) {
			rng := rand.New(rand.NewPCG(seed, 4))
			texts := make([]string, 3)
			for i := range texts {
				for range rng.IntN(30) {
					texts[i] += []string{"a", "b", "é", "😀", " "}[rng.IntN(5)]
				}
			}
			n := 1 + rng.IntN(3)
			stream := n == 1 && rng.IntN(2) == 0
			body := fmt.Sprintf(`{"model":"bytes","prompt":"abcd","n":%d,"seed":5,"stream":%v,"max_tokens":%d,"stop":["ab","é😀"]%s}`,
				n, stream, 3+rng.IntN(40), []string{"", `,"logprobs":2`, `,"echo":true`, `,"min_tokens":3`}[rng.IntN(4)])
			batch := 1
			say := func(i int) string { return texts[i] }
			for id := kv.WorkerID(1); id <= 4; id++ {
				if n > 1 {
					batch = 1 + rng.IntN(4)
				}
				s := &script{say: say, batch: batch, cached: int(id)}
				if id < 4 && rng.IntN(3) > 0 {
					s.dieAfter = 1 + rng.IntN(12)
				} else if id < 4 && rng.IntN(2) == 0 {
					s.refuse = fault.New(fault.Overloaded, "full")
				}
				w.worker(id, s)
			}
			got := w.post("/v1/completions", body, "x-request-id", "r")

			for id := kv.WorkerID(1); id <= 3; id++ {
				w.registry.remove(id)
			}
			w.worker(4, &script{say: say, batch: batch, cached: 4})
			want := w.post("/v1/completions", body, "x-request-id", "r")

			if got.status != 200 || want.status != 200 {
				t.Fatalf("seed %d: status %d and %d: %s", seed, got.status, want.status, got.body)
			}
			if strings.Contains(got.body, `"attempt":2`) {
				moved++
			}
			clean := func(s string) string {
				return regexp.MustCompile(`"(cached_tokens|created)":\d+`).ReplaceAllString(story.ReplaceAllString(s, ""), "")
			}
			if clean(got.body) != clean(want.body) {
				t.Fatalf("seed %d: %s\n got %s\nwant %s", seed, body, got.body, want.body)
			}
		}
		if moved < 50 {
			t.Errorf("only %d requests moved", moved)
		}
	})
}

// TestFaultyPlane: over a plane that refuses, breaks and delays calls, each of many concurrent requests
// has the correct answer, or an error that no worker could finish it.
func TestFaultyPlane(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		for id := kv.WorkerID(1); id <= 4; id++ {
			w.worker(id, constant("the quick brown fox"))
		}
		w.faulty.Set(rpctest.CallFaults{Refuse: 0.2, Cut: 0.4, CutAfter: 12, Delay: 5 * time.Millisecond})
		const requests = 100
		answers := make(chan answerOf, requests)
		for i := range requests {
			body := fmt.Sprintf(`{"model":"bytes","prompt":"%d","stream":%v,"stop":"fox"}`, i, i%2 == 0)
			go func() { answers <- w.post("/v1/completions", body) }()
		}
		whole, broken := 0, 0
		for range requests {
			a := <-answers
			text := ""
			for _, m := range regexp.MustCompile(`"text":"([^"]*)"`).FindAllStringSubmatch(a.body, -1) {
				text += m[1]
			}
			switch {
			case a.status == 200 && text == "the quick brown ":
				whole++
			case strings.Contains(a.body, `"code":"unavailable"`) && strings.HasPrefix("the quick brown ", text):
				broken++
			default:
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		if whole < 50 || broken == 0 {
			t.Errorf("%d answers are whole, %d are broken: the test proves little", whole, broken)
		}
	})
}

// TestResume: the request that the next worker gets.
func TestResume(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		first := &script{say: func(i int) string { return []string{"xSTOPy", "uvw"}[i] }, dieAfter: 11}
		second := &script{say: first.say}
		w.worker(1, first)
		w.worker(2, second)
		a := w.post("/v1/completions", `{"model":"bytes","prompt":"p","n":2,"stop":"STOP","max_tokens":50,"ignore_eos":true}`)
		if a.status != 200 || !strings.Contains(a.body, `"text":"x"`) {
			t.Fatalf("%d %s", a.status, a.body)
		}
		before, after := first.seen()[0], second.seen()[0]
		if before.Attempt != 1 || before.Generated != nil || before.Done != nil {
			t.Errorf("the first attempt is %+v", before)
		}
		if after.Attempt != 2 || after.Sampling.Seed != before.Sampling.Seed || after.Stop.MaxTokens != 50 || after.ID != before.ID {
			t.Errorf("the second attempt is %+v", after)
		}
		if got := fmt.Sprint(after.Generated, after.Done); got != fmt.Sprint([][]kv.Token{encodeBytes("xSTOP"), encodeBytes("uvw..")}, []bool{true, false}) {
			t.Errorf("the second attempt goes on from %s", got)
		}
		routed := w.router.routed()
		if len(routed) != 2 || fmt.Sprint(routed[1].Exclude) != "[1]" || routed[1].Attempt != 2 || routed[1].ID != routed[0].ID {
			t.Errorf("routed %+v", routed)
		}
	})
}

// TestMigrationLimit counts attempts.
func TestMigrationLimit(t *testing.T) {
	for _, tt := range []struct {
		limit    *int
		attempts int
	}{{nil, 4}, {new(1), 2}, {new(0), 1}} { // nil is the default, 3
		inWorld(t, Config{MigrationLimit: tt.limit}, func(t *testing.T, w *world) {
			for id := kv.WorkerID(1); id <= 6; id++ {
				w.worker(id, &script{refuse: fault.New(fault.Unavailable, "no")})
			}
			a := w.post("/v1/completions", `{"model":"bytes","prompt":"p"}`)
			if a.status != 503 || len(w.router.routed()) != tt.attempts {
				t.Errorf("limit %d: status %d after %d attempts, want %d", tt.limit, a.status, len(w.router.routed()), tt.attempts)
			}
		})
	}
}

// TestNumerics: after the first tokens a stream prefers workers with the numerics of these, while there
// are any.
func TestNumerics(t *testing.T) {
	numerics := func(n string) func(*engine.Card) { return func(c *engine.Card) { c.Numerics = n } }
	for _, tt := range []struct {
		die  int // the frame at which the first worker dies
		same bool
		want string
	}{
		{2, true, `"worker_id":3`},
		{2, false, `"worker_id":2`}, // better than none
		{0, true, `"worker_id":2`},  // nothing is sent yet
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			first := &script{say: func(int) string { return "hello" }, dieAfter: tt.die}
			if tt.die == 0 {
				first.refuse = fault.New(fault.Unavailable, "no")
			}
			w.worker(1, first, numerics("n1"))
			w.worker(2, constant("hello"), numerics("n2"))
			if tt.same {
				w.worker(3, constant("hello"), numerics("n1"))
			}
			a := w.post("/v1/completions", `{"model":"bytes","prompt":"p"}`)
			if a.status != 200 || !strings.Contains(a.body, `"text":"hello"`) || !strings.Contains(a.body, `"attempt":2,`+tt.want) {
				t.Errorf("%+v: %d %s", tt, a.status, a.body)
			}
			if told := strings.Contains(a.body, `"inexact":true`); told != (tt.die > 0 && !tt.same) {
				t.Errorf("%+v: it is told to be inexact: %v", tt, told)
			}
		})
	}
}

// TestBrokenWorkers: a violation of the engine contract is a visible defect; a merely late frame does
// not matter.
func TestBrokenWorkers(t *testing.T) {
	frame := func(d engine.Delta) []byte { return engine.AppendDelta(nil, &d) }
	for _, tt := range []struct {
		name   string
		raw    []byte
		fields string
		status int
	}{
		{"garbage", []byte{0xff, 1, 2, 3}, "", 500},
		{"empty", nil, "", 500},
		{"unknown choice", frame(engine.Delta{Attempt: 1, Choice: 5, Tokens: []kv.Token{1}}), "", 500},
		{"gap", frame(engine.Delta{Attempt: 1, Pos: 3, Tokens: []kv.Token{1}}), "", 500},
		{"no log-probabilities", frame(engine.Delta{Attempt: 1, Tokens: []kv.Token{1}}), `,"logprobs":1`, 500},
		{"too many tokens", frame(engine.Delta{Attempt: 1, Tokens: encodeBytes("four"), Finish: engine.FinishLength}), `,"max_tokens":3`, 500},
		{"less than nothing cached", frame(engine.Delta{Attempt: 1, Tokens: []kv.Token{1}, Cached: -2}), "", 500},
		{"more cached than there is", frame(engine.Delta{Attempt: 1, Tokens: []kv.Token{1}, Cached: 1000}), "", 500},
		{"late attempt", frame(engine.Delta{Attempt: 9, Tokens: []kv.Token{'x'}}), "", 200},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			s := constant("ok")
			s.raw = [][]byte{tt.raw}
			w.worker(1, s)
			w.worker(2, constant("ok"))
			a := w.post("/v1/completions", `{"model":"bytes","prompt":"p"`+tt.fields+`}`)
			if defect := strings.Contains(a.body, "the worker sent"); defect != (tt.status == 500) {
				t.Errorf("%s: %s", tt.name, a.body)
			}
			if a.status != tt.status || tt.status == 200 && !strings.Contains(a.body, `"text":"ok"`) {
				t.Errorf("%s: %d %s", tt.name, a.status, a.body)
			}
			if len(w.router.routed()) != 1 {
				t.Errorf("%s: %d attempts", tt.name, len(w.router.routed()))
			}
		})
	}
}

// TestRepeatedTokens: tokens that an attempt sends again are used once.
func TestRepeatedTokens(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("hello")
		again := engine.Delta{Attempt: 1, Tokens: encodeBytes("hel"), Cached: 1}
		s.raw = [][]byte{engine.AppendDelta(nil, &again)}
		w.worker(1, s)
		a := w.post("/v1/completions", `{"model":"bytes","prompt":"p"}`)
		if a.status != 200 || !strings.Contains(a.body, `"text":"hello"`) || !strings.Contains(a.body, `"completion_tokens":6`) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}
