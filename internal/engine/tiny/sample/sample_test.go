package sample

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func normalLogits(rng *rand.Rand, n int, scale float64) []float32 {
	l := make([]float32, n)
	for i := range l {
		l[i] = float32(rng.NormFloat64() * scale)
	}
	return l
}

func tokens(t *rapid.T, label string, vocab, most int) []kv.Token {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.Token {
		return kv.Token(rapid.IntRange(0, vocab-1).Draw(t, "token"))
	}), 0, most).Draw(t, label)
}

// drawParams draws parameters, each of which is off about half of the time.
func drawParams(t *rapid.T, vocab int) Params {
	maybe := func(label string, values ...float64) float64 {
		return rapid.SampledFrom(append(values, make([]float64, len(values))...)).Draw(t, label)
	}
	p := Params{
		Sampling: engine.Sampling{
			Temperature:       maybe("temperature", 0.1, 0.7, 1, 2.5),
			TopK:              int(maybe("topK", 1, 2, 7, 40, 100, 5000)),
			TopP:              maybe("topP", 1e-9, 0.1, 0.5, 0.9, 0.999, 1),
			MinP:              maybe("minP", 1e-9, 0.05, 0.5, 1),
			RepetitionPenalty: maybe("repetition", 0.5, 1, 1.3),
			PresencePenalty:   maybe("presence", -1, 0.5, 2),
			FrequencyPenalty:  maybe("frequency", -1, 0.5, 2),
			Seed:              rapid.Uint64().Draw(t, "seed"),
		},
		Choice:    rapid.IntRange(0, 3).Draw(t, "choice"),
		MinTokens: rapid.IntRange(0, 6).Draw(t, "minTokens"),
		Stops:     tokens(t, "stops", vocab, 2),
		Logprobs:  -1,
	}
	for _, b := range tokens(t, "biased", vocab, 3) {
		p.Sampling.Bias = append(p.Sampling.Bias, engine.TokenBias{Token: b, Bias: float32(rapid.IntRange(-20, 20).Draw(t, "bias"))})
	}
	return p
}

func TestNextIsTheNaiveDraw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := rapid.SampledFrom([]int{8, 33, 500}).Draw(t, "vocab")
		p := drawParams(t, vocab)
		mask := tokens(t, "mask", vocab, 2)
		prompt, generated := tokens(t, "prompt", vocab, 20), tokens(t, "generated", vocab, 5)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 0))
		// Coarse logits make ties, which must go to the lower id.
		scale, grain := rapid.SampledFrom([]float64{0.1, 2, 10}).Draw(t, "scale"), rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "grain")

		s, c := New(vocab, mask), NewChoice(p, prompt, generated)
		output := slices.Clone(generated)
		for range 4 {
			logits := normalLogits(rng, vocab, scale)
			if grain > 0 {
				for i, l := range logits {
					logits[i] = float32(math.Round(float64(l)/grain) * grain)
				}
			}
			var allowed []uint64
			if rapid.Bool().Draw(t, "guided") {
				allowed = make([]uint64, (vocab+63)/64)
				some := 0 // unmasked, so that something can be sampled
				for slices.Contains(mask, kv.Token(some)) {
					some++
				}
				for i := range vocab {
					if i == some || rng.IntN(3) == 0 {
						allowed[i/64] |= 1 << (i % 64)
					}
				}
			}
			want := naiveNext(p, mask, prompt, output, logits, allowed)
			got, err := s.Next(c, logits, allowed)
			if err != nil {
				t.Fatal(err)
			}
			if got.Token != want {
				t.Fatalf("position %d: token %d, naive %d", len(output), got.Token, want)
			}
			output = append(output, got.Token)
		}
	})
}

// TestFiltersOnLargeVocabulary checks the partial selections where they differ
// from full sorts.
func TestFiltersOnLargeVocabulary(t *testing.T) {
	const vocab = 40_000
	rng := rand.New(rand.NewPCG(7, 7))
	for _, scale := range []float64{0.01, 1, 5} {
		for _, sampling := range []engine.Sampling{
			{Temperature: 1},
			{Temperature: 1, TopK: 1000},
			{Temperature: 1, TopP: 0.95},
			{Temperature: 0.8, TopK: 30_000, TopP: 0.5, MinP: 0.01},
		} {
			p := Params{Sampling: sampling, Logprobs: -1}
			p.Sampling.Seed = rng.Uint64()
			logits := normalLogits(rng, vocab, scale)
			want := naiveNext(p, nil, nil, nil, logits, nil)
			got, err := New(vocab, nil).Next(NewChoice(p, nil, nil), logits, nil)
			if err != nil || got.Token != want {
				t.Errorf("scale %v %+v: token %d (%v), naive %d", scale, p.Sampling, got.Token, err, want)
			}
		}
	}
}

