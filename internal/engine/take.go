package engine

import (
	"math"
	"slices"

	"penstock/core/fault"
)

// Broken is the error of a worker that does not keep to the contract: a defect,
// which another worker would only hide. The cause is for the log; it may be nil.
func Broken(what string, cause error) error {
	return &fault.Error{
		Code:    fault.Internal,
		Message: "the worker sent " + what + ": this is a defect of the server",
		Err:     cause,
	}
}

// unreadable is what is broken about a frame that cannot be decoded.
const unreadable = "a frame that cannot be read"

// Continue checks that d goes on with a choice of which so many tokens have come,
// by this attempt or others, and leaves in it those that have not. logprobs is what
// the request says of them: negative if it asked for none, and then d has none.
func (d *Delta) Continue(have, logprobs int) error {
	switch {
	case d.Pos < 0 || d.Pos > have:
		return Broken("tokens with a gap before them", nil)
	case logprobs >= 0 && len(d.Logprobs) != len(d.Tokens):
		return Broken("tokens without log-probabilities", nil)
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

// Take reads a frame of the answer to an attempt. A frame of another attempt is late
// and nothing; a second answer leaves none. Before the answer has come, Vector is nil.
func (e *Embedding) Take(frame []byte, attempt uint32) error {
	var got Embedding
	if err := DecodeEmbedding(frame, &got); err != nil {
		return Broken(unreadable, err)
	}
	switch {
	case got.Attempt != attempt:
		return nil
	case e.Vector != nil:
		e.Vector = nil
		return Broken("a second embedding", nil)
	case len(got.Vector) == 0 || slices.ContainsFunc(got.Vector, notFinite):
		return Broken("an embedding that is no vector", nil)
	}
	*e = got
	return nil
}

func notFinite(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }

// Take reads a frame of the answer to an attempt, for a model of so many vocabulary
// entries. A frame of another attempt is late and nothing; a second answer leaves none.
// Before the last frame of the answer has come, p.Attempt is 0.
func (p *Preprocessed) Take(frame []byte, attempt uint32, vocabulary int) error {
	var got Preprocessed
	more, err := decodePreprocessed(frame, &got)
	if err != nil {
		return Broken(unreadable, err)
	}
	if got.Attempt != attempt {
		return nil
	}
	if p.Attempt != 0 {
		*p = Preprocessed{}
		return Broken("a second prompt", nil)
	}
	if len(p.Features)+len(got.Features) > MaxFeatures {
		return Broken("more of media than a prompt may show", nil)
	}
	got.Features = append(p.Features, got.Features...)
	if more {
		p.Features = got.Features
		return nil
	}
	if err := got.Validate(vocabulary); err != nil {
		return Broken("a prompt that is none", err)
	}
	*p = got
	return nil
}
