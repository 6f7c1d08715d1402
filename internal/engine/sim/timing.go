// Package sim is an engine that computes nothing: its blocks, its schedule and its events are real
// ([core/paged]), its time comes from a model, and its text is a fixed passage. In real time it serves like
// any other engine; a simulated cluster uses the same model in virtual time.
package sim

import (
	"math"
	"time"

	"penstock/core/media"
)

// Timing is the timing model: a value that can be copied. The same pass with the same number takes the same
// time on every machine. It is used after EnsureDefaults and Validate; nothing that it refers to may change
// after that. The formulas, their sources and their omissions are in docs/sim.md.
//
// The terms of a pass are in milliseconds, before Speedup.
type Timing struct {
	Prefill Prefill
	Decode  Decode
	// Profile, if not nil, replaces Prefill and Decode.
	Profile *Profile
	// Encoder says how long an object of media takes, by its number of tokens, in ascending order; nil is no time.
	// At most MaxEncoder points. EncoderOf has the tables of the kinds which have one of their own.
	Encoder   []EncoderPoint
	EncoderOf map[media.Kind][]EncoderPoint
	Load      Load
	KV        KV

	// Speedup divides every time, DecodeSpeedup also divides the time of decode; 0 means 1.
	Speedup, DecodeSpeedup float64
	// Jitter is the relative standard deviation of a pass, at most MaxJitter. No pass deviates by more than
	// 70 %. Seed is its seed.
	Jitter float64
	Seed   uint64
	// Startup is how long an engine takes before it serves. Speedup does not apply to it.
	Startup time.Duration
}

// Prefill is the time of a pass that computes T prompt tokens:
//
//	Pass + Token·T + TokenSquared·T² + Prompt·prompts + PromptSquared·Σn² + Context·Σ(n·before)
//
// where n is the tokens of one prompt in the pass, and before is its tokens computed earlier. The time is 0
// if T is 0, and never negative. All are milliseconds.
type Prefill struct {
	Pass, Token, TokenSquared, Prompt, PromptSquared, Context float64
}

// Decode is the additional time of a pass that gives a token to at least one sequence:
//
//	Base + Use·p + UseSquared·p² + Sequence·sequences + Context·Σ(their tokens)
//
// where p is the share of blocks in use. The time is at least 1 ms. All are milliseconds.
type Decode struct {
	Base, Use, UseSquared, Sequence, Context float64
}

// EncoderPoint says that an object of Tokens tokens takes Millis milliseconds.
type EncoderPoint struct {
	Tokens int
	Millis float64
}

// Load is the slowdown by running sequences: the factor grows linearly from 1 with one sequence to Factor
// with Seqs or more.
type Load struct {
	Factor float64 // 1 if 0
	Seqs   int     // 256 if 0
}

// KV is the transfer time of a prompt's K and V between workers: Fixed milliseconds, plus BytesPerToken for
// each token at Bandwidth.
type KV struct {
	// Layers, Heads (KV heads), HeadDim and ElementBytes are the model's shape; Bytes, if not 0, replaces the
	// BytesPerToken computed from them.
	Layers, Heads, HeadDim, ElementBytes int
	Bytes                                int
	// Bandwidth is in GB/s (10⁹ bytes); 0 means infinite.
	Bandwidth float64
	Fixed     float64
}

// BytesPerToken returns the size of K and V of one token.
func (k *KV) BytesPerToken() int64 {
	if k.Bytes > 0 {
		return int64(k.Bytes)
	}
	return 2 * int64(k.Layers) * int64(k.Heads) * int64(k.HeadDim) * int64(k.ElementBytes)
}

// minDecodeMillis is the least time of decode in milliseconds.
const minDecodeMillis = 1

// Every product below that is part of a sum is converted explicitly: this forbids the compiler to fuse
// multiplication and addition, which would round once instead of twice and give different sums on different
// processors.

// PassDuration returns how long the engine takes for p, its number-th pass from 0: it first fetches blocks,
// then computes. It is 0 if p does neither.
func (t *Timing) PassDuration(p *Pass, number uint64) time.Duration {
	ms := t.prefillMillis(p) + p.EncodeMillis
	if p.Tokens > 0 {
		ms += t.decodeMillis(p) / t.DecodeSpeedup
	}
	fetch := t.TransferDuration(p.Fetched)
	if ms == 0 {
		return fetch
	}
	return fetch + toDuration(ms*t.loadFactor(p.Running)*t.jitterFactor(number)/t.Speedup)
}

// TransferDuration returns how long the transfer of the K and V of tokens between two workers takes.
func (t *Timing) TransferDuration(tokens int) time.Duration {
	return t.transferDuration(float64(t.KV.BytesPerToken()) * float64(tokens))
}

// transferDuration is the time of a transfer of so many bytes.
func (t *Timing) transferDuration(bytes float64) time.Duration {
	if bytes <= 0 {
		return 0
	}
	ms := t.KV.Fixed
	if t.KV.Bandwidth > 0 {
		ms += bytes / (t.KV.Bandwidth * 1e6)
	}
	if ms == 0 {
		return 0
	}
	return toDuration(ms / t.Speedup)
}

func (t *Timing) prefillMillis(p *Pass) float64 {
	if p.Prefill <= 0 {
		return 0
	}
	tokens := float64(p.Prefill)
	if t.Profile != nil {
		return t.Profile.prefillMillis(tokens)
	}
	c := &t.Prefill
	ms := c.Pass
	ms += float64(c.Token * tokens)
	ms += float64(c.TokenSquared * tokens * tokens)
	ms += float64(c.Prompt * float64(p.Prompts))
	ms += float64(c.PromptSquared * float64(p.PrefillSquares))
	ms += float64(c.Context * float64(p.PrefillContext))
	return max(0, ms)
}

func (t *Timing) decodeMillis(p *Pass) float64 {
	if t.Profile != nil {
		return max(minDecodeMillis, t.Profile.decodeMillis(float64(p.Context), float64(p.Context)/float64(p.Tokens)))
	}
	c := &t.Decode
	used := 0.0
	if p.TotalBlocks > 0 {
		used = min(1, float64(p.UsedBlocks)/float64(p.TotalBlocks))
	}
	ms := c.Base
	ms += float64(c.Use * used)
	ms += float64(c.UseSquared * used * used)
	ms += float64(c.Sequence * float64(p.Tokens))
	ms += float64(c.Context * float64(p.Context))
	return max(minDecodeMillis, ms)
}

// loadFactor returns the slowdown by running sequences.
func (t *Timing) loadFactor(running int) float64 {
	if t.Load.Seqs <= 1 || running <= 1 {
		return 1
	}
	share := min(1, float64(running-1)/float64(t.Load.Seqs-1))
	return 1 + float64((t.Load.Factor-1)*share)
}

// lineAt returns the value at x of the straight line through two points.
func lineAt(x0, y0, x1, y1, x float64) float64 {
	return y0 + float64((x-x0)*((y1-y0)/(x1-x0)))
}

// maxPassNanos is the longest duration of a pass, in nanoseconds: about 100 days. It keeps sums of a virtual
// clock far from overflow.
const maxPassNanos = 1e16

// toDuration rounds ms to the nearest nanosecond, but to at least one.
func toDuration(ms float64) time.Duration {
	ns := float64(ms * 1e6)
	return time.Duration(math.Floor(max(1, min(ns, maxPassNanos)) + 0.5))
}
