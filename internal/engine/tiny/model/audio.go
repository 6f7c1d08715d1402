package model

import (
	"context"
	"fmt"
)

// Audio is the shape of a sound encoder: frames of Frame samples become rows of width Dim. The encoder
// averages four rows at a time, and projects them to the decoder's width. The zero value is none.
type Audio struct {
	Frame int // samples; 160 at 16 kHz give 25 rows a second
	Dim   int
}

// framesOfRow is how many frames make a row: two halvings of the rate.
const framesOfRow = 4

func (a *Audio) validate() error {
	if *a == (Audio{}) || a.Frame >= 1 && a.Frame <= 1<<16 && a.Dim >= 1 && a.Dim <= 1<<16 {
		return nil
	}
	return fmt.Errorf("model config: audio %+v; every one must be between 1 and %d", *a, 1<<16)
}

// RowCount is how many rows a sound has; the last may be padded with silence.
func (a *Audio) RowCount(samples int) int {
	return (samples + a.RowSamples() - 1) / a.RowSamples()
}

// RowSamples is how many samples make a row.
func (a *Audio) RowSamples() int { return a.Frame * framesOfRow }

func (a *Audio) weightSpecs(hidden int) []Spec {
	if *a == (Audio{}) {
		return nil
	}
	return []Spec{
		{"audio.frames.weight", []int{a.Dim, a.Frame}},
		{"audio.frames.bias", []int{a.Dim}},
		{"audio.norm.weight", []int{a.Dim}},
		{"audio.norm.bias", []int{a.Dim}},
		{"audio.rows.weight", []int{hidden, a.Dim}},
		{"audio.rows.bias", []int{hidden}},
	}
}

// audioEncoder holds the weights of the encoder.
type audioEncoder struct {
	frames, rows linear
	norm         layerNorm
}

func (m *Model) loadAudio(l *weightLoader) *audioEncoder {
	a := &m.cfg.Audio
	if *a == (Audio{}) {
		return nil
	}
	return &audioEncoder{
		frames: l.loadLinear(a.Frame, a.Dim, "audio.frames"),
		norm:   l.loadLayerNorm("audio.norm"),
		rows:   l.loadLinear(a.Dim, m.cfg.HiddenSize, "audio.rows"),
	}
}

// EncodeAudio computes the rows that replace a sound's placeholders in a prompt: [Audio.Rows, HiddenSize].
// They depend only on the samples. It may be called concurrently.
func (m *Model) EncodeAudio(ctx context.Context, samples []float32) ([]float32, error) {
	return m.EncodeAudioBeside(ctx, samples, nil)
}

// EncodeAudioBeside is to EncodeAudio what EncodeImageBeside is to EncodeImage.
func (m *Model) EncodeAudioBeside(ctx context.Context, samples []float32, yields func() bool) ([]float32, error) {
	a := &m.cfg.Audio
	if m.audio == nil || len(samples) == 0 {
		return nil, fmt.Errorf("model hear: %d samples, and width %d of the encoder", len(samples), a.Dim)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows := a.RowCount(len(samples))
	n := rows * framesOfRow
	frames := make([]float32, n*a.Frame)
	copy(frames, samples)
	e := &encodeState{model: m, pool: newYieldingPool(yields), n: n}
	x := make([]float32, n*a.Dim)
	e.multiplyRows(m.audio.frames, frames, x, n)
	means := make([]float32, rows*a.Dim)
	e.forRows(rows, framesOfRow*a.Dim, func(i int) {
		four := rowOf(x, i, framesOfRow*a.Dim)
		applyQuickGELU(m.kernel, four)
		mean := rowOf(means, i, a.Dim)
		for d := range mean {
			mean[d] = ((four[d] + four[a.Dim+d]) + (four[2*a.Dim+d] + four[3*a.Dim+d])) / framesOfRow
		}
		m.audio.norm.normalizeRow(mean, mean)
	})
	out := make([]float32, rows*m.cfg.HiddenSize)
	e.multiplyRows(m.audio.rows, means, out, rows)
	return out, nil
}
