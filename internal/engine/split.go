package engine

import (
	"penstock/core/disagg"
	"penstock/core/kv"
)

// SplitReport says where the prompt of a request was computed: what its decode worker decided, and what came of it.
type SplitReport struct {
	// Policy and the limits were in force: those which the request asked for, else the worker's.
	Policy                                     disagg.SplitPolicy
	MaxLocalPrefillLength, MaxPrefillQueueSize int
	// Remote says that a prefill worker was to compute the prompt, and Rule which rule decided, in words. Failure says why
	// the decode worker computed it all the same; "" if it did not.
	Remote        bool
	Rule, Failure string
	// Of the inputs: the length of the request in tokens, those of them which the decode worker held, the prefill workers
	// and the jobs which waited for them.
	Tokens, Cached, PrefillWorkers, QueuedJobs int
	// LocalMs and RemoteMs are the predicted costs of both ways in ms, by every policy.
	LocalMs, RemoteMs float64
	// By is the prefill worker which computed the prompt; zero if the decode worker did.
	By kv.Worker
}

const (
	// maxSplitText bounds Rule and Failure in bytes.
	maxSplitText = 128
	// maxSplitMs bounds costs, so that they can be shown.
	maxSplitMs = 1e12
)

// codeFields codes the fields of r. Their numbers are never reused.
func (r *SplitReport) codeFields(c *wireCodec) {
	policy := uint8(r.Policy) + 1
	codeUint8(c, 1, &policy)
	r.Policy = disagg.SplitPolicy(policy - 1)
	c.codeInt(2, &r.MaxLocalPrefillLength)
	c.codeInt(3, &r.MaxPrefillQueueSize)
	c.codeBool(4, &r.Remote)
	c.codeStringUpTo(5, &r.Rule, maxSplitText)
	c.codeStringUpTo(6, &r.Failure, maxSplitText)
	c.codeInt(7, &r.Tokens)
	c.codeInt(8, &r.Cached)
	c.codeInt(9, &r.PrefillWorkers)
	c.codeInt(10, &r.QueuedJobs)
	c.codeFloat(11, &r.LocalMs)
	c.codeFloat(12, &r.RemoteMs)
	c.codeWorker(13, &r.By)
	if c.decoding {
		c.in.failUnless(policy > 0 && min(r.MaxLocalPrefillLength, r.MaxPrefillQueueSize, r.Tokens, r.Cached, r.PrefillWorkers, r.QueuedJobs) >= 0)
		c.in.failUnless(r.LocalMs >= 0 && r.LocalMs <= maxSplitMs && r.RemoteMs >= 0 && r.RemoteMs <= maxSplitMs)
	}
}

// readSplitReport reads a field with a report.
func (r *wireReader) readSplitReport() *SplitReport {
	c := wireCodec{decoding: true, in: r.openMessage()}
	s := new(SplitReport)
	s.codeFields(&c)
	c.in.skipRest()
	r.closeField(&c.in)
	return s
}

// splitFields are the fields of disagg.SplitSettings: each is 0 if it is unset, else one more than its value.
type splitFields struct {
	policy       uint8
	local, queue uint32
}

// codeFields codes the fields of f. Their numbers are never reused.
func (f *splitFields) codeFields(c *wireCodec) {
	codeUint8(c, 1, &f.policy)
	c.codeUint32(2, &f.local)
	c.codeUint32(3, &f.queue)
	c.in.failUnless(!c.decoding || f.local <= disagg.MaxLocalTokens+1 && f.queue <= disagg.MaxQueuedJobs+1)
}

// codeSplit codes settings; a message without any is without the field. A policy of a later version reads as unset.
func codeSplit(c *wireCodec, field uint64, s *disagg.SplitSettings) {
	if c.decoding {
		if *s = (disagg.SplitSettings{}); c.in.seekField(field) {
			c.in.readSplit(s)
		}
	} else if *s != (disagg.SplitSettings{}) {
		var f splitFields
		if s.Policy != nil {
			f.policy = uint8(*s.Policy) + 1
		}
		if s.MaxLocalPrefillLength != nil {
			f.local = uint32(*s.MaxLocalPrefillLength) + 1
		}
		if s.MaxPrefillQueueSize != nil {
			f.queue = uint32(*s.MaxPrefillQueueSize) + 1
		}
		c.codeMessage(field, f.codeFields)
	}
}

// readSplit reads a field with settings.
func (r *wireReader) readSplit(s *disagg.SplitSettings) {
	var f splitFields
	c := wireCodec{decoding: true, in: r.openMessage()}
	f.codeFields(&c)
	c.in.skipRest()
	r.closeField(&c.in)
	if p := disagg.SplitPolicy(f.policy - 1); f.policy > 0 && p.IsKnown() {
		s.Policy = &p
	}
	if f.local > 0 {
		s.MaxLocalPrefillLength = new(int(f.local - 1))
	}
	if f.queue > 0 {
		s.MaxPrefillQueueSize = new(int(f.queue - 1))
	}
}