// TestNucleusIsAsSmallAsCanBe has filters at the exact share of some tokens.
func TestNucleusIsAsSmallAsCanBe(t *testing.T) {
	for _, c := range []struct {
		sampling engine.Sampling
		kept     []kv.Token
	}{
		{engine.Sampling{TopP: 0.25}, []kv.Token{1}},
		{engine.Sampling{TopP: 0.5}, []kv.Token{1, 2}},
		{engine.Sampling{TopP: 0.51}, []kv.Token{1, 2, 4}},
		{engine.Sampling{TopP: 0.5, TopK: 2}, []kv.Token{1}},
		{engine.Sampling{TopK: 3}, []kv.Token{1, 2, 4}},
		{engine.Sampling{MinP: 1}, []kv.Token{1, 2, 4, 5}},
	} {
		drawn := map[kv.Token]bool{}
		for seed := range uint64(200) {
			c.sampling.Temperature, c.sampling.Seed = 1, seed
			logits := []float32{-40, 3, 3, -40, 3, 3}
			got, err := New(6, nil).Next(NewChoice(Params{Sampling: c.sampling, Logprobs: -1}, nil, nil), logits, nil)
			if err != nil {
				t.Fatal(err)
			}
			drawn[got.Token] = true
		}
		if got := slices.Sorted(maps.Keys(drawn)); !slices.Equal(got, c.kept) {
			t.Errorf("%+v: drew %v, want %v", c.sampling, got, c.kept)
		}
	}
}

// TestDrawsFollowTheDistribution is a chi-square test against the softmax, over
// positions of one choice and over choices at one position: neither may be
// correlated. The seeds are fixed, so it cannot fail by chance later.
func TestDrawsFollowTheDistribution(t *testing.T) {
	const n = 20_000
	logits := []float32{0.5, -1, 2, 0, 1.25, -3, 1.25, 0.1}
	temperature := 1.5
	expected := make([]float64, len(logits))
	var total float64
	for i, l := range logits {
		expected[i] = math.Exp(float64(l) / temperature)
		total += expected[i]
	}
	counts := map[string][]int{}
	for _, over := range []string{"positions", "choices", "seeds"} {
		counts[over] = make([]int, len(logits))
	}
	s := New(len(logits), nil)
	draw := func(seed uint64, choice, position int) kv.Token {
		p := Params{Sampling: engine.Sampling{Temperature: temperature, Seed: seed}, Choice: choice, Logprobs: -1}
		got, err := s.Next(NewChoice(p, nil, make([]kv.Token, position)), slices.Clone(logits), nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Token
	}
	for i := range n {
		counts["positions"][draw(42, 0, i)]++
		counts["choices"][draw(42, i, 3)]++
		counts["seeds"][draw(uint64(i), 0, 0)]++
	}
	for over, count := range counts {
		var chi float64
		for i, c := range count {
			e := expected[i] / total * n
			chi += (float64(c) - e) * (float64(c) - e) / e
		}
		// The 99.9th percentile of chi-square with 7 degrees of freedom.
		if chi > 24.32 {
			t.Errorf("over %s: chi-square %.1f with counts %v", over, chi, count)
		}
	}
}

func TestPhilox(t *testing.T) {
	// The known-answer tests of the Random123 library for philox2x64, 10 rounds:
	// counter words, key, first word of the answer.
	for _, v := range [][4]uint64{
		{0, 0, 0, 0xca00a0459843d731},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, 0x65b021d60cd8310f},
		{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x0a5e742c2997341c},
	} {
		if got := RandomBits(v[2], int(v[1]), int(v[0])); got != v[3] {
			t.Errorf("Draw(%#x, %#x, %#x) = %#x, want %#x", v[2], v[1], v[0], got, v[3])
		}
	}
}

