package sim

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/media"
	"penstock/core/splitmix"
)

func timing(t testing.TB, preset string) Timing {
	t.Helper()
	tm, err := PresetTiming(preset)
	if err == nil {
		err = tm.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

func TestReferenceValues(t *testing.T) {
	tm := timing(t, "")
	for _, c := range []struct {
		tokens int
		ms     float64
	}{{0, 0}, {128, 18.5}, {512, 24.4}, {1000, 32.1}, {4096, 85.8}, {8192, 169.1}, {32768, 966.1}} {
		if got := tm.prefillMillis(&Pass{Prefill: c.tokens, Prompts: 1}); math.Abs(got-c.ms) > 0.05 {
			t.Errorf("a prefill of %d tokens takes %.3f ms, want %.1f", c.tokens, got, c.ms)
		}
	}
	for _, c := range []struct {
		used int
		ms   float64
	}{{0, 5.74}, {50, 26.3}, {100, 34.0}, {150, 34.0}} {
		if got := tm.decodeMillis(&Pass{Tokens: 1, UsedBlocks: c.used, TotalBlocks: 100}); math.Abs(got-c.ms) > 0.05 {
			t.Errorf("decode with %d %% in use takes %.3f ms, want %.2f", c.used, got, c.ms)
		}
	}
}

// TestByHand compares passes with sums computed by hand.
func TestByHand(t *testing.T) {
	for _, c := range []struct {
		name, preset string
		pass         Pass
		ns           time.Duration
	}{
		{"nothing", "mocker", Pass{UsedBlocks: 5, TotalBlocks: 10}, 0},
		// 0.4209989 + 15.18344 + 16.50142, and 5.74.
		{"one prompt", "mocker", Pass{Prefill: 1000, Prompts: 1, Tokens: 1, Context: 1000}, 37_845_859},
		// The same tokens in three prompts, none of them complete: no decode.
		{"a chunk of three", "mocker", Pass{Prefill: 1000, Prompts: 3}, 32_105_859},
		// 5.74 + 54.01/4 - 25.74/16.
		{"decode of eight", "mocker", Pass{Tokens: 8, Context: 800, UsedBlocks: 25, TotalBlocks: 100}, 17_633_750},
		// The last two together.
		{"mixed", "mocker", Pass{Prefill: 1000, Prompts: 1, Tokens: 8, UsedBlocks: 25, TotalBlocks: 100}, 49_739_609},
		// 2·26.2 + 0.0741·300 + 1.25e-6·(100² + 200²), and 19.44.
		{"two prompts", "mocker-0.2", Pass{Prefill: 300, Prompts: 2, PrefillSquares: 50_000, Tokens: 2}, 94_132_500},
		// 19.44 + 43.88 - 5.47.
		{"full", "mocker-0.2", Pass{Tokens: 1, UsedBlocks: 9, TotalBlocks: 9}, 57_850_000},
		// 32.5 + 0.225·256, and 12.5.
		{"one prompt", "llm-d-like", Pass{Prefill: 256, Prompts: 1, Tokens: 1}, 102_600_000},
		// 0.125·2048: 8000 tokens a second.
		{"a chunk", "smg-like", Pass{Prefill: 2048, Prompts: 1}, 256_000_000},
		// 6 + 0.35·100.
		{"decode of a hundred", "smg-like", Pass{Tokens: 100}, 41_000_000},
	} {
		tm := timing(t, c.preset)
		if got := tm.PassDuration(&c.pass, 3); got != c.ns {
			t.Errorf("%s, %s: %d ns, want %d", c.preset, c.name, got, c.ns)
		}
	}
}

func TestEveryTerm(t *testing.T) {
	tm := Timing{
		Prefill: Prefill{Pass: 1, Token: 2, TokenSquared: 3, Prompt: 5, PromptSquared: 7, Context: 11},
		Decode:  Decode{Base: 13, Use: 16, UseSquared: 32, Sequence: 17, Context: 19},
		Encoder: []EncoderPoint{{100, 23}, {200, 43}},
		Load:    Load{Factor: 3, Seqs: 5},
		Speedup: 4, DecodeSpeedup: 2,
	}
	tm.EnsureDefaults()
	if err := tm.Validate(); err != nil {
		t.Fatal(err)
	}
	p := Pass{
		Prefill: 10, Prompts: 2, PrefillSquares: 58, PrefillContext: 100,
		Tokens: 4, Context: 50, Running: 3, UsedBlocks: 1, TotalBlocks: 4, EncodeMillis: tm.EncodeMillis(media.Image, 150),
	}
	// Prefill 1+20+300+10+406+1100, encoder 33, decode (13+4+2+68+950)/2; times 2 for the load; divided by 4.
	const ms = (1837 + 33 + 1037.0/2) * 2 / 4
	if got, want := tm.PassDuration(&p, 0), time.Duration(ms*1e6); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNoTermGoesBelowItsFloor(t *testing.T) {
	tm := Timing{Prefill: Prefill{Pass: -5}, Decode: Decode{Base: -5}}
	tm.EnsureDefaults()
	if got := tm.PassDuration(&Pass{Prefill: 1}, 0); got != 0 {
		t.Errorf("prefill takes %v", got)
	}
	if got := tm.PassDuration(&Pass{Tokens: 1}, 0); got != time.Millisecond {
		t.Errorf("decode takes %v, want 1 ms", got)
	}
	tm.Speedup, tm.DecodeSpeedup = maxSpeedup, maxSpeedup
	if got := tm.PassDuration(&Pass{Tokens: 1}, 0); got != 1 {
		t.Errorf("at the largest speed decode takes %v, want 1 ns", got)
	}
	tm = Timing{Prefill: Prefill{TokenSquared: maxMillis}}
	tm.EnsureDefaults()
	if got := tm.PassDuration(&Pass{Prefill: math.MaxInt32}, 0); got != maxPassNanos {
		t.Errorf("the longest pass takes %d ns", got)
	}
}

func TestEncoder(t *testing.T) {
	tm := Timing{Encoder: []EncoderPoint{{100, 10}, {200, 30}, {400, 40}}}
	for tokens, want := range map[int]float64{0: 0, 1: 10, 100: 10, 150: 20, 200: 30, 300: 35, 400: 40, 600: 50} {
		if got := tm.EncodeMillis(media.Image, tokens); got != want {
			t.Errorf("%d tokens take %v ms, want %v", tokens, got, want)
		}
	}
	tm.Encoder = tm.Encoder[:1]
	if got := tm.EncodeMillis(media.Image, 5000); got != 10 {
		t.Errorf("with one point, 5000 tokens take %v ms, want 10", got)
	}
	tm.EncoderOf = map[media.Kind][]EncoderPoint{media.Video: {{10, 1}}, media.Audio: nil}
	for kind, want := range map[media.Kind]float64{0: 10, media.Image: 10, media.Video: 1, media.Audio: 0} {
		if got := tm.EncodeMillis(kind, 5000); got != want {
			t.Errorf("an object of %v takes %v ms, want %v", kind, got, want)
		}
	}
	tm.Encoder = []EncoderPoint{{10, 20}, {20, 10}}
	if got := tm.EncodeMillis(media.Image, 100); got != 0 {
		t.Errorf("beyond a falling table it takes %v ms, want 0", got)
	}
}

func TestLoad(t *testing.T) {
	tm := Timing{Load: Load{Factor: 2, Seqs: 5}}
	for running, want := range map[int]float64{0: 1, 1: 1, 2: 1.25, 3: 1.5, 5: 2, 50: 2} {
		if got := tm.loadFactor(running); got != want {
			t.Errorf("with %d running it is %v, want %v", running, got, want)
		}
	}
	tm.Load.Seqs = 1
	if got := tm.loadFactor(9); got != 1 {
		t.Errorf("of an engine for one sequence it is %v, want 1", got)
	}
}

func TestTransfer(t *testing.T) {
	tm := timing(t, "")
	if got := tm.KV.BytesPerToken(); got != 131072 {
		t.Fatalf("%d bytes per token, want 128 KiB", got)
	}
	// 1000 · 131072 bytes at 64 GB/s.
	if got := tm.TransferDuration(1000); got != 2_048_000 {
		t.Errorf("1000 tokens take %d ns, want 2048000", got)
	}
	tm.KV.Fixed, tm.Speedup = 1.5, 2
	if got := tm.TransferDuration(1000); got != 1_774_000 {
		t.Errorf("with a fixed part, twice as fast, %d ns, want 1774000", got)
	}
	tm.KV.Bytes, tm.KV.Fixed = 64_000, 0
	if got := tm.TransferDuration(1000); got != 500_000 {
		t.Errorf("with 64000 bytes per token %d ns, want 500000", got)
	}
	tm.KV.Bandwidth = 0
	if got := tm.TransferDuration(1000); got != 0 {
		t.Errorf("without a bandwidth %d ns, want 0", got)
	}
	if got := tm.TransferDuration(0); got != 0 {
		t.Errorf("nothing takes %d ns", got)
	}
}

// TestAgainstExactArithmetic compares every preset, in floating point, with its formula in rational numbers,
// to the nanosecond.
func TestAgainstExactArithmetic(t *testing.T) {
	formulas := map[string][11]string{ // pass, token, token², prompt, prompt², context; base, use, use², sequence, context
		"mocker":     {"16.50142", "1.518344e-2", "4.209989e-7", "0", "0", "0", "5.74", "54.01", "-25.74", "0", "0"},
		"mocker-0.2": {"0", "7.41e-2", "0", "26.2", "1.25e-6", "0", "19.44", "43.88", "-5.47", "0", "0"},
		"llm-d-like": {"32.5", "0.225", "0", "0", "0", "0", "12.5", "0", "0", "0", "0"},
		"smg-like":   {"0", "0.125", "0", "0", "0", "0", "6", "0", "0", "0.35", "0"},
	}
	if len(formulas) != len(PresetNames()) {
		t.Fatalf("presets %v", PresetNames())
	}
	for name, f := range formulas {
		tm := timing(t, name)
		rapid.Check(t, func(t *rapid.T) {
			p := drawPass(t)
			sum := new(big.Rat)
			add := func(coefficient string, factors ...*big.Rat) {
				term, _ := new(big.Rat).SetString(coefficient)
				for _, x := range factors {
					term.Mul(term, x)
				}
				sum.Add(sum, term)
			}
			n := func(x int64) *big.Rat { return new(big.Rat).SetInt64(x) }
			if tokens := n(int64(p.Prefill)); p.Prefill > 0 {
				add(f[0])
				add(f[1], tokens)
				add(f[2], tokens, tokens)
				add(f[3], n(int64(p.Prompts)))
				add(f[4], n(p.PrefillSquares))
				add(f[5], n(p.PrefillContext))
			}
			if used := big.NewRat(int64(p.UsedBlocks), int64(p.TotalBlocks)); p.Tokens > 0 {
				add(f[6])
				add(f[7], used)
				add(f[8], used, used)
				add(f[9], n(int64(p.Tokens)))
				add(f[10], n(int64(p.Context)))
			}
			want, _ := sum.Mul(sum, n(1_000_000)).Float64()
			if got := tm.PassDuration(&p, 1); math.Abs(float64(got)-want) > 0.6 {
				t.Fatalf("%s, %+v: %d ns, want %.3f", name, p, got, want)
			}
		})
	}
}

func drawPass(t *rapid.T) Pass {
	p := Pass{
		Tokens:      rapid.IntRange(0, 256).Draw(t, "tokens"),
		TotalBlocks: 65536,
		UsedBlocks:  rapid.IntRange(0, 65536).Draw(t, "used"),
		Running:     256,
	}
	for range rapid.IntRange(0, 8).Draw(t, "prompts") {
		n := rapid.IntRange(1, 8192).Draw(t, "prompt")
		before := rapid.IntRange(0, 262144).Draw(t, "before")
		p.Prompts++
		p.Prefill += n
		p.PrefillSquares += int64(n) * int64(n)
		p.PrefillContext += int64(n) * int64(before)
	}
	p.Context = p.Tokens * rapid.IntRange(1, 8192).Draw(t, "context")
	return p
}

// TestMonotone checks that more work never takes less time.
func TestMonotone(t *testing.T) {
	for _, name := range PresetNames() {
		tm := timing(t, name)
		tm.Prefill.Context, tm.Decode.Context = 1e-6, 1e-6
		tm.Encoder = []EncoderPoint{{256, 10}, {1024, 31}}
		tm.Load.Factor = 2
		rapid.Check(t, func(t *rapid.T) {
			p := drawPass(t)
			base := tm.PassDuration(&p, 0)
			for what, more := range map[string]func(*Pass){
				"prefill": func(p *Pass) { p.Prefill++ },
				"context": func(p *Pass) { p.PrefillContext += 1 << 20 },
				"a token": func(p *Pass) { p.Tokens++ },
				"lengths": func(p *Pass) { p.Context += 1000 },
				"in use":  func(p *Pass) { p.UsedBlocks++ },
				"running": func(p *Pass) { p.Running++ },
				"media":   func(p *Pass) { p.EncodeMillis += tm.EncodeMillis(media.Image, 100) },
			} {
				q := p
				more(&q)
				if got := tm.PassDuration(&q, 0); got < base {
					t.Fatalf("%s, more %s: %v, less than %v for %+v", name, what, got, base, p)
				}
			}
		})
	}
}

func TestPassDoesNotAllocate(t *testing.T) {
	tm := timing(t, "")
	tm.Jitter = 0.1
	tm.Encoder = []EncoderPoint{{256, 10}, {1024, 31}}
	p := Pass{Prefill: 100, Prompts: 1, Tokens: 3, EncodeMillis: 12, UsedBlocks: 1, TotalBlocks: 2}
	number := uint64(0)
	if n := testing.AllocsPerRun(100, func() { tm.PassDuration(&p, number); tm.TransferDuration(100); number++ }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

var rewritePasses = flag.Bool("rewrite-passes", false, "write testdata/passes.txt anew")

// TestPasses compares 200 passes, drawn from a fixed seed, with a file: they are the same on every machine.
func TestPasses(t *testing.T) {
	var out strings.Builder
	draws := uint64(0)
	draw := func(below uint64) int {
		draws++
		return int(splitmix.Mix(draws*splitmix.Step) % below)
	}
	profile := testProfile(t)
	names := append(PresetNames(), "profile")
	for i := range 200 {
		name := names[i%len(names)]
		tm := timing(t, "")
		if name == "profile" {
			tm.Profile = profile
		} else {
			tm = timing(t, name)
		}
		tm.Prefill.Context, tm.Decode.Context = 1.7e-7, 3.1e-6
		tm.Encoder = []EncoderPoint{{256, 9.3}, {1024, 31.7}, {4096, 160.1}}
		tm.Load.Factor = 1.37
		tm.Speedup, tm.DecodeSpeedup = 1.3, 1.7
		tm.Jitter, tm.Seed = 0.1, 42
		p := Pass{Tokens: draw(257), TotalBlocks: 65536, UsedBlocks: draw(65537), Running: draw(300), EncodeMillis: tm.EncodeMillis(media.Image, draw(2)*draw(8000))}
		for range draw(4) {
			n := 1 + draw(4096)
			p.Prompts++
			p.Prefill += n
			p.PrefillSquares += int64(n) * int64(n)
			p.PrefillContext += int64(n) * int64(draw(262144))
		}
		p.Context = p.Tokens * (1 + draw(4096))
		fmt.Fprintf(&out, "%d\t%s\t%d\n", i, name, tm.PassDuration(&p, uint64(i)))
	}
	const file = "testdata/passes.txt"
	if *rewritePasses {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, expected := strings.Split(out.String(), "\n"), strings.Split(string(want), "\n")
	if len(got) != len(expected) {
		t.Fatalf("%d lines, want %d", len(got), len(expected))
	}
	for i := range got {
		if got[i] != expected[i] {
			t.Errorf("got %q, want %q", got[i], expected[i])
		}
	}
}

func BenchmarkPass(b *testing.B) {
	tm := timing(b, "")
	tm.Jitter = 0.1
	p := Pass{Prefill: 100, Prompts: 1, Tokens: 3, UsedBlocks: 1, TotalBlocks: 2}
	b.ReportAllocs()
	number := uint64(0)
	for b.Loop() {
		tm.PassDuration(&p, number)
		number++
	}
}
