package model

import (
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"penstock/core/kv"
)

// TestForwardAllocates nothing once warm, for prefill and decode, with helpers.
func TestForwardAllocates(t *testing.T) {
	for _, k := range kernels() {
		m := randomModel(t, shapes["grouped"], k)
		c := newTestCache(m, 64, 16, arenaRows, 4)
		rng := rand.New(rand.NewPCG(1, 5))
		logits := make([]float32, m.cfg.VocabSize)
		work := []Work{
			{Tokens: randomTokens(rng, 300, m.cfg.VocabSize), Blocks: table(0, 300, 16), Logits: logits},
			{Tokens: []kv.Token{1}, Start: 100, Blocks: table(20, 101, 16), Logits: make([]float32, m.cfg.VocabSize), Sum: make([]float64, m.cfg.HiddenSize)},
		}
		run := func() {
			if err := m.Forward(c, work); err != nil {
				t.Fatal(err)
			}
		}
		// The runtime creates new goroutines if its lists of ended ones are empty, so a call may allocate
		// some; on average it allocates nothing.
		for range 10 {
			run()
		}
		if n := testing.AllocsPerRun(50, run); n != 0 {
			t.Errorf("%s: %v allocations for each Forward", k.kernelName(), n)
		}
	}
}

func TestForwardRefuses(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	c := newTestCache(m, 4, 16, arenaRows, 1)
	poison(c)
	good := Work{Tokens: []kv.Token{1}, Blocks: []int32{0}}
	long := make([]kv.Token, 65)
	for _, test := range []struct {
		name string
		work Work
		want string
	}{
		{"empty", Work{Blocks: []int32{0}}, "no tokens"},
		{"negative start", Work{Tokens: []kv.Token{1}, Start: -1, Blocks: []int32{0}}, "outside of the model's 700"},
		{"beyond the context", Work{Tokens: []kv.Token{1}, Start: 700, Blocks: make([]int32, 44)}, "outside of the model's 700"},
		{"short table", Work{Tokens: long, Blocks: []int32{0, 1, 2, 3}}, "do not hold 65 positions"},
		{"unknown block", Work{Tokens: []kv.Token{1}, Blocks: []int32{4}}, "block 4 is outside of the cache's 4"},
		{"negative block", Work{Tokens: []kv.Token{1}, Blocks: []int32{-1}}, "block -1"},
		{"unknown token", Work{Tokens: []kv.Token{1, 150}, Blocks: []int32{0}}, "position 1 is outside of the vocabulary of 150"},
		{"room for logits", Work{Tokens: []kv.Token{1}, Blocks: []int32{0}, Logits: make([]float32, 149)}, "room for 149 logits"},
		{"room for a sum", Work{Tokens: []kv.Token{1}, Blocks: []int32{0}, Sum: make([]float64, 3)}, "room for the sum of 3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := m.Forward(c, []Work{good, test.work})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "work 1") {
				t.Fatalf("got %v, want %q about work 1", err, test.want)
			}
			if v := c.values[0][0]; v == v {
				t.Fatal("something was written")
			}
		})
	}
	if err := randomModel(t, shapes["odd"], portableKernel{}).Forward(c, []Work{good}); err == nil {
		t.Fatal("a cache of another model was taken")
	}
	if err := m.Forward(c, nil); err != nil {
		t.Fatalf("an empty batch: %v", err)
	}
}

// TestForwardAfterPanic breaks a forward pass from inside, and expects the panic
// in the caller and the next pass to be right.
func TestForwardAfterPanic(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	tokens := randomTokens(rand.New(rand.NewPCG(1, 6)), 50, m.cfg.VocabSize)
	want := everyLogits(t, m, tokens)
	c := newTestCache(m, 4, 16, arenaRows, 3)
	work := Work{Tokens: tokens, Blocks: table(0, 50, 16), Logits: make([]float32, m.cfg.VocabSize)}
	func() {
		defer func() {
			if recover() == nil {
				t.Fatal("no panic")
			}
		}()
		keys := c.keys[1]
		c.keys[1] = nil
		defer func() { c.keys[1] = keys }()
		m.Forward(c, []Work{work})
	}()
	forward(t, m, c, work)
	if err := sameBits(work.Logits, want[49]); err != nil {
		t.Fatal(err)
	}
}

func TestNewCachePanics(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	defer func() {
		if recover() == nil {
			t.Fatal("a cache without blocks was made")
		}
	}()
	m.NewCache(0, 16)
}

