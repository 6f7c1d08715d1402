package disagg

import (
	"errors"
	"time"

	"penstock/core/kv"
)

// JobConfig bounds a PrefillJob. It has no defaults: the settings have them.
type JobConfig struct {
	// ClaimWait bounds the wait for the prompt.
	ClaimWait time.Duration
	// Heartbeat is the time between two KeepAlive. It is to be well below HandoffConfig.Silence, and below the time
	// after which the queue delivers a job again.
	Heartbeat time.Duration
	// Budget bounds the time of a job; a decode worker may allow less.
	Budget time.Duration
}

// Validate reports every problem of c at once, nil if there is none.
func (c JobConfig) Validate() error {
	return errors.Join(checkWait("a prompt from the decode worker", c.ClaimWait), checkWait("a heartbeat", c.Heartbeat), checkWait("a job", c.Budget))
}

// JobState is the state of a PrefillJob.
type JobState uint8

// The states.
const (
	Claiming  JobState = iota // S7: the prompt is asked for
	Computing                 // S9
	Writing                   // S10
	JobOver
)

// String returns the name of the state.
func (s JobState) String() string {
	return [...]string{"claiming", "computing", "writing", "over"}[s]
}

// PrefillJob is the state of one job at the prefill worker which pulled it from the queue.
//
//	state               event                                   next       effects
//	                    StartJob: the workers fit (S8)          claiming   FetchPrompt
//	                    StartJob: they do not                   over       TellDecode, AckJob
//	                    StartJob: metadata are missing          over       ReturnJob
//	claiming            HandlePrompt                            computing  RunPrefill
//	claiming            HandleRefused                           over       AckJob
//	claiming            HandleFailed, or the deadline           over       TellDecode, ReturnJob
//	claiming            HandleStop                              over       TellDecode, ReturnJob
//	computing           HandleComputed                          writing    WriteBlocks
//	computing, writing  Tick: Heartbeat has passed              the same   KeepAlive
//	writing             HandleWritten                           over       AckJob, ReleasePrompt
//	computing, writing  HandleRefused: an AbortPrefill          over       AckJob, ReleasePrompt
//	computing, writing  HandleFailed, or the budget has passed  over       TellDecode, AckJob, ReleasePrompt
//	computing, writing  HandleStop                              over       TellDecode, AckJob, ReleasePrompt
//
// Every other pair changes nothing.
//
// A job is given back as long as this worker does not know that it was admitted. After that its failure makes the decode
// worker begin another attempt, which is another job.
type PrefillJob struct {
	cfg       JobConfig
	offer     JobOffer
	state     JobState
	deadline  kv.Mono // in claiming the end of the wait, else of the next heartbeat
	budgetEnd kv.Mono
}

// JobOffer is what a job in the queue says.
type JobOffer struct {
	Ref AttemptRef
	// Start and End are the tokens whose blocks are to be written.
	Start, End int
	// Budget is what is left of the decode worker's. Not positive is none.
	Budget time.Duration
}

// StartJob begins a job which was pulled. self are the metadata of this worker. owner are the metadata of the
// decode worker, nil if discovery has none. cfg must be valid.
func StartJob(now kv.Mono, cfg JobConfig, offer JobOffer, self, owner *Metadata, out []HandoffEffect) (*PrefillJob, []HandoffEffect) {
	j := &PrefillJob{cfg: cfg, offer: offer, budgetEnd: now.Add(cfg.Budget)}
	if offer.Budget > 0 {
		j.budgetEnd = min(j.budgetEnd, now.Add(offer.Budget))
	}
	switch {
	case owner == nil:
		j.state = JobOver
		return j, append(out, HandoffEffect{Kind: ReturnJob, Ref: offer.Ref, Reason: UnknownPeer})
	case owner.Epoch != offer.Ref.Epoch:
		return j, j.endJob(Stale, AckJob, out)
	case CheckExchange(self, owner) != nil:
		return j, j.endJob(Incompatible, AckJob, out)
	}
	j.deadline = min(now.Add(cfg.ClaimWait), j.budgetEnd)
	return j, append(out, HandoffEffect{Kind: FetchPrompt, Ref: offer.Ref})
}

// State returns the state.
func (j *PrefillJob) State() JobState { return j.state }

// Deadline returns when Tick is due; ok is false at the end.
func (j *PrefillJob) Deadline() (at kv.Mono, ok bool) { return j.deadline, j.state != JobOver }

