package exact

import (
	"math"
	"math/rand/v2"
	"testing"
)

// ulps returns how many units in the last place of b the two are apart.
func ulps(a, b float64) float64 {
	if a == b {
		return 0
	}
	return math.Abs(a-b) / (math.Nextafter(math.Abs(b), math.Inf(1)) - math.Abs(b))
}

// TestAgainstMath allows 3 units: the functions of package math may be off by 1 themselves.
func TestAgainstMath(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200_000 {
		x := math.Ldexp(1-rng.Float64(), rng.IntN(2000)-1000)
		if rng.IntN(2) == 0 {
			x = 0.5 + rng.Float64()
		}
		if got, want := Ln(x), math.Log(x); ulps(got, want) > 3 && math.Abs(got-want) > 1./(1<<52) {
			t.Fatalf("ln %v is %v, want %v", x, got, want)
		}
		y := rng.Float64()*1460 - 748
		if rng.IntN(2) == 0 {
			y = -40 * rng.Float64()
		}
		if got, want := Exp(y), math.Exp(y); ulps(got, want) > 3 {
			t.Fatalf("exp %v is %v, want %v: %v units", y, got, want, ulps(got, want))
		}
	}
}

func TestEnds(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"ln 1", Ln(1), 0},
		{"ln 2", Ln(2), math.Ln2},
		{"ln 2^-53", Ln(1. / (1 << 53)), -53 * math.Ln2},
		{"exp 0", Exp(0), 1},
		{"exp -inf", Exp(math.Inf(-1)), 0},
		{"exp -746", Exp(-746), 0},
		{"exp -745", Exp(-745), math.SmallestNonzeroFloat64},
		{"exp 710", Exp(710), math.Inf(1)},
		{"exp inf", Exp(math.Inf(1)), math.Inf(1)},
		{"exp NaN", Exp(math.NaN()), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is %v, want %v", c.name, c.got, c.want)
		}
	}
	if got, want := Exp(709.7), math.Exp(709.7); ulps(got, want) > 3 {
		t.Errorf("exp 709.7 is %v, want %v", got, want)
	}
}

// TestBits pins bit patterns: they must be the same on every processor.
func TestBits(t *testing.T) {
	var e, l uint64
	for i := range 2000 {
		e = e*31 + math.Float64bits(Exp(float64(1000-i)/1.37))
		l = l*31 + math.Float64bits(Ln(0.3+float64(i)*1.7))
	}
	if e != 0x1cbd26e446cbb2ca || l != 0x66e9fd4b8055f30d {
		t.Errorf("bits are %#x and %#x", e, l)
	}
}

func TestNoAllocation(t *testing.T) {
	sink := 0.0
	if n := testing.AllocsPerRun(100, func() { sink += Exp(-1.5) + Ln(3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkExp(b *testing.B) {
	sink, x := 0.0, -1.0
	for b.Loop() {
		sink += Exp(x)
		x -= 1e-9
	}
	_ = sink
}

func BenchmarkLn(b *testing.B) {
	sink, x := 0.0, 1.0
	for b.Loop() {
		sink += Ln(x)
		x += 1e-9
	}
	_ = sink
}

// TestSinTurns compares with package math, and with the quarters, where the sine is known.
func TestSinTurns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		x := 4*rng.Float64() - 2
		if got, want := SinTurns(x), math.Sin(2*math.Pi*(x-math.Floor(x))); math.Abs(got-want) > 4./(1<<51) {
			t.Fatalf("the sine of %v turns is %v, want %v", x, got, want)
		}
	}
	for quarter, want := range []float64{0, 1, 0, -1, 0, 1} {
		if got := SinTurns(float64(quarter) / 4); math.Abs(got-want) > 1./(1<<51) {
			t.Errorf("the sine of %d quarters is %v, want %v", quarter, got, want)
		}
	}
}