// TestNumerics changes one thing at a time.
func TestNumerics(t *testing.T) {
	cfg := shapes["grouped"]
	build := func(cfg Config, k kernel, change func(Map)) string {
		weights := randomWeights(cfg, 7)
		change(weights)
		m, err := newModel(t.Context(), cfg, weights, k)
		if err != nil {
			t.Fatal(err)
		}
		return m.Numerics()
	}
	same := func(Map) {}
	base := build(cfg, portableKernel{}, same)
	if again := build(cfg, portableKernel{}, same); again != base {
		t.Fatalf("%s and %s for the same model", base, again)
	}
	if !strings.HasPrefix(base, "tiny1-gonum-"+runtime.GOARCH+"-") {
		t.Fatalf("%s does not name kernel and architecture", base)
	}
	for _, s := range cfg.Specs() {
		got := build(cfg, portableKernel{}, func(w Map) {
			v := &w[s.Name].Data[len(w[s.Name].Data)-1]
			*v = math.Nextafter32(*v, 10)
		})
		if got == base {
			t.Errorf("a changed bit in %s does not show", s.Name)
		}
	}
	other := cfg
	other.RMSEps *= 2
	if build(other, portableKernel{}, same) == base {
		t.Error("another epsilon does not show")
	}
	if build(cfg, secretive{}, same) == base {
		t.Error("arithmetic that differs under the same name does not show")
	}
	seen := map[string]bool{}
	for _, k := range kernels() {
		seen[build(cfg, k, same)] = true
	}
	if len(seen) != len(kernels()) {
		t.Error("two kernels have the same numerics")
	}
}

// secretive is a kernel that rounds differently from the kernel whose name it reports.
type secretive struct{ portableKernel }

func (secretive) swiglu(dst, gate, up []float32) {
	portableKernel{}.swiglu(dst, gate, up)
	for i := range dst {
		dst[i] = math.Nextafter32(dst[i], 1)
	}
}

func TestNewRefuses(t *testing.T) {
	cfg := shapes["grouped"]
	const name = "model.layers.1.mlp.up_proj.weight"
	for _, test := range []struct {
		name   string
		change func(Map)
		want   string
	}{
		{"missing", func(w Map) { delete(w, name) }, "up_proj.weight\" is missing"},
		{"unknown", func(w Map) { w["model.layers.1.mlp.up_proj.bias"] = w[name] }, "up_proj.bias\" does not belong"},
		{"transposed", func(w Map) { w[name] = Tensor{Shape: []int{48, 80}, Data: w[name].Data} }, "has shape [48 80], its configuration says [80 48]"},
		{"short", func(w Map) { w[name] = Tensor{Shape: []int{80, 48}, Data: w[name].Data[1:]} }, "3839 elements for shape"},
		{"infinite", func(w Map) { w[name].Data[5] = float32(math.Inf(1)) }, "not finite at element 5"},
		{"not a number", func(w Map) { w[finalNormName].Data[0] = float32(math.NaN()) }, "model.norm.weight\" is not finite"},
	} {
		t.Run(test.name, func(t *testing.T) {
			weights := randomWeights(cfg, 7)
			test.change(weights)
			if _, err := New(t.Context(), cfg, weights); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
	weights := randomWeights(cfg, 7)
	weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = Tensor{}
	if _, err := New(t.Context(), cfg, weights); err != nil {
		t.Fatalf("the rotary table of old checkpoints: %v", err)
	}
}

func TestValidateReportsAll(t *testing.T) {
	cfg := Config{Heads: 4, KVHeads: 3, HeadDim: 5, RopeScaling: RopeScaling{Type: "yarn"}}
	err := cfg.Validate()
	for _, want := range []string{
		"HiddenSize is 0", "Layers is 0", "Intermediate is 0", "VocabSize is 0", "MaxPositions is 0",
		"Heads 4 is no multiple of KVHeads 3", "HeadDim 5 is odd", "RopeTheta is 0", "RMSEps is 0", `rope scaling "yarn"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

func TestBlockBytes(t *testing.T) {
	m := randomModel(t, shapes["grouped"], portableKernel{})
	c := newTestCache(m, 3, 16, 1, 1)
	total := 0
	for l := range c.keys {
		total += 4 * (len(c.keys[l]) + len(c.values[l]))
	}
	if want := 3 * m.cfg.BlockBytes(16); total != want {
		t.Fatalf("a cache of 3 blocks takes %d bytes, BlockBytes says %d", total, want)
	}
}
