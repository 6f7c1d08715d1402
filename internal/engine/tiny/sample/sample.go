// Package sample samples the next token of a choice from a model's logits.
//
// A sample is a function of its arguments alone: of the logits, the request's parameters, the tokens before,
// and (seed, choice, position). There is no generator state that could be lost, so a choice that moves to
// another engine continues exactly as if it had not moved. All arithmetic after the logits is in this
// package, in operations that IEEE 754 defines to the bit and without fused multiply-adds, so the same logits
// give the same token on every machine.
//
// # Order
//
// The steps, each working on the result of the one before:
//
//  1. mask: the logits of the vocabulary's masked tokens become -Inf, and NaN
//     becomes -Inf. This is the model's own distribution; log-probabilities are
//     those of its softmax.
//  2. grammar: the logits of the tokens that it does not allow become -Inf. The
//     set of allowed tokens respects MinTokens.
//  3. without a grammar, stop tokens become -Inf while the output is shorter than
//     MinTokens.
//  4. bias: added to the logits of the tokens named.
//  5. repetition penalty: the logit of each token that occurs in the prompt or
//     the output is divided by it if positive, multiplied by it otherwise.
//  6. frequency and presence penalty: from the logit of each token in the output
//     are subtracted frequency × (times it occurs), then presence.
//  7. temperature 0 ends here: the largest logit wins.
//  8. temperature: the weight of a token is exp((logit - largest) / temperature).
//  9. top-k keeps the k best tokens.
//  10. top-p keeps the fewest best tokens that together have at least the share p
//     of the weight left by top-k.
//  11. min-p keeps the tokens whose weight is at least the share p of the best's.
//  12. one of the tokens kept is drawn in proportion to its weight.
//
// "Best" is the larger logit and, among equals, the lower id.
//
// # Weights are integers
//
// A weight is kept in units of 2^-44 of the best token's, rounded down: a token less likely than that is
// never sampled. Integer sums do not depend on their order, so the filters may select partially instead of
// sorting and still mean exactly what is written above.
package sample

import (
	"math"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// Sampler samples tokens for any number of choices over one vocabulary. It owns the scratch memory, so it
// serves one call at a time.
type Sampler struct {
	mask     []kv.Token
	adjusted []float32 // logits after penalties, when there are any
	weights  []uint64
	ranks    []tokenRank
	top      []tokenRank
}

// MaxVocab bounds the vocabulary: the sum of all weights must fit 63 bits.
const MaxVocab = 1 << 19

// New returns a Sampler over a vocabulary of size tokens in which the tokens of mask are never sampled and
// have no probability. Tokens outside the vocabulary are ignored in mask. It keeps mask. size must be in [1,
// MaxVocab].
func New(size int, mask []kv.Token) *Sampler {
	if size < 1 || size > MaxVocab {
		panic("sample: vocabulary size out of range")
	}
	return &Sampler{
		mask:     mask,
		adjusted: make([]float32, size),
		weights:  make([]uint64, size),
		ranks:    make([]tokenRank, 0, size),
	}
}

// Next samples the token at c's current position from logits, which has one entry per token of the
// vocabulary; it leaves the mask applied to them. allowed has the tokens that the grammar allows as bits,
// token i being bit i%64 of word i/64; nil is no grammar. The token then counts as output of c. Top is newly
// allocated when c asks for alternatives, and nothing else is; Logprob is 0 when c does not ask for
// log-probabilities. The error is Internal and means that no token at all could be sampled: the model
// computed no number, or everything is masked.
func (s *Sampler) Next(c *Choice, logits []float32, allowed []uint64) (engine.Logprob, error) {
	s.applyMask(logits)
	adjusted := logits
	if allowed != nil || c.adjustsLogits() {
		adjusted = s.adjusted
		copy(adjusted, logits)
		c.adjustLogits(adjusted, allowed)
	}
	best, ok := argmax(adjusted)
	if !ok {
		return engine.Logprob{}, fault.New(fault.Internal, "sample position %d: no token has a probability; report this with the model's name", c.position)
	}
	token := best
	if c.params.Sampling.Temperature > 0 {
		token = s.drawToken(adjusted, best, &c.params.Sampling, RandomBits(c.params.Sampling.Seed, c.params.Choice, c.position))
	}
	out := engine.Logprob{Token: token}
	if c.params.Logprobs >= 0 {
		s.fillLogprobs(&out, logits, c.params.Logprobs)
	}
	c.appendToken(token)
	return out, nil
}

func (s *Sampler) applyMask(logits []float32) {
	negInf := float32(math.Inf(-1))
	for _, t := range s.mask {
		if int(t) < len(logits) {
			logits[t] = negInf
		}
	}
	for i, l := range logits {
		if l != l {
			logits[i] = negInf
		}
	}
}

// argmax returns the best token; ok is false if none is above -Inf.
func argmax(logits []float32) (best kv.Token, ok bool) {
	largest := float32(math.Inf(-1))
	for i, l := range logits {
		if l > largest {
			largest, best = l, kv.Token(i)
		}
	}
	return best, !math.IsInf(float64(largest), 0)
}
