package plan

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/rates"
)

// TestTableModel: lines between the points and beyond them, never below 0.
func TestTableModel(t *testing.T) {
	m, err := NewTableModel([]float64{100, 200, 400}, []float64{10, 30, 90}, []float64{1, 11}, []float64{0, 1000},
		[][]float64{{5, 6}, {15, 26}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ got, want float64 }{
		{m.PrefillMs(150), 20},
		{m.PrefillMs(300), 60},
		{m.PrefillMs(600), 150},
		{m.PrefillMs(0), 0},
		{m.StepMs(1, 500), 5.5},
		{m.StepMs(6, 500), 13},
		{m.StepMs(21, 0), 25},
		{m.StepMs(11, 2000), 37},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%g ms, want %g", c.got, c.want)
		}
	}
	for _, bad := range []struct {
		axis, times []float64
		says        string
	}{
		{nil, nil, "no points"},
		{[]float64{1, 1}, []float64{1, 1}, "ascend"},
		{[]float64{1}, []float64{1, 2}, "2 times"},
		{[]float64{1}, []float64{math.NaN()}, "NaN"},
		{[]float64{math.Inf(1)}, []float64{1}, "Inf"},
	} {
		if _, err := NewEncoderTable(bad.axis, bad.times); err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%v, %v: %v", bad.axis, bad.times, err)
		}
	}
	if _, err := NewTableModel([]float64{1}, []float64{1}, []float64{1, 2}, []float64{1}, [][]float64{{1}}); err == nil {
		t.Error("a table with a row too few is taken")
	}
}

// anyPass returns a pass of an engine with known times, with noise of 10 %.
func anyPass(rng *rand.Rand, times float64) PassSample {
	tokens, sequences := float64(rng.IntN(4)*rng.IntN(2000)), float64(rng.IntN(100))
	s := PassSample{
		Age: time.Hour, PrefillTokens: tokens, Sequences: sequences,
		ContextTokens: sequences * float64(100+rng.IntN(3000)),
	}
	ms := truePassMs(tokens, sequences, s.ContextTokens) * times * (1 + 0.1*rng.NormFloat64())
	s.Took = time.Duration(ms * float64(time.Millisecond))
	return s
}

func truePassMs(tokens, sequences, context float64) float64 {
	ms := 0.0
	if tokens > 0 {
		ms += 16 + 0.015*tokens
	}
	if sequences > 0 {
		ms += 6 + 0.02*sequences + 5e-5*context
	}
	return ms
}

// TestFittedModel: the times of an engine are learned from its passes, and passes of cold workers change nothing.
func TestFittedModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	clean, mixed := NewFittedModel(0), NewFittedModel(0)
	for i := range 2000 {
		s := anyPass(rng, 1)
		clean.AddPass(s)
		mixed.AddPass(s)
		if i%2 == 0 {
			cold := anyPass(rng, 8)
			cold.Age = time.Duration(i%120) * time.Second
			if mixed.AddPass(cold) {
				t.Fatalf("a pass of a worker which is ready for %v counts", cold.Age)
			}
		}
	}
	if !clean.IsReady() || !mixed.IsReady() {
		t.Fatal("2000 passes are not enough")
	}
	for _, n := range []float64{200, 1000, 4000} {
		if got, want := mixed.PrefillMs(n), truePassMs(n, 0, 0); math.Abs(got-want) > 0.1*want || got != clean.PrefillMs(n) {
			t.Errorf("a prefill of %g takes %.2f ms, want %.2f, and %.2f without cold workers", n, got, want, clean.PrefillMs(n))
		}
	}
	for _, n := range []float64{5, 30, 90} {
		if got, want := mixed.StepMs(n, 1500), truePassMs(0, n, 1500*n); math.Abs(got-want) > 0.1*want {
			t.Errorf("a step of %g takes %.2f ms, want %.2f", n, got, want)
		}
	}
	if _, _, colds := mixed.Counts(); colds != 1000 {
		t.Errorf("%d passes of cold workers were left out", colds)
	}
}

// TestFitBecomesReady: a fit is not used before both kinds of passes have differed.
func TestFitBecomesReady(t *testing.T) {
	m := NewFittedModel(time.Minute)
	add := func(tokens, sequences float64) {
		m.AddPass(PassSample{
			Age: time.Hour, PrefillTokens: tokens, Sequences: sequences, ContextTokens: 100 * sequences,
			Took: 20 * time.Millisecond,
		})
	}
	for range 100 {
		add(500, 8)
	}
	if m.IsReady() {
		t.Error("ready with passes of one size")
	}
	add(1000, 8)
	add(500, 16)
	if !m.IsReady() {
		t.Error("not ready with passes which differ")
	}
	for _, s := range []PassSample{
		{Age: time.Hour, PrefillTokens: math.NaN(), Took: 1},
		{Age: time.Hour, Took: 1},
		{Age: time.Hour, Sequences: 1},
		{Age: time.Hour, Sequences: 1, Took: 24 * time.Hour},
	} {
		if m.AddPass(s) {
			t.Errorf("%+v counts", s)
		}
	}
}

// TestFirstModelWhichIsReady: learned rates take the place of a table when they are known.
func TestFirstModelWhichIsReady(t *testing.T) {
	learner, err := rates.New(rates.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := learner.WorkerOf(kv.Worker{ID: 1})
	models := []EngineModel{RatesModel{Learner: learner, Worker: w, CacheTokens: 1 << 20}, mockerTable()}
	if got := firstReady(models).String(); got != "table" {
		t.Errorf("before any sample the model is %q", got)
	}
	now := kv.Mono(0)
	for i := range 50 {
		now = now.Add(time.Minute)
		w.RecordPrefill(now, 500+20*i, time.Duration(30+i)*time.Millisecond)
		w.RecordAnswer(rates.AnswerSample{Tokens: 101, Took: 2 * time.Second, Share: 0.3})
	}
	m := firstReady(models)
	if m.String() != "learned rates" {
		t.Fatalf("after 50 samples the model is %q", m)
	}
	if got := m.StepMs(64, 5000); math.Abs(got-20) > 2 {
		t.Errorf("a step takes %.1f ms, want 20", got)
	}
	if got := m.PrefillMs(1000); math.Abs(got-55) > 8 {
		t.Errorf("a prefill takes %.1f ms, want 55", got)
	}
}

// TestConfigProblems: every problem is reported at once.
func TestConfigProblems(t *testing.T) {
	_, err := New(Config{
		Roles: []RoleConfig{
			{Role: Prefill, Floor: 5, Ceiling: 3, Models: []EngineModel{NewFittedModel(0)}},
			{Role: Encode},
		},
		Targets: Targets{TTFT: time.Second, Chance: 2}, Interval: -time.Second, Budget: 1,
	})
	for _, want := range []string{
		"targets", "interval", "ceiling", "not ready from the start",
		"no model of the encoder", "prefill and decode workers", "budget",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
