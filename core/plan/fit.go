package plan

import (
	"cmp"
	"fmt"
	"time"
)

// PassSample is a pass of an engine, or the mean of several.
type PassSample struct {
	// Age is for how long the worker was ready.
	Age time.Duration
	// PrefillTokens are prompt tokens which the pass computed, Sequences those sequences which got a token, and
	// ContextTokens the sum of their lengths.
	PrefillTokens, Sequences, ContextTokens float64
	// Took is the duration of the pass.
	Took time.Duration
}

// FittedModel is fitted to passes of live workers by weighted least squares:
//
//	pass = p0·[tokens > 0] + p1·tokens + d0·[sequences > 0] + d1·sequences + d2·context
//
// No coefficient is negative, and earlier passes count less. Dynamo's planner has the same form for a pass (prefill by
// its tokens, decode by sequences and KV tokens), and of the simulator's model without its squares.
//
// Passes of cold workers are left out: an engine which compiles kernels, captures graphs or reads weights is many times
// slower, and a fit to it orders far too many workers, which are cold in their turn.
type FittedModel struct {
	// warmUp is the age below which a worker is cold.
	warmUp time.Duration
	// sums has the rows, each divided by its expected time, so that relative errors count.
	sums                    *normalEquations
	c                       []float64
	prefills, steps, colds  int
	row                     []float64 // scratch
	mixedPrefill, mixedStep bool
	firstTokens, firstStep  float64
}

const (
	fitColumns = 5
	// fitForget makes the last 500 passes count.
	fitForget = 0.998
	// fitSamples is the number of passes with prompt tokens, and of ones with sequences, from which a fit is used.
	fitSamples = 30
	// fitSurprise bounds by how much a sample exceeds, or falls short of, the fit.
	fitSurprise = 4
	// fitVaries is by how much amounts must differ before a fit is used: a line through one amount has any slope.
	fitVaries = 1.3
)

// NewFittedModel returns a model which has learned nothing. Workers are cold for warmUp after they are ready; two
// minutes if 0.
func NewFittedModel(warmUp time.Duration) *FittedModel {
	return &FittedModel{
		warmUp: cmp.Or(warmUp, 2*time.Minute), sums: newNormalEquations(fitColumns),
		row: make([]float64, fitColumns),
	}
}

// AddPass learns a pass. It reports whether the pass counts: passes of cold workers and impossible figures do not.
func (m *FittedModel) AddPass(s PassSample) bool {
	switch {
	case s.Age < m.warmUp:
		m.colds++
		return false
	case !(s.PrefillTokens >= 0 && s.PrefillTokens <= 1e9 && s.Sequences >= 0 && s.Sequences <= 1e9 &&
		s.ContextTokens >= 0 && s.ContextTokens <= 1e12):
		return false
	case s.PrefillTokens+s.Sequences == 0 || s.Took <= 0 || s.Took > time.Hour:
		return false
	}
	ms := float64(s.Took) / float64(time.Millisecond)
	m.fillRow(s.PrefillTokens, s.Sequences, s.ContextTokens)
	if expected := m.applyFit(); m.IsReady() && expected > 0 {
		ms = min(max(ms, expected/fitSurprise), expected*fitSurprise)
	}
	m.sums.decaySums(fitForget)
	m.sums.addRow(m.row, ms, 1/float64(ms*ms))
	m.countPass(s)
	m.c = m.sums.solveNonNegative()
	return true
}

func (m *FittedModel) countPass(s PassSample) {
	if s.PrefillTokens > 0 {
		if m.prefills++; m.prefills == 1 {
			m.firstTokens = s.PrefillTokens
		}
		m.mixedPrefill = m.mixedPrefill || differ(m.firstTokens, s.PrefillTokens)
	}
	if s.Sequences > 0 {
		if m.steps++; m.steps == 1 {
			m.firstStep = s.Sequences
		}
		m.mixedStep = m.mixedStep || differ(m.firstStep, s.Sequences)
	}
}

func differ(a, b float64) bool { return max(a, b) > fitVaries*min(a, b) }

func (m *FittedModel) fillRow(tokens, sequences, context float64) {
	clear(m.row)
	if tokens > 0 {
		m.row[0], m.row[1] = 1, tokens
	}
	if sequences > 0 {
		m.row[2], m.row[3], m.row[4] = 1, sequences, context
	}
}

func (m *FittedModel) applyFit() float64 {
	ms := 0.0
	for i, c := range m.c {
		ms += float64(c * m.row[i])
	}
	return ms
}

// IsReady reports whether enough passes with amounts which differ were seen, of both kinds.
func (m *FittedModel) IsReady() bool {
	return m.prefills >= fitSamples && m.steps >= fitSamples && m.mixedPrefill && m.mixedStep
}

// Counts returns the passes which count, and the ones of cold workers, which do not.
func (m *FittedModel) Counts() (prefills, steps, colds int) { return m.prefills, m.steps, m.colds }

// PrefillMs returns the fitted time; 0 before the first pass.
func (m *FittedModel) PrefillMs(tokens float64) float64 {
	m.fillRow(tokens, 0, 0)
	return m.applyFit()
}

// StepMs returns the fitted time; 0 before the first pass.
func (m *FittedModel) StepMs(sequences, context float64) float64 {
	m.fillRow(0, sequences, float64(sequences*context))
	return m.applyFit()
}

// String names the model, and says from how much it was fitted.
func (m *FittedModel) String() string {
	return fmt.Sprintf("fit to %d prefills and %d steps", m.prefills, m.steps)
}
