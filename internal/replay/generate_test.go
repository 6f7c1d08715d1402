package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
)

// made returns the requests of a generator, each with slices of its own.
func made(t *testing.T, text string, seed uint64) []Request {
	t.Helper()
	w, err := ParseGenerator(text, seed)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out []Request
	var r Request
	for s.Next(&r) == nil {
		own := r
		own.Blocks, own.Media = slices.Clone(r.Blocks), slices.Clone(r.Media)
		out = append(out, own)
	}
	return out
}

func kindNames() []string {
	var out []string
	for _, g := range generatorKinds() {
		out = append(out, g.kind)
	}
	return out
}

func TestGeneratorsMakeWorkloads(t *testing.T) {
	for _, kind := range kindNames() {
		t.Run(kind, func(t *testing.T) {
			all := made(t, kind+":requests=500", 1)
			if len(all) != 500 {
				t.Fatalf("%d requests", len(all))
			}
			last := map[string]time.Duration{}
			for i, r := range all {
				if r.Index != i || r.Input < 1 || r.Output < 1 || r.At < 0 || i > 0 && r.At < all[i-1].At {
					t.Fatalf("request %d is %+v", i, r)
				}
				if len(r.Blocks) > 0 && len(r.Blocks) != (r.Input+promptBlockTokens-1)/promptBlockTokens {
					t.Fatalf("request %d has %d blocks of %d for %d tokens", i, len(r.Blocks), r.BlockTokens, r.Input)
				}
				before, begun := last[r.Session]
				if r.Session != "" && (begun && r.At < before+r.Delay || !begun && r.Delay != 0) {
					t.Fatalf("request %d of %s is at %v, after %v and %v", i, r.Session, r.At, before, r.Delay)
				}
				last[r.Session] = r.At
			}
			if !equalRequests(all, made(t, kind+":requests=500", 1)) {
				t.Error("the same seed gives another workload")
			}
			if equalRequests(all, made(t, kind+":requests=500", 2)) {
				t.Error("another seed gives the same workload")
			}
		})
	}
}

func equalRequests(a, b []Request) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func mean(n int, of func(i int) float64) float64 {
	sum := 0.0
	for i := range n {
		sum += of(i)
	}
	return sum / float64(n)
}

func near5(a, b float64) bool { return math.Abs(a-b) < 0.05*b }

func TestGeneratedMeans(t *testing.T) {
	all := made(t, "random:requests=20000,rate=40,input=500,output=70,vary=1", 3)
	n := len(all)
	if got := float64(n) / all[n-1].At.Seconds(); !near5(got, 40) {
		t.Errorf("rate is %v", got)
	}
	if got := mean(n, func(i int) float64 { return float64(all[i].Input) }); !near5(got, 500) {
		t.Errorf("input is %v", got)
	}
	if got := mean(n, func(i int) float64 { return float64(all[i].Output) }); !near5(got, 70) {
		t.Errorf("output is %v", got)
	}
	// An exponential distribution has as much variance as it has mean squared.
	if got := mean(n, func(i int) float64 { x := float64(all[i].Input) - 500; return x * x }); !near5(got, 500*500) {
		t.Errorf("variance is %v", got)
	}
	fixed := made(t, "random:input=500,output=70,vary=0", 3)
	for _, r := range fixed {
		if r.Input != 500 || r.Output != 70 {
			t.Fatalf("without variation a request is %+v", r)
		}
	}
}

func TestConversationsGrow(t *testing.T) {
	for _, kind := range []string{"chat", "agent", "code"} {
		t.Run(kind, func(t *testing.T) {
			all := made(t, kind+":requests=2000,context=20000", 5)
			type state struct {
				tokens []kv.Token
				output int
			}
			last := map[string]state{}
			perSession := map[string]int{}
			for i := range all {
				r := &all[i]
				tokens := AppendTokens(nil, r, Vocabulary{})
				if before, ok := last[r.Session]; ok {
					if len(tokens) < len(before.tokens)+before.output+1 || !slices.Equal(tokens[:len(before.tokens)], before.tokens) {
						t.Fatalf("request %d does not go on with the %d and %d tokens before it", i, len(before.tokens), before.output)
					}
				}
				if r.Input > 20000 {
					t.Errorf("request %d has %d tokens", i, r.Input)
				}
				last[r.Session] = state{tokens, r.Output}
				perSession[r.Session]++
			}
			if len(perSession) < 20 {
				t.Errorf("%d conversations", len(perSession))
			}
		})
	}
	// Of long runs the ends do not matter.
	all := made(t, "chat:requests=40000,rate=20,think=1s,vary=0,turns=6", 5)
	sessions := map[string]int{}
	for _, r := range all {
		sessions[r.Session]++
	}
	if got := float64(len(all)) / float64(len(sessions)); !near5(got, 6) {
		t.Errorf("%v turns", got)
	}
}

