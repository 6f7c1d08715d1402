package model

import (
	"math"
	"math/rand/v2"
	"testing"

	"penstock/core/kv"
)

// naiveLogits returns the logits after every position.
func naiveLogits(cfg Config, weights Map, tokens []kv.Token) [][]float64 {
	head := weights[embedName].Data
	if !cfg.TieEmbeddings {
		head = weights[headName].Data
	}
	x := naiveHidden(cfg, weights, tokens)
	logits := make([][]float64, len(x))
	for t, hidden := range x {
		logits[t] = naiveProduct(hidden, head)
	}
	return logits
}

// naiveHidden is the decoder as in papers: whole sequence, no cache, one number at a time, in float64. It
// returns the last hidden state of every position, after the final norm.
func naiveHidden(cfg Config, weights Map, tokens []kv.Token) [][]float64 {
	w := func(name string) []float32 { return weights[name].Data }
	embed := w(embedName)
	x := make([][]float64, len(tokens))
	for t, token := range tokens {
		x[t] = make([]float64, cfg.HiddenSize)
		for i := range x[t] {
			x[t][i] = float64(embed[int(token)*cfg.HiddenSize+i])
		}
	}
	for l := range cfg.Layers {
		name := func(part string) []float32 { return w(layerName(l, part)) }
		q, k, v := make([][]float64, len(x)), make([][]float64, len(x)), make([][]float64, len(x))
		for t := range x {
			h := naiveNorm(x[t], name("input_layernorm.weight"), cfg.RMSEps)
			q[t] = naiveAdd(naiveProduct(h, name("self_attn.q_proj.weight")), name("self_attn.q_proj.bias"))
			k[t] = naiveAdd(naiveProduct(h, name("self_attn.k_proj.weight")), name("self_attn.k_proj.bias"))
			v[t] = naiveAdd(naiveProduct(h, name("self_attn.v_proj.weight")), name("self_attn.v_proj.bias"))
			naiveHeads(cfg, q[t], name("self_attn.q_norm.weight"), t)
			naiveHeads(cfg, k[t], name("self_attn.k_norm.weight"), t)
		}
		for t := range x {
			o := naiveProduct(naiveAttention(cfg, q[t], k[:t+1], v[:t+1]), name("self_attn.o_proj.weight"))
			for i := range o {
				x[t][i] += o[i]
			}
			h := naiveNorm(x[t], name("post_attention_layernorm.weight"), cfg.RMSEps)
			gate, up := naiveProduct(h, name("mlp.gate_proj.weight")), naiveProduct(h, name("mlp.up_proj.weight"))
			for i, g := range gate {
				gate[i] = g / (1 + math.Exp(-g)) * up[i]
			}
			for i, d := range naiveProduct(gate, name("mlp.down_proj.weight")) {
				x[t][i] += d
			}
		}
	}
	for t := range x {
		x[t] = naiveNorm(x[t], w(finalNormName), cfg.RMSEps)
	}
	return x
}

// naiveProduct multiplies with weights of shape [outputs, len(x)].
func naiveProduct(x []float64, w []float32) []float64 {
	out := make([]float64, len(w)/len(x))
	for o := range out {
		for i, v := range x {
			out[o] += v * float64(w[o*len(x)+i])
		}
	}
	return out
}

func naiveAdd(x []float64, bias []float32) []float64 {
	for i, b := range bias {
		x[i] += float64(b)
	}
	return x
}

func naiveNorm(x []float64, w []float32, eps float64) []float64 {
	var squares float64
	for _, v := range x {
		squares += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(squares/float64(len(x))+eps) * float64(w[i])
	}
	return out
}

