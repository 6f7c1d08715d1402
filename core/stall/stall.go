// Package stall decides when an engine must be probed, when it does not work, and when one of its streams has
// stalled. The caller passes what the engine produces and reports; requests sent to the engine are no sign of
// life.
//
// The probe asks an engine for a token (the canary). It is sent when an idle engine has been silent, when
// nothing at all is received from it, and when it has calls and neither produces anything nor reports
// progress. Without an answer
//
//	state of the engine                               verdict
//	idle, and does not report that it is busy         broken (1)
//	nothing at all is received from it                broken
//	reports that it has no requests, though it has    broken
//	silent for longer than prefills take              broken
//	otherwise                                         busy: it is probed again
//
// (1) An engine on the network from which something was received since the probe may be slow: it is probed again, with
// 10 s for the answer, and is broken without one.
//
// A stream has stalled when nothing has arrived for its limit although the engine works: the engine answered
// the canary after the limit, or keeps producing tokens for other streams. A request has not stalled if it
// waits in a queue which moves, or was preempted. While its media are being encoded its limit is MaxLimit. An
// engine which produces nothing at all is judged as a whole, not stream by stream: a prefill may delay all
// streams. Where no canary can be sent, silence for as long as prefills take ends streams.
//
// Limits are learned from the streams of the engine, see [Detector.GapLimit] and [Detector.FirstLimit].
//
// A Detector has one owner: its methods must not run concurrently.
package stall

import (
	"cmp"
	"math/bits"
	"time"

	"penstock/core/kv"
)

// Bounds and factors of the limits.
const (
	// MinLimit and MaxLimit bound the limits: no stream may be silent for longer than MaxLimit, whatever is
	// learned.
	MinLimit, MaxLimit = 10 * time.Second, 5 * time.Minute
	// minFirst is the minimum limit for a first token, and minMute the same where the engine does not report
	// its queue, which may grow from one moment to the next.
	minFirst, minMute = 30 * time.Second, time.Minute
	// unlearned is the limit between tokens before learnedGaps samples. unlearnedFirst, plus unlearnedToken
	// per token of the prompt, is the limit for the first token before learnedFirsts samples.
	unlearned, unlearnedFirst, unlearnedToken = 30 * time.Second, time.Minute, 100 * time.Millisecond
	learnedGaps, learnedFirsts                = 16, 8
	// gapFactor and firstFactor are the ratios of a limit to the 99th percentile.
	gapFactor, firstFactor = 4, 8
	// promptScale is the prompt length, in tokens, whose computation takes about as long as everything else
	// before a first token. It prevents the times of short prompts from being applied to long ones.
	promptScale = 1000
	// maxPrompt bounds the length of a prompt, in tokens, which limits take into account.
	maxPrompt = 1 << 24
)

// Times used to judge an engine.
const (
	// muteAfter is how long a request to the engine must be unanswered for the engine to be mute, and
	// muteHeard how long nothing must have been received from it.
	muteAfter, muteHeard = 3 * time.Second, 5 * time.Second
	// minProbe and maxProbe bound the time for an answer to the canary.
	minProbe, maxProbe = 3 * time.Second, 30 * time.Second
	// probeFactor is the ratio of a probe's time limit to the duration of the last probe of the idle engine.
	// patientAfter is how many unanswered probes in a row double the limit, so that an engine which has
	// become slower is found to work again.
	probeFactor, patientAfter = 4, 16
	// mutePatience replaces the canary where none can be sent.
	mutePatience = 10 * time.Second
	// probeAgain is the time between two probes of a busy engine, and probeSoon the same while a stream is
	// past its limit.
	probeAgain, probeSoon = 10 * time.Second, 3 * time.Second
	// recentWork is how recently the engine's own statistics must have changed for its work to be in
	// progress.
	recentWork = 10 * time.Second
	// pauseAfter is the silence which ends a run of tokens, and runProof how long a run must last to prove
	// that the engine produces tokens for other streams.
	pauseAfter, runProof = 2 * time.Second, 5 * time.Second
	// settle is how long after the canary's answer a stream may still get its token, which may come from the
	// same step.
	settle = time.Second
)

// Config is the policy of a Detector. Zero fields are defaults.
type Config struct {
	// Limit is the limit between two tokens of a stream, and the minimum limit before the first. 0 learns it.
	Limit time.Duration
	// Idle is the silence after which an engine without calls is probed. Default 10 s; if negative it is
	// never probed, and only what its adapter receives counts.
	Idle time.Duration
	// Patience is how long an engine with calls, which answers its adapter, may produce nothing and show no
	// progress before it is broken. It must exceed the longest step of a busy engine. Default 1 min.
	Patience time.Duration
}

