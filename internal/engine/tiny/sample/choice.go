package sample

import (
	"cmp"
	"math"
	"slices"

	"penstock/core/exact"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// Params say how the tokens of one choice are sampled.
type Params struct {
	Sampling engine.Sampling
	Choice   int // index among the request's choices
	// Stops are not sampled while the output is shorter than MinTokens.
	Stops     []kv.Token
	MinTokens int
	// Logprobs is -1 for none, else how many alternatives to report.
	Logprobs int
}

// Choice is the sampling state of one choice: how long its output is and which tokens its penalties affect.
// It is rebuilt, not carried, when a choice moves to another engine.
type Choice struct {
	params   Params
	position int // index in the output of the next token
	// seen lists each token of prompt and output once, in order of appearance;
	// index finds it. Both stay empty without penalties.
	seen  []occurrence
	index map[kv.Token]int
}

// occurrence is a token and its number of occurrences in the output.
type occurrence struct {
	token kv.Token
	count int
}

// NewChoice returns the state of a choice whose output so far is generated. It
// keeps the slices of p and neither prompt nor generated. The parameters must
// have passed ValidateSampling of package batch, and prompt and generated be within the vocabulary.
func NewChoice(p Params, prompt, generated []kv.Token) *Choice {
	p.Sampling.RepetitionPenalty = cmp.Or(p.Sampling.RepetitionPenalty, 1)
	c := &Choice{params: p, position: len(generated)}
	if !c.hasPenalties() {
		return c
	}
	c.index = make(map[kv.Token]int)
	if p.Sampling.RepetitionPenalty != 1 {
		for _, t := range prompt {
			c.countToken(t, 0)
		}
	}
	for _, t := range generated {
		c.countToken(t, 1)
	}
	return c
}

// Position returns the index in the output of the token that is sampled next: the length of the output.
func (c *Choice) Position() int { return c.position }

func (c *Choice) appendToken(t kv.Token) {
	c.position++
	if c.hasPenalties() {
		c.countToken(t, 1)
	}
}

func (c *Choice) countToken(t kv.Token, n int) {
	i, ok := c.index[t]
	if !ok {
		i = len(c.seen)
		c.index[t] = i
		c.seen = append(c.seen, occurrence{token: t})
	}
	c.seen[i].count += n
}

func (c *Choice) hasPenalties() bool {
	p := &c.params.Sampling
	return p.RepetitionPenalty != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0
}

// adjustsLogits reports whether adjustLogits would change any logit without a mask.
func (c *Choice) adjustsLogits() bool {
	return c.hasPenalties() || len(c.params.Sampling.Bias) > 0 || c.position < c.params.MinTokens
}

// adjustLogits applies steps 2 to 6 of the package's order to logits. Every product is rounded by its
// conversion before it enters a sum, which forbids the compiler to fuse the two.
func (c *Choice) adjustLogits(logits []float32, allowed []uint64) {
	p := &c.params.Sampling
	switch {
	case allowed != nil:
		maskDisallowed(logits, allowed)
	case c.position < c.params.MinTokens:
		for _, t := range c.params.Stops {
			if int(t) < len(logits) {
				logits[t] = float32(math.Inf(-1))
			}
		}
	}
	for _, b := range p.Bias {
		logits[b.Token] += b.Bias
	}
	repetition, frequency, presence := float32(p.RepetitionPenalty), float32(p.FrequencyPenalty), float32(p.PresencePenalty)
	for _, o := range c.seen {
		l := logits[o.token]
		switch {
		case l > 0:
			l = float32(l / repetition)
		default:
			l = float32(l * repetition)
		}
		if o.count > 0 {
			l -= float32(frequency * float32(o.count))
			l -= presence
		}
		logits[o.token] = l
	}
}

// maskDisallowed sets the logits of the tokens that are not allowed to -Inf.
func maskDisallowed(logits []float32, allowed []uint64) {
	negInf := float32(math.Inf(-1))
	for i := range logits {
		if allowed[i/64]>>(i%64)&1 == 0 {
			logits[i] = negInf
		}
	}
}

// fillLogprobs fills in the log-probability of out.Token under the softmax of logits and the n most likely
// tokens.
func (s *Sampler) fillLogprobs(out *engine.Logprob, logits []float32, n int) {
	best, _ := argmax(logits)
	largest := float64(logits[best])
	var sum float64
	for _, l := range logits {
		sum += exact.Exp(float64(l) - largest)
	}
	norm := exact.Ln(sum)
	of := func(l float32) float32 { return float32(float64(l) - largest - norm) }

	out.Logprob = of(logits[out.Token])
	if n == 0 {
		return
	}
	s.mostLikely(logits, n)
	out.Top = make([]engine.TokenLogprob, len(s.top))
	for i, r := range s.top {
		out.Top[i] = engine.TokenLogprob{Token: r.tokenID(), Logprob: of(logits[r.tokenID()])}
	}
}

// mostLikely fills s.top with the n best tokens that have a probability, best
// first. n is small: it inserts into a sorted list.
func (s *Sampler) mostLikely(logits []float32, n int) {
	s.top = s.top[:0]
	for i := range logits {
		r := rankOf(logits, i)
		full := len(s.top) == n
		if full && r > s.top[n-1] || r >= firstImpossible {
			continue
		}
		if full {
			s.top = s.top[:n-1]
		}
		at, _ := slices.BinarySearch(s.top, r)
		s.top = slices.Insert(s.top, at, r)
	}
}

// firstImpossible is the rank of token 0 at a logit of -Inf.
const firstImpossible = tokenRank(0xff800000) << 32
