package sample

import (
	"math"
	"math/big"
	"slices"

	"penstock/core/kv"
)

// naiveNext is the package's order written literally: full sorts, big integers, package math's exponential,
// counting by scanning. output is the choice's output so far.
func naiveNext(p Params, mask, prompt, output []kv.Token, logits []float32, allowed []uint64) kv.Token {
	l := slices.Clone(logits)
	for i := range l {
		if slices.Contains(mask, kv.Token(i)) || math.IsNaN(float64(l[i])) {
			l[i] = float32(math.Inf(-1))
		}
	}
	for i := range l {
		if allowed != nil && allowed[i/64]&(1<<(i%64)) == 0 {
			l[i] = float32(math.Inf(-1))
		}
	}
	if allowed == nil && len(output) < p.MinTokens {
		for _, t := range p.Stops {
			l[t] = float32(math.Inf(-1))
		}
	}
	for _, b := range p.Sampling.Bias {
		l[b.Token] += b.Bias
	}
	count := func(in []kv.Token, t int) (n int) {
		for _, o := range in {
			if int(o) == t {
				n++
			}
		}
		return n
	}
	for i := range l {
		inPrompt, inOutput := count(prompt, i), count(output, i)
		if r := float32(p.Sampling.RepetitionPenalty); r != 0 && inPrompt+inOutput > 0 {
			if l[i] > 0 {
				l[i] /= r
			} else {
				l[i] *= r
			}
		}
		if inOutput > 0 {
			l[i] -= float32(float32(p.Sampling.FrequencyPenalty) * float32(inOutput))
			l[i] -= float32(p.Sampling.PresencePenalty)
		}
	}

	ranking := make([]int, len(l))
	for i := range ranking {
		ranking[i] = i
	}
	slices.SortStableFunc(ranking, func(a, b int) int {
		switch {
		case l[a] > l[b]:
			return -1
		case l[a] < l[b]:
			return 1
		}
		return 0
	})
	best := ranking[0]
	if p.Sampling.Temperature == 0 {
		return kv.Token(best)
	}
	weight := func(i int) int64 {
		return int64(math.Exp((float64(l[i])-float64(l[best]))/p.Sampling.Temperature) * (1 << 44))
	}
	kept := slices.DeleteFunc(ranking, func(i int) bool { return weight(i) == 0 })
	if k := p.Sampling.TopK; k > 0 && k < len(kept) {
		kept = kept[:k]
	}
	if share := p.Sampling.TopP; share > 0 && share < 1 {
		var total int64
		for _, i := range kept {
			total += weight(i)
		}
		need := int64(math.Ceil(share * float64(total)))
		var sum int64
		for n, i := range kept {
			if sum += weight(i); sum >= need {
				kept = kept[:n+1]
				break
			}
		}
	}
	kept = slices.DeleteFunc(kept, func(i int) bool { return float64(weight(i)) < p.Sampling.MinP*(1<<44) })

	slices.Sort(kept)
	total := new(big.Int)
	for _, i := range kept {
		total.Add(total, big.NewInt(weight(i)))
	}
	target := new(big.Int).SetUint64(RandomBits(p.Sampling.Seed, p.Choice, len(output)))
	target.Mul(target, total).Rsh(target, 64)
	for _, i := range kept {
		w := big.NewInt(weight(i))
		if target.Cmp(w) < 0 {
			return kv.Token(i)
		}
		target.Sub(target, w)
	}
	panic("target beyond the total")
}

// naiveLogprob is the log-softmax of masked logits by package math.
func naiveLogprob(logits []float32, mask []kv.Token, t kv.Token) float64 {
	var sum float64
	for i, l := range logits {
		if !slices.Contains(mask, kv.Token(i)) {
			sum += math.Exp(float64(l))
		}
	}
	return float64(logits[t]) - math.Log(sum)
}