// EnsureDefaults fills in the fields which are not set.
func (c *Config) EnsureDefaults() {
	c.Idle = cmp.Or(c.Idle, 10*time.Second)
	c.Patience = cmp.Or(c.Patience, time.Minute)
}

// Signs is what is known of an engine at a time.
type Signs struct {
	Calls int // in progress here
	// Overdue says that a call is overdue, see [Detector.IsOverdue].
	Overdue bool
	// Prompt is the longest prompt, in tokens, of a call without a first token.
	Prompt int
	// LastToken is when the engine last produced a token, for a call or the canary.
	LastToken kv.Mono
	// Remote says that the engine is accessed over a network. Then LastHeard is when anything was last
	// received from it, and AskedSince is since when a request to it is unanswered, 0 if none is.
	Remote                bool
	LastHeard, AskedSince kv.Mono
	// Down says that its adapter cannot reach it.
	Down bool
	// Work changes whenever the engine's own statistics do. HasQueue says that there are any: the Running and
	// Waiting requests and the sequences Preempted so far. Partial says that a request in prefill may be in
	// neither.
	Work              uint64
	HasQueue, Partial bool
	Running, Waiting  int
	Preempted         uint64
}

// StreamState is the state of one stream at a time.
type StreamState struct {
	Prompt  int     // tokens
	Started bool    // a token has arrived
	Since   kv.Mono // when the last one arrived, its media were encoded, or the stream started
	// Encoding says that its media are being encoded: no token can come.
	Encoding bool
	// HasMedia says that it has any: they may be encoded again after a preemption.
	HasMedia bool
}

// Detector is the state of one engine.
//
//	state   event                                                next    result
//	works   Observe: silent, as the package comment says         works   probe it
//	works   RecordUnanswered, by the table there                 broken
//	works   RecordError                                          broken
//	works   Observe where no probe can be sent: mute too long    broken
//	broken  Observe                                              broken  probe it, if it can be
//	broken  RecordAnswer, or Observe: it produced a token        works
type Detector struct {
	cfg             Config
	gaps            histogram
	firsts          histogram // scaled to prompts of promptScale tokens
	signs           Signs     // at the last observation
	lastWork        kv.Mono   // when its own statistics last changed
	unansweredSince kv.Mono   // since when its adapter has had no answer; 0 if the last request was answered
	busySince       kv.Mono   // when the first of the calls in progress started, at the latest
	lastPreempted   kv.Mono   // when a sequence was last preempted
	runSince        kv.Mono   // when the engine started to produce without a pause
	lastProbe       kv.Mono   // last probe of a busy engine
	lastProof       kv.Mono   // last answered one
	broken          bool

	probeTime    time.Duration // duration of the last probe of the idle engine; 0 before the first answer
	failedProbes int           // unanswered probes in a row while it was broken
	// firstUnanswered is when the first of the unanswered probes in a row was sent; 0 if the last one was answered.
	firstUnanswered kv.Mono
}

// New returns a detector without samples, for an engine which works.
func New(cfg Config) *Detector {
	cfg.EnsureDefaults()
	return &Detector{cfg: cfg}
}

// IsBroken reports whether the engine is known not to work.
func (m *Detector) IsBroken() bool { return m.broken }

// Observe records the signs at now, and reports whether the engine must be probed. Where it cannot be probed,
// Observe itself may find it broken, or working again.
func (m *Detector) Observe(now kv.Mono, s Signs) (ask bool) {
	m.recordSigns(now, s)
	if m.cfg.Idle < 0 {
		m.broken = m.broken || m.isMute(now) && now.Sub(max(s.LastHeard, s.LastToken)) >= mutePatience
		return false
	}
	switch {
	case m.broken:
		return true
	case s.Calls == 0 && now.Sub(s.LastToken) >= m.cfg.Idle:
		return true
	case m.isMute(now) && now.Sub(s.LastToken) >= muteAfter:
		return true
	case s.Calls == 0:
		return false
	}
	if s.Overdue && now.Sub(m.lastProbe) >= probeSoon {
		return true
	}
	quiet := min(probeAgain, m.cfg.Patience)
	return m.silentFor(now) >= quiet && now.Sub(m.lastProbe) >= quiet
}

// recordSigns records signs.
func (m *Detector) recordSigns(now kv.Mono, s Signs) {
	if s.Work != m.signs.Work {
		m.lastWork = now
	}
	if s.Calls > 0 && m.signs.Calls == 0 {
		m.busySince = now
	}
	if s.Preempted > m.signs.Preempted {
		m.lastPreempted = now
	}
	if s.LastToken.Sub(m.signs.LastToken) > pauseAfter {
		m.runSince = s.LastToken
	}
	if s.LastToken > m.signs.LastToken || m.cfg.Idle < 0 && s.LastHeard > m.signs.LastHeard {
		m.broken = false
	}
	if m.unansweredSince > 0 && max(s.LastHeard, s.LastToken) >= m.unansweredSince {
		m.unansweredSince = 0
	}
	if m.unansweredSince == 0 {
		m.unansweredSince = s.AskedSince // a request which was given up and repeated still counts from its first try
	}
	m.signs = s
}