// naiveHeads normalizes (if there is a weight) and rotates every head in x.
func naiveHeads(cfg Config, x []float64, norm []float32, position int) {
	half := cfg.HeadDim / 2
	for first := 0; first < len(x); first += cfg.HeadDim {
		h := x[first:][:cfg.HeadDim]
		if norm != nil {
			copy(h, naiveNorm(h, norm, cfg.RMSEps))
		}
		for i := range half {
			angle := float64(position) * math.Pow(cfg.RopeTheta, -2*float64(i)/float64(cfg.HeadDim))
			if cfg.RopeScaling.Type == "linear" {
				angle /= cfg.RopeScaling.Factor
			}
			turned := complex(h[i], h[i+half]) * complex(math.Cos(angle), math.Sin(angle))
			h[i], h[i+half] = real(turned), imag(turned)
		}
	}
}

func naiveAttention(cfg Config, q []float64, k, v [][]float64) []float64 {
	dim := cfg.HeadDim
	out := make([]float64, len(q))
	for h := range cfg.Heads {
		shared := h / (cfg.Heads / cfg.KVHeads)
		var total float64
		for t := range k {
			var score float64
			for d := range dim {
				score += q[h*dim+d] * k[t][shared*dim+d]
			}
			e := math.Exp(score / math.Sqrt(float64(dim)))
			total += e
			for d := range dim {
				out[h*dim+d] += e * v[t][shared*dim+d]
			}
		}
		for d := range dim {
			out[h*dim+d] /= total
		}
	}
	return out
}

// shapes differ in everything on which the code branches: head groups, widths that fill no vector or panel,
// tied heads, biases, head norms, scaling.
var shapes = map[string]Config{
	"grouped": {
		HiddenSize: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 12, Intermediate: 80,
		VocabSize: 150, MaxPositions: 700, RopeTheta: 10000, RMSEps: 1e-6,
	},
	"odd": {
		HiddenSize: 21, Layers: 2, Heads: 3, KVHeads: 3, HeadDim: 6, Intermediate: 67,
		VocabSize: 131, MaxPositions: 700, RopeTheta: 500, RMSEps: 1e-5, QKVBias: true, TieEmbeddings: true,
		RopeScaling: RopeScaling{Type: "linear", Factor: 2},
	},
	"single": {
		HiddenSize: 32, Layers: 1, Heads: 20, KVHeads: 1, HeadDim: 8, Intermediate: 40,
		VocabSize: 64, MaxPositions: 700, RopeTheta: 1e6, RMSEps: 1e-6, QKNorm: true,
	},
}

func TestNaive(t *testing.T) {
	for name, cfg := range shapes {
		for _, k := range kernels() {
			t.Run(name+"/"+k.kernelName(), func(t *testing.T) {
				weights := randomWeights(cfg, 3)
				m, err := newModel(t.Context(), cfg, weights, k)
				if err != nil {
					t.Fatal(err)
				}
				tokens := randomTokens(rand.New(rand.NewPCG(5, 6)), 45, cfg.VocabSize)
				want := naiveLogits(cfg, weights, tokens)
				got := everyLogits(t, m, tokens)
				for p := range want {
					for i := range want[p] {
						if diff := math.Abs(float64(got[p][i]) - want[p][i]); !(diff < 1e-4) {
							t.Fatalf("position %d logit %d: got %v, want %v", p, i, got[p][i], want[p][i])
						}
					}
				}
			})
		}
	}
}

// everyLogits computes the logits after every position, alone, one token at a time, by one worker, in
// consecutive blocks.
func everyLogits(t *testing.T, m *Model, tokens []kv.Token) [][]float32 {
	t.Helper()
	const size = 16
	blocks := table(0, len(tokens), size)
	c := newTestCache(m, len(blocks), size, 1, 1)
	logits := make([][]float32, len(tokens))
	for p := range tokens {
		logits[p] = make([]float32, m.cfg.VocabSize)
		forward(t, m, c, Work{Tokens: tokens[p : p+1], Start: p, Blocks: blocks, Logits: logits[p]})
	}
	return logits
}

func forward(t *testing.T, m *Model, c *Cache, work ...Work) {
	t.Helper()
	if err := m.Forward(c, work); err != nil {
		t.Fatal(err)
	}
}
