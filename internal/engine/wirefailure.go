package engine

import (
	"strings"

	"penstock/core/encode"
)

// ProgressFrame is a frame of an answer which says nothing but that the worker works on the request: it encodes its
// media. Without an attempt it is a late answer to every reader.
func ProgressFrame() []byte { return []byte{wireVersion} }

// appendFailedObjects appends the failures of d. The attempt is among them: a reader which does not know them reads a delta
// without an attempt, which is a late answer, and not the acceptance of the request.
func appendFailedObjects(dst []byte, d *Delta) []byte {
	c := wireCodec{dst: dst}
	c.codeMessage(deltaFailures, func(c *wireCodec) {
		c.codeUint32(1, &d.Attempt)
		for i := range d.Failures[:min(len(d.Failures), MaxObjects)] {
			f := d.Failures[i]
			f.Detail = strings.ToValidUTF8(f.Detail[:min(len(f.Detail), MaxFailureDetail)], "")
			c.codeMessage(2, f.codeFields)
		}
	})
	return c.dst
}

// readFailures reads the failures of d, and its attempt.
func (r *wireReader) readFailures(d *Delta) {
	alone := d.Attempt == 0 && !d.Accepted && d.Choice == 0 && d.Pos == 0 && len(d.Tokens)+len(d.Logprobs) == 0 &&
		d.Cached == 0 && d.Finish == NotFinished && d.Handoff == nil
	c := wireCodec{decoding: true, in: r.openMessage()}
	c.in.failUnless(alone)
	c.codeUint32(1, &d.Attempt)
	for {
		var f FailedObject
		if !c.codeMessage(2, f.codeFields) {
			break
		}
		c.in.failUnless(len(d.Failures) < MaxObjects && f.Index >= 0 && f.Index < MaxObjects && f.Kind != encode.NotFailed)
		if c.in.failed {
			break
		}
		f.Kind, f.Detail = knownFailure(f.Kind), strings.ToValidUTF8(f.Detail, "")
		d.Failures = append(d.Failures, f)
		c.in.allowRepeat()
	}
	c.in.skipRest()
	c.in.failUnless(len(d.Failures) > 0)
	r.closeField(&c.in)
}

// codeFields codes the fields of f. Their numbers are never reused.
func (f *FailedObject) codeFields(c *wireCodec) {
	c.codeInt(1, &f.Index)
	codeUint8(c, 2, &f.Kind)
	c.codeStringUpTo(3, &f.Detail, MaxFailureDetail)
}

// knownFailure returns a kind that a peer has sent. One of a later version says only that the encoder failed.
func knownFailure(k encode.FailureKind) encode.FailureKind {
	if k > encode.Unreachable {
		return encode.EncoderFailed
	}
	return k
}