// isMute reports whether nothing at all is received from an engine which is accessed over a network.
func (m *Detector) isMute(now kv.Mono) bool {
	s := &m.signs
	out := s.Down || m.unansweredSince > 0 && now.Sub(m.unansweredSince) >= muteAfter
	return s.Remote && out && now.Sub(max(s.LastHeard, s.LastToken)) >= muteHeard
}

// silentFor returns how long the engine, with calls, has neither produced anything nor reported progress.
func (m *Detector) silentFor(now kv.Mono) time.Duration {
	return now.Sub(max(m.signs.LastToken, m.lastWork, m.busySince))
}

// ProbeTimeout returns how long a probe sent now waits for its token: 3 s, and longer where the engine is
// slow and not mute: four times the duration of the last probe, and twice the 99th percentile of the time to
// a first token. For an engine which has never answered, each probe waits twice as long as the one before.
// The probe of an idle engine in this process waits 30 s: such an engine is as slow as this process, which may get
// little of a busy machine, and cannot be out of reach. A probe after unanswered ones, of an engine which works, waits
// 10 s.
func (m *Detector) ProbeTimeout(now kv.Mono) time.Duration {
	switch {
	case m.isMute(now):
		return minProbe
	case !m.signs.Remote && m.signs.Calls == 0:
		return maxProbe
	}
	limit, doubled := max(minProbe, probeFactor*m.probeTime), m.failedProbes
	if m.firsts.seen >= learnedFirsts {
		limit = max(limit, 2*m.firsts.percentile99())
	}
	if m.probeTime > 0 || m.firsts.seen >= learnedFirsts {
		doubled /= patientAfter
	}
	if !m.broken && m.firstUnanswered > 0 && m.signs.Calls == 0 {
		limit = max(limit, MinLimit)
	}
	return min(min(limit, maxProbe)<<min(doubled, 4), maxProbe)
}

// RecordProbe records how long the engine took for the token of a probe.
func (m *Detector) RecordProbe(d time.Duration) {
	if m.signs.Calls == 0 || m.probeTime == 0 {
		m.probeTime = max(d, time.Millisecond)
	}
}

// RecordAnswer records that the engine has produced a token since the probe which was sent at asked.
func (m *Detector) RecordAnswer(asked kv.Mono) {
	m.broken, m.failedProbes, m.firstUnanswered = false, 0, 0
	m.lastProof = max(m.lastProof, asked)
	m.lastProbe = max(m.lastProbe, asked)
}

// RecordError records that the engine refused a probe, or answered it with an error.
func (m *Detector) RecordError() { m.broken = true }

// RecordUnanswered records the signs at now, and that the probe sent at asked has no answer. It reports
// whether the engine is broken.
func (m *Detector) RecordUnanswered(now, asked kv.Mono, s Signs) bool {
	m.recordSigns(now, s)
	m.lastProbe = max(m.lastProbe, asked)
	if m.firstUnanswered = cmp.Or(m.firstUnanswered, asked); s.LastToken > m.firstUnanswered {
		m.firstUnanswered = asked
	}
	working := s.HasQueue && s.Running+s.Waiting > 0 && now.Sub(m.lastWork) < recentWork
	switch {
	case m.broken:
	case m.isMute(now):
		m.broken = true
	case s.Calls == 0:
		// It may be busy for other clients, or slow.
		isSlow := s.Remote && s.LastHeard > m.firstUnanswered && now.Sub(m.firstUnanswered) < MinLimit
		m.broken = !working && !isSlow
	case s.HasQueue && !s.Partial && s.Running+s.Waiting == 0:
		m.broken = m.silentFor(now) >= MinLimit
	default:
		m.broken = m.silentFor(now) >= max(m.cfg.Patience, m.FirstLimit(s.Prompt))
	}
	if m.broken {
		m.failedProbes = min(m.failedProbes+1, 1<<10)
	}
	return m.broken
}

// streamLimit returns how long a stream may be silent.
func (m *Detector) streamLimit(s StreamState) time.Duration {
	if s.Encoding || s.HasMedia && s.Started && m.isPreempted(s) {
		return max(MaxLimit, m.cfg.Limit)
	}
	if !s.Started {
		return m.FirstLimit(s.Prompt)
	}
	return m.GapLimit()
}

// IsOverdue reports whether a stream is past its limit and it is not yet known whether the engine works.
func (m *Detector) IsOverdue(now kv.Mono, s StreamState) bool {
	limit := m.streamLimit(s)
	return now.Sub(s.Since) >= limit && !m.isQueued(now, s) && m.lastProof < s.Since.Add(limit) && now.Sub(max(m.signs.LastToken, m.lastWork)) >= pauseAfter
}

