package sim

import (
	"math"
	"testing"
	"time"

	"penstock/core/media"
)

// TestPlanModel: planners see the times of passes as the timing model has them without jitter.
func TestPlanModel(t *testing.T) {
	profile, err := NewProfile([]float64{100, 8000}, []float64{20, 400}, []float64{1000, 100_000}, []float64{500, 4000}, [][]float64{{8, 9}, {20, 30}})
	if err != nil {
		t.Fatal(err)
	}
	for name, timing := range map[string]Timing{
		"mocker": {}, "profile": {Profile: profile, Speedup: 2}, "loaded": {Load: Load{Factor: 3, Seqs: 128}, DecodeSpeedup: 1.5, Jitter: 0.3},
	} {
		timing.EnsureDefaults()
		if err := timing.Validate(); err != nil {
			t.Fatal(err)
		}
		m := PlanModel{Timing: &timing, CacheTokens: 1 << 20}
		still := timing
		still.Jitter = 0
		for _, n := range []int{1, 700, 8000} {
			p := Pass{Prefill: n, Prompts: 1, PrefillSquares: int64(n) * int64(n), Running: 1}
			if got, want := m.PrefillMs(float64(n)), millis(still.PassDuration(&p, 0)); math.Abs(got-want) > 1e-5 {
				t.Errorf("%s: a prefill of %d takes %v ms, want %v", name, n, got, want)
			}
		}
		for _, n := range []int{1, 40, 200} {
			p := Pass{Tokens: n, Context: n * 1500, Running: n, UsedBlocks: n * 1500 / 16, TotalBlocks: 1 << 16}
			if got, want := m.StepMs(float64(n), 1500), millis(still.PassDuration(&p, 0)); math.Abs(got-want) > 0.01 {
				t.Errorf("%s: a step of %d takes %v ms, want %v", name, n, got, want)
			}
		}
		if low, middle, high := m.StepMs(40, 1500), m.StepMs(40.5, 1500), m.StepMs(41, 1500); math.Abs(middle-(low+high)/2) > 1e-9 {
			t.Errorf("%s: a step of 40.5 takes %v ms, between %v and %v", name, middle, low, high)
		}
	}
	timing := Timing{Encoder: []EncoderPoint{{Tokens: 1024, Millis: 5}, {Tokens: 6144, Millis: 13}}, Speedup: 2}
	timing.EnsureDefaults()
	if got, want := (PlanModel{Timing: &timing}).EncodeMs(2048), timing.EncodeMillis(media.Image, 2048)/2; got != want {
		t.Errorf("media take %v ms, want %v", got, want)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
