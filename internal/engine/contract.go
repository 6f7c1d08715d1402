package engine

import (
	"math"
	"slices"

	"penstock/core/fault"
)

// ContractError is the error for a worker that violates the contract: a defect, which a retry at another
// worker would only hide. The cause is for the log; it may be nil.
func ContractError(what string, cause error) error {
	return &fault.Error{
		Code:    fault.Internal,
		Message: "the worker sent " + what + ": this is a defect of the server",
		Err:     cause,
	}
}

// unreadable describes a frame that cannot be decoded.
const unreadable = "a frame that cannot be read"

// TrimDelivered checks that d continues a choice after the have tokens that this attempt or earlier ones
// delivered, and removes the delivered tokens from d. logprobs is the request's Logprobs: if negative, d
// keeps none.
func (d *Delta) TrimDelivered(have, logprobs int) error {
	switch {
	case d.Pos < 0 || d.Pos > have:
		return ContractError("tokens with a gap before them", nil)
	case logprobs >= 0 && len(d.Logprobs) != len(d.Tokens):
		return ContractError("tokens without log-probabilities", nil)
	}
	old := min(have-d.Pos, len(d.Tokens))
	d.Pos, d.Tokens = d.Pos+old, d.Tokens[old:]
	if logprobs < 0 {
		d.Logprobs = nil
		return nil
	}
	d.Logprobs = d.Logprobs[old:]
	return nil
}

// TakeFrame reads a frame of the answer to an attempt. It ignores a frame of another attempt, which is late;
// a second answer is an error and clears Vector. Vector is nil before the answer.
func (e *Embedding) TakeFrame(frame []byte, attempt uint32) error {
	var got Embedding
	if err := DecodeEmbedding(frame, &got); err != nil {
		return ContractError(unreadable, err)
	}
	switch {
	case got.Attempt != attempt:
		return nil
	case e.Vector != nil:
		e.Vector = nil
		return ContractError("a second embedding", nil)
	case len(got.Vector) == 0 || slices.ContainsFunc(got.Vector, isNotFinite):
		return ContractError("an embedding that is no vector", nil)
	}
	*e = got
	return nil
}

func isNotFinite(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }

// TakeFrame reads a frame of the answer to an attempt, for a model with vocabulary entries. It ignores a
// frame of another attempt, which is late; a second answer is an error and clears p. Before the last frame of
// the answer p.Attempt is 0.
func (p *Preprocessed) TakeFrame(frame []byte, attempt uint32, vocabulary int) error {
	var got Preprocessed
	more, err := decodePreprocessed(frame, &got)
	if err != nil {
		return ContractError(unreadable, err)
	}
	if got.Attempt != attempt {
		return nil
	}
	if p.Attempt != 0 {
		*p = Preprocessed{}
		return ContractError("a second prompt", nil)
	}
	if len(p.Features)+len(got.Features) > MaxFeatures {
		return ContractError("more of media than a prompt may show", nil)
	}
	got.Features = append(p.Features, got.Features...)
	if more {
		p.Features = got.Features
		return nil
	}
	if err := got.Validate(vocabulary); err != nil {
		return ContractError("a prompt that is none", err)
	}
	*p = got
	return nil
}
