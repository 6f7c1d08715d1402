package sim

import (
	"penstock/core/media"
	"penstock/core/plan"
)

// PlanModel is a timing model as planners ask it: without jitter. Timing is used after EnsureDefaults and Validate.
type PlanModel struct {
	Timing *Timing
	// CacheTokens are the tokens of all blocks of an engine, at least 1.
	CacheTokens int
}

var (
	_ plan.EngineModel  = PlanModel{}
	_ plan.EncoderModel = PlanModel{}
)

// PrefillMs returns the time which a pass takes longer because it computes a prompt of so many tokens.
func (m PlanModel) PrefillMs(tokens float64) float64 {
	n := int(tokens + 0.5)
	p := Pass{Prefill: n, Prompts: 1, PrefillSquares: int64(n) * int64(n)}
	return m.Timing.prefillMillis(&p) / m.Timing.Speedup
}

// StepMs returns the time of a pass in which so many sequences of a mean length of context tokens get a token. Numbers of
// sequences between whole ones are on the line between them.
func (m PlanModel) StepMs(sequences, context float64) float64 {
	low := int(sequences)
	ms := m.wholeStepMs(low, context)
	if part := sequences - float64(low); part > 0 {
		ms += float64(part * (m.wholeStepMs(low+1, context) - ms))
	}
	return ms
}

func (m PlanModel) wholeStepMs(sequences int, context float64) float64 {
	n := max(sequences, 1)
	tokens := int(float64(float64(n)*context) + 0.5)
	p := Pass{Tokens: n, Context: tokens, UsedBlocks: tokens, TotalBlocks: m.CacheTokens}
	return m.Timing.decodeMillis(&p) / m.Timing.DecodeSpeedup * m.Timing.loadFactor(n) / m.Timing.Speedup
}

// EncodeMs returns the time in which an encoder encodes an image of so many tokens.
func (m PlanModel) EncodeMs(tokens float64) float64 {
	return m.Timing.EncodeMillis(media.Image, int(tokens+0.5)) / m.Timing.Speedup
}

// String names the model.
func (m PlanModel) String() string {
	if m.Timing.Profile != nil {
		return "profile"
	}
	return "timing model of the simulator"
}