// HandlePrompt reports that the decode worker admitted this worker and sent the prompt. A positive budget replaces that
// of the offer, which has aged in the queue.
func (j *PrefillJob) HandlePrompt(now kv.Mono, budget time.Duration, out []HandoffEffect) []HandoffEffect {
	if j.state != Claiming {
		return out
	}
	if budget > 0 {
		j.budgetEnd = now.Add(min(budget, j.cfg.Budget))
	}
	j.state = Computing
	j.scheduleHeartbeat(now)
	return append(out, HandoffEffect{Kind: RunPrefill, Ref: j.offer.Ref})
}

func (j *PrefillJob) scheduleHeartbeat(now kv.Mono) {
	j.deadline = min(now.Add(j.cfg.Heartbeat), j.budgetEnd)
}

// HandleComputed reports that blocks can be written: all of them, or the first ones of a shell which writes them while
// others are computed.
func (j *PrefillJob) HandleComputed(out []HandoffEffect) []HandoffEffect {
	if j.state != Computing {
		return out
	}
	j.state = Writing
	return append(out, HandoffEffect{Kind: WriteBlocks, Ref: j.offer.Ref, Start: j.offer.Start, End: j.offer.End})
}

// HandleWritten reports that the decode worker has all blocks, and the note which names the attempt (S11).
func (j *PrefillJob) HandleWritten(out []HandoffEffect) []HandoffEffect {
	if j.state != Writing {
		return out
	}
	return j.releaseJob(out)
}

// HandleRefused reports that the decode worker does not want the work: RefusePull, or AbortPrefill.
func (j *PrefillJob) HandleRefused(out []HandoffEffect) []HandoffEffect {
	if j.state == JobOver {
		return out
	}
	return j.releaseJob(out)
}

// releaseJob ends the job without a word to the decode worker, which knows.
func (j *PrefillJob) releaseJob(out []HandoffEffect) []HandoffEffect {
	return j.leaveJob(append(out, HandoffEffect{Kind: AckJob, Ref: j.offer.Ref}))
}

// leaveJob makes the job over.
func (j *PrefillJob) leaveJob(out []HandoffEffect) []HandoffEffect {
	if j.state == Computing || j.state == Writing {
		out = append(out, HandoffEffect{Kind: ReleasePrompt, Ref: j.offer.Ref})
	}
	j.state = JobOver
	return out
}

// endJob gives the job up: it tells the decode worker, and then the queue by AckJob or ReturnJob.
func (j *PrefillJob) endJob(why HandoffReason, queue HandoffEffectKind, out []HandoffEffect) []HandoffEffect {
	out = append(out, HandoffEffect{Kind: TellDecode, Ref: j.offer.Ref, Reason: why})
	last := HandoffEffect{Kind: queue, Ref: j.offer.Ref}
	if queue == ReturnJob {
		last.Reason = why
	}
	return j.leaveJob(append(out, last))
}

// HandleFailed reports that what was asked for last failed: the decode worker did not answer, the prompt could not be
// computed, or its blocks could not be written.
func (j *PrefillJob) HandleFailed(out []HandoffEffect) []HandoffEffect {
	if j.state == Claiming {
		return j.giveUp(Unreachable, out)
	}
	return j.giveUp(PrefillFailed, out)
}

// HandleStop reports that this worker stops.
func (j *PrefillJob) HandleStop(out []HandoffEffect) []HandoffEffect { return j.giveUp(Stopped, out) }

// giveUp ends a job which is not over. Another worker may do it only if its prompt was not fetched.
func (j *PrefillJob) giveUp(why HandoffReason, out []HandoffEffect) []HandoffEffect {
	switch j.state {
	case JobOver:
		return out
	case Claiming:
		return j.endJob(why, ReturnJob, out)
	}
	return j.endJob(why, AckJob, out)
}

// Tick is the event of time: a heartbeat, or the end of a job whose time is over.
func (j *PrefillJob) Tick(now kv.Mono, out []HandoffEffect) []HandoffEffect {
	switch {
	case j.state == JobOver || now < j.deadline:
		return out
	case j.state == Claiming:
		return j.endJob(Unreachable, ReturnJob, out)
	case now >= j.budgetEnd:
		return j.endJob(BudgetSpent, AckJob, out)
	}
	j.scheduleHeartbeat(now)
	return append(out, HandoffEffect{Kind: KeepAlive, Ref: j.offer.Ref})
}
