package model

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"penstock/core/kv"
)

// benchConfig has about the shape of the built-in model.
var benchConfig = Config{
	HiddenSize: 256, Layers: 6, Heads: 8, KVHeads: 4, HeadDim: 32, Intermediate: 704,
	VocabSize: 2048, MaxPositions: 8192, RopeTheta: 10000, RMSEps: 1e-6,
}

// BenchmarkPrefill computes a whole prompt with an empty cache.
func BenchmarkPrefill(b *testing.B) {
	for _, k := range kernels() {
		for _, n := range []int{32, 512, 4096} {
			b.Run(fmt.Sprintf("%s/%d", k.kernelName(), n), func(b *testing.B) {
				m := randomModel(b, benchConfig, k)
				c := m.NewCache(512, 16)
				tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), n, benchConfig.VocabSize)
				work := []Work{{Tokens: tokens, Blocks: table(0, n, 16), Logits: make([]float32, benchConfig.VocabSize)}}
				for b.Loop() {
					if err := m.Forward(c, work); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkDecode computes one token for each of some sequences of 256 tokens.
func BenchmarkDecode(b *testing.B) {
	const past = 256
	for _, k := range kernels() {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/batch%d", k.kernelName(), n), func(b *testing.B) {
				m := randomModel(b, benchConfig, k)
				c := m.NewCache(n*17, 16)
				var work []Work
				for i := range n {
					work = append(work, Work{
						Tokens: []kv.Token{kv.Token(i)}, Start: past, Blocks: table(i*17, past+1, 16),
						Logits: make([]float32, benchConfig.VocabSize),
					})
				}
				for b.Loop() {
					if err := m.Forward(c, work); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// BenchmarkNew builds the model from weights in memory.
func BenchmarkNew(b *testing.B) {
	weights := randomWeights(benchConfig, 7)
	for b.Loop() {
		if _, err := New(b.Context(), benchConfig, weights); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProduct multiplies on one core as the model does, for the shape of gate and up, compared to the
// library's own 512³ product with as many cores as it uses; run it with GOMAXPROCS=1 to compare.
func BenchmarkProduct(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 4))
	floats := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = rng.Float32() - 0.5
		}
		return x
	}
	report := func(b *testing.B, m, n, k int) {
		b.ReportMetric(2*float64(m*n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	}
	b.Run("library512", func(b *testing.B) {
		const n = 512
		x, y, z := floats(n*n), floats(n*n), make([]float32, n*n)
		for b.Loop() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, x, n, y, n, 0, z, n)
		}
		report(b, n, n, n)
	})
	const in, out = 256, 1408
	for _, k := range kernels() {
		w := newMatrix(in, out, k.panelWidth())
		w.packColumns(0, floats(in*out))
		for _, n := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/rows%d", k.kernelName(), n), func(b *testing.B) {
				x, z := floats(n*in), make([]float32, n*out)
				for b.Loop() {
					for p := range w.panelCount() {
						w.multiplyPanel(k, p, n, x, z[p*w.panelWidth:], out)
					}
				}
				report(b, n, out, in)
			})
		}
	}
}

// BenchmarkBlocks reads a block, and writes the tokens of blocks of some sizes into blocks of 16.
func BenchmarkBlocks(b *testing.B) {
	m := randomModel(b, benchConfig, portableKernel{})
	own := m.NewCache(128, 16)
	blocks := table(0, 2048, 16)
	for _, size := range []int{16, 64, 128} {
		other := m.NewCache(2048/size, size)
		src := BlockBytes{Size: size, Data: make([]byte, 2048/size*benchConfig.BlockBytes(size))}
		b.Run(fmt.Sprint("read/", size), func(b *testing.B) {
			b.SetBytes(int64(benchConfig.BlockBytes(size)))
			for i := 0; b.Loop(); i++ {
				other.ReadBlock(src.Data[:benchConfig.BlockBytes(size)], int32(i%(2048/size)))
			}
		})
		b.Run(fmt.Sprint("write/", size), func(b *testing.B) {
			b.SetBytes(int64(len(src.Data)))
			for b.Loop() {
				if err := own.WriteTokens(blocks, 0, 2048, &src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