func TestLogprobs(t *testing.T) {
	const vocab = 300
	mask := []kv.Token{3, 77}
	rng := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{0, 1, 5, 20} {
		logits := normalLogits(rng, vocab, 3)
		logits[3] = 50 // masked: it would be the most likely
		logits[10], logits[200] = 40, 40
		p := Params{Sampling: engine.Sampling{
			Temperature: 0.9, Seed: 9, PresencePenalty: 2, RepetitionPenalty: 1.5,
			Bias: []engine.TokenBias{{Token: 10, Bias: -100}},
		}, Logprobs: n, MinTokens: 3, Stops: []kv.Token{200}}
		before := slices.Clone(logits)
		got, err := New(vocab, mask).Next(NewChoice(p, []kv.Token{10, 11}, []kv.Token{12}), logits, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := naiveLogprob(before, mask, got.Token); math.Abs(float64(got.Logprob)-want) > 1e-5*math.Abs(want) {
			t.Errorf("n=%d: logprob %v, want %v", n, got.Logprob, want)
		}
		if len(got.Top) != n {
			t.Fatalf("n=%d: %d alternatives", n, len(got.Top))
		}
		for i, alt := range got.Top {
			if want := naiveLogprob(before, mask, alt.Token); math.Abs(float64(alt.Logprob)-want) > 1e-5*math.Abs(want)+1e-6 {
				t.Errorf("n=%d: alternative %d: logprob %v, want %v", n, i, alt.Logprob, want)
			}
			if slices.Contains(mask, alt.Token) {
				t.Errorf("n=%d: masked token %d is an alternative", n, alt.Token)
			}
			if i > 0 && !(got.Top[i-1].Logprob > alt.Logprob || got.Top[i-1].Logprob == alt.Logprob && got.Top[i-1].Token < alt.Token) {
				t.Errorf("n=%d: alternatives %d and %d out of order: %+v", n, i-1, i, got.Top)
			}
		}
		better := 0 // than the last alternative, itself included
		for i, l := range before {
			if n == 0 || slices.Contains(mask, kv.Token(i)) {
				continue
			}
			last := got.Top[n-1].Token
			if l > before[last] || l == before[last] && i <= int(last) {
				better++
			}
		}
		if better != n {
			t.Errorf("n=%d: %d tokens are at least as likely as the last alternative", n, better)
		}
		if n >= 2 && (got.Top[0].Token != 10 || got.Top[1].Token != 200) {
			t.Errorf("n=%d: the best alternatives are %+v; bias and stops must not show", n, got.Top[:2])
		}
	}
}

func TestLogprobsOfAlmostNothing(t *testing.T) {
	logits := []float32{1, 2, 3}
	got, err := New(3, []kv.Token{0, 2}).Next(NewChoice(Params{Logprobs: 3}, nil, nil), logits, nil)
	want := engine.Logprob{Token: 1, Logprob: 0, Top: []engine.TokenLogprob{{Token: 1, Logprob: 0}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got) %v\n%s", err, diff)
	}
}

func TestNothingToDraw(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, logits := range map[string][]float32{
		"masked":        {1, nan},
		"no number":     {nan, nan},
		"impossible":    {-inf, -inf},
		"infinite":      {1, inf},
		"stops are all": {-inf, 4},
	} {
		s, c := New(2, nil), NewChoice(Params{Sampling: engine.Sampling{Temperature: 1}, Logprobs: 2, MinTokens: 1, Stops: []kv.Token{1}}, nil, nil)
		if name == "masked" {
			s = New(2, []kv.Token{0})
		}
		if name == "infinite" {
			c = NewChoice(Params{Logprobs: -1}, nil, nil)
		}
		if _, err := s.Next(c, logits, nil); fault.CodeOf(err) != fault.Internal || err == nil {
			t.Errorf("%s: error %v", name, err)
		}
		if c.Position() != 0 {
			t.Errorf("%s: the position moved", name)
		}
	}
}

func TestResumedChoiceGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const vocab, length = 50, 12
		p := drawParams(t, vocab)
		p.Logprobs = 2
		prompt := tokens(t, "prompt", vocab, 10)
		seed := rapid.Uint64().Draw(t, "logits")
		run := func(generated []kv.Token) []engine.Logprob {
			s, c := New(vocab, nil), NewChoice(p, prompt, generated)
			var out []engine.Logprob
			for pos := len(generated); pos < length; pos++ {
				got, err := s.Next(c, normalLogits(rand.New(rand.NewPCG(seed, uint64(pos))), vocab, 2), nil)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, got)
			}
			return out
		}
		whole := run(nil)
		var generated []kv.Token
		for cut := range length {
			if diff := cmp.Diff(whole[cut:], run(generated)); diff != "" {
				t.Fatalf("cut at %d (-whole +resumed):\n%s", cut, diff)
			}
			generated = append(generated, whole[cut].Token)
		}
	})
}

func TestNextDoesNotAllocate(t *testing.T) {
	const vocab = 2048
	logits := normalLogits(rand.New(rand.NewPCG(3, 3)), vocab, 2)
	for name, p := range map[string]Params{
		"greedy":   {Logprobs: -1},
		"filtered": {Sampling: engine.Sampling{Temperature: 1, TopK: 50, TopP: 0.9, MinP: 0.01, Bias: []engine.TokenBias{{Token: 1, Bias: 1}}}, Logprobs: 0},
	} {
		s, c := New(vocab, []kv.Token{4}), NewChoice(p, nil, nil)
		if n := testing.AllocsPerRun(100, func() { s.Next(c, logits, nil) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	for _, vocab := range []int{2048, 150_000} {
		for name, sampling := range map[string]engine.Sampling{
			"greedy":   {},
			"softmax":  {Temperature: 1},
			"filtered": {Temperature: 1, TopK: 50, TopP: 0.95},
			"nucleus":  {Temperature: 1, TopP: 0.95},
		} {
			b.Run(name+"/"+map[int]string{2048: "2k", 150_000: "150k"}[vocab], func(b *testing.B) {
				logits := normalLogits(rand.New(rand.NewPCG(3, 3)), vocab, 3)
				s, c := New(vocab, nil), NewChoice(Params{Sampling: sampling, Logprobs: -1}, nil, nil)
				for b.Loop() {
					s.Next(c, logits, nil)
				}
			})
		}
	}
}
