package model

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// digester hashes weights and logits, as XXH3-128 over little-endian float32.
type digester struct {
	hash *xxh3.Hasher
	buf  []byte
}

func newDigester() *digester {
	return &digester{hash: xxh3.New(), buf: make([]byte, 1<<14)}
}

func (d *digester) addWeight(name string, data []float32) {
	fmt.Fprintf(d.hash, "%s %d\n", name, len(data))
	d.addFloats(data)
}

func (d *digester) addFloats(data []float32) {
	for len(data) > 0 {
		n := min(len(data), len(d.buf)/4)
		for i, v := range data[:n] {
			binary.LittleEndian.PutUint32(d.buf[4*i:], math.Float32bits(v))
		}
		d.hash.Write(d.buf[:4*n])
		data = data[n:]
	}
}

// probeTokens is the length of the prompt whose logits enter the digest.
const probeTokens = 8

// describeNumerics returns the value of Numerics. rows are the result of probeEncoders. A probe detects what names cannot: another compiler or
// math library, or instructions that only some processors have.
func (m *Model) describeNumerics(weights *digester, rows []float32) string {
	fmt.Fprintf(weights.hash, "%+v\n", m.cfg)
	weights.addFloats(m.probeLogits())
	weights.addFloats(rows)
	return m.nameNumerics(weights)
}

// describeEncoders returns the value of EncoderNumerics. rows are the result of probeEncoders.
func (m *Model) describeEncoders(weights *digester, rows []float32) string {
	fmt.Fprintf(weights.hash, "%+v %+v %d\n", m.cfg.Vision, m.cfg.Audio, m.cfg.HiddenSize)
	weights.addFloats(rows)
	return m.nameNumerics(weights)
}

func (m *Model) nameNumerics(d *digester) string {
	sum := d.hash.Sum128()
	return fmt.Sprintf("tiny1-%s-%s-%016x%016x", m.kernel.kernelName(), runtime.GOARCH, sum.Hi, sum.Lo)
}

// probeLogits returns the logits after a fixed prompt.
func (m *Model) probeLogits() []float32 {
	tokens := make([]kv.Token, min(probeTokens, m.cfg.MaxPositions))
	for i := range tokens {
		tokens[i] = kv.Token((uint64(i)*2654435761 + 97) % uint64(m.cfg.VocabSize))
	}
	logits := make([]float32, m.cfg.VocabSize)
	cache := m.newCache(1, probeTokens, len(tokens), 1)
	if err := m.Forward(cache, []Work{{Tokens: tokens, Blocks: []int32{0}, Logits: logits}}); err != nil {
		panic("model: probe: " + err.Error()) // a defect: the package made the work
	}
	return logits
}

// probeEncoders returns the rows of a fixed small picture and a fixed short sound.
func (m *Model) probeEncoders() (rows []float32) {
	wave := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(uint64(i)*2654435761%251)/125 - 1
		}
		return x
	}
	must := func(x []float32, err error) {
		if err != nil {
			panic("model: probe: " + err.Error()) // a defect: the package made the input
		}
		rows = append(rows, x...)
	}
	if v := &m.cfg.Vision; m.vision != nil {
		grid := [3]int{1, v.Merge, 2 * v.Merge}
		must(m.encodeImage(context.Background(), wave(grid[1]*grid[2]*v.PatchElements()), grid, newWorkerPool(1)))
	}
	if m.audio != nil {
		must(m.EncodeAudio(context.Background(), wave(m.cfg.Audio.Frame*framesOfRow)))
	}
	return rows
}
