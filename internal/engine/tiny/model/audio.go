package model

import (
	"context"
	"fmt"
	"runtime"
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
func (a *Audio) Rows(samples int) int {
	return (samples + a.RowSamples() - 1) / a.RowSamples()
}

// RowSamples is how many samples make a row.
func (a *Audio) RowSamples() int { return a.Frame * framesOfRow }

func (a *Audio) specs(hidden int) []Spec {
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
type hearing struct {
	frames, rows linear
	norm         layerNorm
}

func (m *Model) loadAudio(l *loader) *hearing {
	a := &m.cfg.Audio
	if *a == (Audio{}) {
		return nil
	}
	return &hearing{
		frames: l.linear(a.Frame, a.Dim, "audio.frames"),
		norm:   l.layerNorm("audio.norm"),
		rows:   l.linear(a.Dim, m.cfg.HiddenSize, "audio.rows"),
	}
}

// EncodeAudio computes the rows that replace a sound's placeholders in a prompt: [Audio.Rows, HiddenSize].
// They depend only on the samples. It may be called concurrently.
func (m *Model) Hear(ctx context.Context, samples []float32) ([]float32, error) {
	a := &m.cfg.Audio
	if m.hearing == nil || len(samples) == 0 {
		return nil, fmt.Errorf("model hear: %d samples, and width %d of the encoder", len(samples), a.Dim)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows := a.Rows(len(samples))
	n := rows * framesOfRow
	frames := make([]float32, n*a.Frame)
	copy(frames, samples)
	e := &encoding{m: m, crew: newCrew(runtime.GOMAXPROCS(0)), n: n}
	x := make([]float32, n*a.Dim)
	e.through(m.hearing.frames, frames, x, n)
	means := make([]float32, rows*a.Dim)
	e.overRows(rows, framesOfRow*a.Dim, func(i int) {
		four := part(x, i, framesOfRow*a.Dim)
		quickGELU(m.kernel, four)
		mean := part(means, i, a.Dim)
		for d := range mean {
			mean[d] = ((four[d] + four[a.Dim+d]) + (four[2*a.Dim+d] + four[3*a.Dim+d])) / framesOfRow
		}
		m.hearing.norm.apply(mean, mean)
	})
	out := make([]float32, rows*m.cfg.HiddenSize)
	e.through(m.hearing.rows, means, out, rows)
	return out, nil
}