// IsStalled reports whether a stream has stalled, by the last observation.
func (m *Detector) IsStalled(now kv.Mono, s StreamState) bool {
	limit := m.streamLimit(s)
	if now.Sub(s.Since) < limit || m.isQueued(now, s) {
		return false
	}
	if m.cfg.Idle < 0 && m.silentFor(now) >= max(limit, m.cfg.Patience, m.FirstLimit(s.Prompt)) {
		return true
	}
	if m.lastProof >= s.Since.Add(limit) && now.Sub(m.lastProof) >= settle {
		return true
	}
	producing := now.Sub(m.signs.LastToken) < pauseAfter && m.signs.LastToken > s.Since
	return producing && now.Sub(max(m.runSince, s.Since)) >= runProof
}

// isQueued reports whether the engine reports that a stream's request may be waiting in its queue, which
// moves: before its first token, or since it was preempted.
func (m *Detector) isQueued(now kv.Mono, s StreamState) bool {
	queue := now.Sub(s.Since) < MaxLimit && m.signs.HasQueue && m.signs.Waiting > 0 && now.Sub(m.lastWork) < recentWork
	return queue && (!s.Started || m.isPreempted(s))
}

// isPreempted reports whether a sequence was preempted since the stream's last token: it may be the stream's.
func (m *Detector) isPreempted(s StreamState) bool {
	return m.lastPreempted >= s.Since && m.lastPreempted > 0
}

// RecordGap records the longest of n times between two tokens of a stream.
func (m *Detector) RecordGap(longest time.Duration, n int) { m.gaps.addSample(longest, n) }

// RecordFirst records the time to the first token of a stream, with the number of prompt tokens which had to
// be computed; 0 if unknown.
func (m *Detector) RecordFirst(d time.Duration, computed int) {
	m.firsts.addSample(time.Duration(int64(d)/int64(computed+promptScale)*promptScale), 1)
}

// GapLimit returns how long a stream may be silent between two tokens: four times the 99th percentile,
// between MinLimit and MaxLimit.
func (m *Detector) GapLimit() time.Duration {
	switch {
	case m.cfg.Limit > 0:
		return m.cfg.Limit
	case m.gaps.seen < learnedGaps:
		return unlearned
	}
	return min(max(gapFactor*m.gaps.percentile99(), MinLimit), MaxLimit)
}

// UnlearnedFirstLimit returns how long the computation of prompt tokens may take at an engine before its speed is known:
// 1 min, and 0.1 s for each token.
func UnlearnedFirstLimit(prompt int) time.Duration {
	return unlearnedFirst + time.Duration(min(max(prompt, 0), maxPrompt))*unlearnedToken
}

// FirstLimit returns how long a stream may take for its first token when prompt tokens have to be computed:
// eight times the 99th percentile for a prompt of that length, at most MaxLimit.
func (m *Detector) FirstLimit(prompt int) time.Duration {
	limit, least := time.Duration(0), max(minFirst, m.cfg.Limit)
	if !m.signs.HasQueue {
		least = max(minMute, m.cfg.Limit)
	}
	if m.firsts.seen < learnedFirsts {
		limit = UnlearnedFirstLimit(prompt)
	} else {
		prompt = min(max(prompt, 0), maxPrompt)
		limit = min(firstFactor*m.firsts.percentile99(), MaxLimit) / promptScale * time.Duration(prompt+promptScale)
	}
	return min(max(limit, least), max(MaxLimit, m.cfg.Limit))
}

// buckets suffice for MaxLimit: bucket i counts durations below 2^i ms.
const buckets = 20

// halveAt is the number of samples at which all counts are halved, so that old samples count less.
const halveAt = 1024

// histogram is a distribution of durations. The zero value is empty.
type histogram struct {
	counts [buckets]uint32
	total  uint32 // of counts
	seen   int    // durations represented by the samples, up to a bound
}

// addSample adds a duration, the longest of n.
func (h *histogram) addSample(d time.Duration, n int) {
	i := min(bits.Len64(uint64(max(d, 0)/time.Millisecond)), buckets-1)
	h.counts[i]++
	h.total++
	h.seen = min(h.seen+max(n, 1), 1<<20)
	if h.total < halveAt {
		return
	}
	h.total = 0
	for i := range h.counts {
		h.counts[i] /= 2
		h.total += h.counts[i]
	}
}

// percentile99 returns a bound for all but one in a hundred durations: a power of two ms.
func (h *histogram) percentile99() time.Duration {
	above := h.total / 100
	for i := buckets - 1; i > 0; i-- {
		if h.counts[i] > above {
			return time.Millisecond << i
		}
		above -= h.counts[i]
	}
	return time.Millisecond
}