// shared returns how many first tokens two requests share.
func shared(a, b *Request) int {
	n := 0
	for n < min(len(a.Blocks), len(b.Blocks)) && a.Blocks[n] == b.Blocks[n] {
		n++
	}
	return n * promptBlockTokens
}

func TestSharedPrefixesArePopularByRank(t *testing.T) {
	const n, groups = 20_000, 8
	all := made(t, fmt.Sprintf("shared:requests=%d,groups=%d,prefix=64,zipf=1.2,vary=0", n, groups), 9)
	counts := map[int64]int{}
	for i := range all {
		counts[all[i].Blocks[3]]++
		if all[i].Input != 64+256 || i > 0 && shared(&all[i], &all[i-1]) != 0 && shared(&all[i], &all[i-1]) != 64 {
			t.Fatalf("request %d is %+v", i, all[i])
		}
	}
	var got []int
	for _, c := range counts {
		got = append(got, c)
	}
	slices.Sort(got)
	slices.Reverse(got)
	total := 0.0
	for k := 1; k <= groups; k++ {
		total += math.Pow(float64(k), -1.2)
	}
	chi := 0.0
	for k, c := range got {
		want := n * math.Pow(float64(k+1), -1.2) / total
		chi += (float64(c) - want) * (float64(c) - want) / want
	}
	if len(got) != groups || chi > 18.5 { // one in a hundred for 7 degrees of freedom
		t.Errorf("chi square is %.1f for %v", chi, got)
	}
}

func TestDocumentsAreOfAPool(t *testing.T) {
	all := made(t, "rag:requests=500,documents=5,document=32,docs=3,prefix=16,vary=0,input=10", 2)
	pool := map[int64]bool{}
	for i, r := range all {
		if r.Input != 16+3*32+10 || len(r.Blocks) != 1+3*2+1 || r.Blocks[0] != all[0].Blocks[0] {
			t.Fatalf("request %d is %+v", i, r)
		}
		a, b, c := r.Blocks[1], r.Blocks[3], r.Blocks[5]
		if a == b || b == c || a == c {
			t.Fatalf("request %d shows a document twice", i)
		}
		pool[a], pool[b], pool[c] = true, true, true
	}
	if len(pool) != 5 {
		t.Errorf("%d documents", len(pool))
	}
	long := made(t, "longdoc:requests=200,documents=3,document=1000", 2)
	for i := range long {
		for j := range i {
			if n := shared(&long[i], &long[j]); n != 0 && n < 300 {
				t.Fatalf("requests %d and %d share %d tokens of a document", i, j, n)
			}
		}
	}
}

func TestImagesComeFirst(t *testing.T) {
	all := made(t, "images:requests=300,images=4,tokens=50,input=10,vary=0", 2)
	byID := map[string][]kv.Token{}
	for i := range all {
		r := &all[i]
		tokens := AppendTokens(nil, r, Vocabulary{})
		if len(tokens) != 60 || len(r.Media) != 1 || r.Media[0].Tokens != 50 {
			t.Fatalf("request %d is %+v", i, r)
		}
		id := r.Media[0].ID
		if before, ok := byID[id]; ok && !slices.Equal(before, tokens[:50]) {
			t.Fatalf("image %s is shown in two ways", id)
		}
		byID[id] = tokens[:50]
	}
	if len(byID) != 4 {
		t.Errorf("%d images", len(byID))
	}
}

func TestGeneratorsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     `"" is none of random, shared, rag, longdoc, images, window, chat, agent, code`,
		"chess":                                `"chess" is none of`,
		"random:groups=3":                      "random has no parameter groups; it has requests, rate, arrival, cv, input, output, vary",
		"chat:turns=0":                         "chat: turns=0: must be a whole number from 1 to 10000",
		"chat:think=fast":                      "must be a time from 0s to 24h",
		"chat:arrival=trace":                   "must be one of uniform, poisson, gamma",
		"chat:input":                           `"input" is not key=value`,
		"rag:docs=5,documents=4":               "shows 5 documents of a pool of 4",
		"agent:context=4000":                   "do not fit a context of 4000",
		"random:vary=-1":                       "vary=-1: must be a number from 0 to 3",
		"random:requests=1e9":                  "must be a whole number",
		"chat:requests=100000000,rate=1000000": "more than a million conversations",
	} {
		if _, err := ParseGenerator(text, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestGoldenWorkloads holds the first requests of each kind, and a digest of what
// follows.
func TestGoldenWorkloads(t *testing.T) {
	var out []byte
	for _, kind := range kindNames() {
		all := made(t, kind+":requests=200", 42)
		for i := range all[:4] {
			r := &all[i]
			out = fmt.Appendf(out, "%s at=%d input=%d output=%d session=%q delay=%d blocks=%d tokens=%#x\n", kind,
				r.At, r.Input, r.Output, r.Session, r.Delay, len(r.Blocks), digest(AppendTokens(nil, r, Vocabulary{})))
		}
		all2, _ := json.Marshal(all)
		out = fmt.Appendf(out, "%s all=%#x\n", kind, hashText(string(all2)))
	}
	goldenFile(t, "workloads.txt", out)
}

func BenchmarkGenerate(b *testing.B) {
	for _, kind := range kindNames() {
		b.Run(kind, func(b *testing.B) {
			w, err := ParseGenerator(kind+":requests=10000", 1)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			tokens := 0
			for b.Loop() {
				s, _ := w.Open()
				var r Request
				for s.Next(&r) == nil {
					tokens += r.Input
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10000, "ns/request")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
		})
	}
}

// TestNewImages: a share of the requests shows an image for the first time, and each image has its place.
func TestNewImages(t *testing.T) {
	for _, c := range []struct {
		text   string
		unique int
	}{
		{"images:requests=1024,new=0.2,before=40", 205},
		{"images:requests=1024,new=1,before=40", 1024},
		{"images:requests=1024,new=0.2", 205},
		{"images:requests=1024,new=0.001", 2},
	} {
		ids := map[string]int{}
		all := made(t, c.text, 7)
		blocks := map[string]int64{}
		for i := range all {
			r := &all[i]
			m := &r.Media[0]
			ids[m.ID]++
			if len(r.Media) != 1 || m.Tokens != 1024 {
				t.Fatalf("%s: request %d shows %+v", c.text, i, r.Media)
			}
			if len(r.Blocks) == 0 {
				continue
			}
			if first := r.Blocks[m.Start/16]; m.Start == 0 || m.Start%16 != 0 || blocks[m.ID] != 0 && blocks[m.ID] != first {
				t.Fatalf("%s: request %d begins its image with block %d at %d", c.text, i, first, m.Start)
			}
			blocks[m.ID] = r.Blocks[m.Start/16]
			if i > 0 && r.Blocks[0] == all[i-1].Blocks[0] || r.Input <= m.Start+m.Tokens {
				t.Fatalf("%s: request %d is %+v", c.text, i, r)
			}
		}
		if len(ids) != c.unique {
			t.Errorf("%s: %d images, want %d", c.text, len(ids), c.unique)
		}
	}
}

// TestWindow: each turn of a conversation shows the images of the turn before but for the first, and a new one.
func TestWindow(t *testing.T) {
	last := map[string][]Media{}
	turns, shown := 0, map[string]bool{}
	for _, r := range made(t, "window:requests=2000,window=3,prefix=30,tokens=20", 4) {
		if len(r.Media) != 3 {
			t.Fatalf("%d images", len(r.Media))
		}
		for i, m := range r.Media {
			if m.Start < 16 || m.Start+m.Tokens > r.Input || i > 0 && m.Start != r.Media[i-1].Start+32 {
				t.Fatalf("image %d at %d of %d", i, m.Start, r.Input)
			}
			shown[m.ID] = true
		}
		if before, ok := last[r.Session]; ok {
			turns++
			if before[1].ID != r.Media[0].ID || before[2].ID != r.Media[1].ID {
				t.Fatalf("%+v after %+v", r.Media, before)
			}
		}
		last[r.Session] = slices.Clone(r.Media)
	}
	if want := 3*len(last) + turns; len(shown) != want || turns < 1000 {
		t.Errorf("%d images in %d conversations, want %d", len(shown), len(last), want)
	}
}
