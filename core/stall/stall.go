// Package stall decides when an engine must show that it works, when it does not, and when one of its streams
// has stalled. It is told what the engine produces and says of itself; what is sent to the engine is no sign of life.
//
// An engine is asked for a token (the canary) when it has been silent while idle, when nothing at all is heard of
// it, and when it has calls and neither produces anything nor says that it works on something. Without an answer
//
//	state of the engine                           verdict
//	idle, and does not say that it is busy        broken
//	nothing at all is heard of it                 broken
//	says that it has no requests, though it has   broken
//	silent for longer than prefills take          broken
//	else                                          busy: it is asked again
//
// A stream has stalled when nothing has come of it for its limit although the engine works: it answered the canary
// behind the limit, or keeps producing tokens for others. A request that waits in a queue which moves, and one that was
// preempted, has not stalled. An engine that produces nothing for anyone is judged as a whole, not stream by stream:
// a prefill may hold up all of them. Where no canary can be asked, silence for as long as prefills take ends streams.
//
// Limits are learned from the streams of the engine, see [Machine.GapLimit] and [Machine.FirstLimit].
//
// A Machine has one owner: no method may run beside another one.
package stall

import (
	"errors"
	"fmt"
	"time"

	"penstock/core/kv"
)

// Bounds and factors of the limits.
const (
	// Least is the least limit, and Most the largest: no answer stands still for longer, whatever is learned.
	Least, Most = 10 * time.Second, 5 * time.Minute
	// leastFirst bounds the wait for a first token from below, and leastMute where the engine does not tell its queue:
	// a queue may form from one moment to the next.
	leastFirst, leastMute = 30 * time.Second, time.Minute
	// unlearned is the limit between tokens before learnedGaps were seen, and unlearnedFirst, with unlearnedToken for each
	// token of the prompt, that for the first one before learnedFirsts were.
	unlearned, unlearnedFirst, unlearnedToken = 30 * time.Second, time.Minute, 100 * time.Millisecond
	learnedGaps, learnedFirsts                = 16, 8
	// gapFactor and firstFactor are how many times what all but one of a hundred take is a limit.
	gapFactor, firstFactor = 4, 8
	// promptScale is the prompt, in tokens, whose computation takes about as long as all else up to a first token. It keeps
	// the times of short prompts from being applied to long ones.
	promptScale = 1000
)

// Times of the judgement of an engine.
const (
	// muteAfter is how long a question to the engine must be out for the engine to be mute, and muteHeard how long
	// nothing may have been heard of it.
	muteAfter, muteHeard = 3 * time.Second, 5 * time.Second
	// askLeast and askMost bound the time that the canary has for its token.
	askLeast, askMost = 3 * time.Second, 30 * time.Second
	// askFactor is how many times what the last question took while idle the next one may take, and patientAfter how many
	// questions in a row without an answer double its time, so that an engine which is slower than it was is found whole.
	askFactor, patientAfter = 4, 16
	// mutePatience replaces the canary where none can be asked.
	mutePatience = 10 * time.Second
	// askAgain is the time between two questions to a busy engine, and askSoon that where a stream is past its limit.
	askAgain, askSoon = 10 * time.Second, 3 * time.Second
	// moving is how recent a change of the engine's own account is for its work to be in progress.
	moving = 10 * time.Second
	// pauseAfter is the silence that ends a run of tokens, and runProof how long a run shows that the engine produces for others.
	pauseAfter, runProof = 2 * time.Second, 5 * time.Second
	// settle is how long after the canary's answer a stream may yet get its token: it may be in the same step.
	settle = time.Second
)

// Config is a Machine's policy. Zero fields are defaults.
type Config struct {
	// Limit is the limit between two tokens of a stream, and the least one before the first. 0 learns it.
	Limit time.Duration
	// Idle is the silence after which an engine without calls is asked for a token. Default 10 s; below 0 it is never
	// asked for one: what its adapter hears of it must do.
	Idle time.Duration
	// Patience is how long an engine with calls that answers its adapter may produce nothing and show no work before
	// it is broken. It must exceed the longest step of a busy engine. Default 1 min.
	Patience time.Duration
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Idle == 0 {
		c.Idle = 10 * time.Second
	}
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
}

// Signs is what is known of an engine at a time.
type Signs struct {
	Calls int // in progress here
	// Overdue says that a call is, see [Machine.Overdue].
	Overdue bool
	// Prompt is the longest prompt, in tokens, of a call without a first token.
	Prompt int
	// Token is when the engine last produced one, for a call or the canary.
	Token kv.Mono
	// Remote says that the engine is asked over a network; then Heard is when anything was last heard of it, and Asked
	// since when a question to it has had no answer, 0 if none is out.
	Remote       bool
	Heard, Asked kv.Mono
	// Down says that its adapter does not reach it.
	Down bool
	// Work changes whenever the engine's own account does. Tells says that there is one, of Running and Waiting requests
	// and of sequences Preempted so far; Partial that a request in prefill may be in neither.
	Work             uint64
	Tells, Partial   bool
	Running, Waiting int
	Preempted        uint64
}

// Stream is one stream at a time.
type Stream struct {
	Prompt int     // tokens
	Begun  bool    // a token has come
	Since  kv.Mono // when the last one came, or when it began
}

// Machine is the account of one engine.
type Machine struct {
	cfg    Config
	gaps   histogram
	firsts histogram // of prompts of promptScale tokens that would take as long
	signs  Signs     // of the last look
	worked kv.Mono   // when its own account last changed
	out    kv.Mono   // since when no question of its adapter was answered; 0 if the last was
	busy   kv.Mono   // when the first of the calls in progress began, at most
	moved  kv.Mono   // when a sequence was last preempted
	run    kv.Mono   // when the engine began to produce without a pause
	asked  kv.Mono   // the last question to a busy engine
	proof  kv.Mono   // the last answer to one
	broken bool

	took   time.Duration // by the last question to the idle engine; 0 before one was answered
	failed int           // questions in a row that had no answer while it was broken
}

// New returns a machine that has learned nothing, of an engine that works.
func New(cfg Config) *Machine {
	cfg.EnsureDefaults()
	return &Machine{cfg: cfg}
}

// Broken reports whether the engine does not work, as far as is known.
func (m *Machine) Broken() bool { return m.broken }

// Look takes the signs of now, and reports whether the engine must be asked for a token. Where none can be asked,
// it may become broken, or whole, by this alone.
func (m *Machine) Look(now kv.Mono, s Signs) (ask bool) {
	m.take(now, s)
	if m.cfg.Idle < 0 {
		m.broken = m.broken || m.mute(now) && now.Sub(max(s.Heard, s.Token)) >= mutePatience
		return false
	}
	switch {
	case m.broken:
		return true
	case s.Calls == 0 && now.Sub(s.Token) >= m.cfg.Idle:
		return true
	case m.mute(now) && now.Sub(s.Token) >= muteAfter:
		return true
	case s.Calls == 0:
		return false
	}
	if s.Overdue && now.Sub(m.asked) >= askSoon {
		return true
	}
	quiet := min(askAgain, m.cfg.Patience)
	return m.silence(now) >= quiet && now.Sub(m.asked) >= quiet
}

// take enters signs.
func (m *Machine) take(now kv.Mono, s Signs) {
	if s.Work != m.signs.Work {
		m.worked = now
	}
	if s.Calls > 0 && m.signs.Calls == 0 {
		m.busy = now
	}
	if s.Preempted > m.signs.Preempted {
		m.moved = now
	}
	if s.Token.Sub(m.signs.Token) > pauseAfter {
		m.run = s.Token
	}
	if s.Token > m.signs.Token || m.cfg.Idle < 0 && s.Heard > m.signs.Heard {
		m.broken = false
	}
	if m.out > 0 && max(s.Heard, s.Token) >= m.out {
		m.out = 0
	}
	if m.out == 0 {
		m.out = s.Asked // a question that is given up, and asked anew, is still the first without an answer
	}
	m.signs = s
}

// mute reports whether nothing at all is heard of an engine that is asked over a network.
func (m *Machine) mute(now kv.Mono) bool {
	s := &m.signs
	out := s.Down || m.out > 0 && now.Sub(m.out) >= muteAfter
	return s.Remote && out && now.Sub(max(s.Heard, s.Token)) >= muteHeard
}

// silence is how long the engine, with calls, has neither produced anything nor said that it works on something.
func (m *Machine) silence(now kv.Mono) time.Duration {
	return now.Sub(max(m.signs.Token, m.worked, m.busy))
}

// Timeout is how long a question that is asked now waits for its token: 3 s, and longer where the engine is slow and not
// mute: four times what the last question took, and twice what all but one of a hundred streams wait for their first
// token. Of an engine that was never heard to answer, each question waits twice as long as the one before.
func (m *Machine) Timeout(now kv.Mono) time.Duration {
	if m.mute(now) {
		return askLeast
	}
	limit, doubled := max(askLeast, askFactor*m.took), m.failed
	if m.firsts.seen >= learnedFirsts {
		limit = max(limit, 2*m.firsts.most())
	}
	if m.took > 0 || m.firsts.seen >= learnedFirsts {
		doubled /= patientAfter
	}
	return min(min(limit, askMost)<<min(doubled, 4), askMost)
}

// Took notes how long the engine took for the token of a question.
func (m *Machine) Took(d time.Duration) {
	if m.signs.Calls == 0 || m.took == 0 {
		m.took = max(d, time.Millisecond)
	}
}

// Answered notes that the engine has produced a token since it was asked for one at a time.
func (m *Machine) Answered(asked kv.Mono) {
	m.broken, m.failed = false, 0
	m.proof = max(m.proof, asked)
	m.asked = max(m.asked, asked)
}

// Failed notes that the engine refused a question, or answered it with an error.
func (m *Machine) Failed() { m.broken = true }

// Unanswered takes the signs of now and notes that the question of a time has no answer. It reports whether the engine is
// broken.
func (m *Machine) Unanswered(now, asked kv.Mono, s Signs) bool {
	m.take(now, s)
	m.asked = max(m.asked, asked)
	working := s.Tells && s.Running+s.Waiting > 0 && now.Sub(m.worked) < moving
	switch {
	case m.broken:
	case m.mute(now):
		m.broken = true
	case s.Calls == 0:
		m.broken = !working // busy for others
	case s.Tells && !s.Partial && s.Running+s.Waiting == 0:
		m.broken = m.silence(now) >= Least
	default:
		m.broken = m.silence(now) >= max(m.cfg.Patience, m.FirstLimit(s.Prompt))
	}
	if m.broken {
		m.failed = min(m.failed+1, 1<<10)
	}
	return m.broken
}

// limit is how long a stream may have nothing.
func (m *Machine) limit(s Stream) time.Duration {
	if !s.Begun {
		return m.FirstLimit(s.Prompt)
	}
	return m.GapLimit()
}

// Overdue reports whether a stream is past its limit and nothing is shown yet of whether the engine works.
func (m *Machine) Overdue(now kv.Mono, s Stream) bool {
	limit := m.limit(s)
	return now.Sub(s.Since) >= limit && !m.waits(now, s) && m.proof < s.Since.Add(limit) && now.Sub(max(m.signs.Token, m.worked)) >= pauseAfter
}

// Stalled reports whether a stream has, by the signs of the last look.
func (m *Machine) Stalled(now kv.Mono, s Stream) bool {
	limit := m.limit(s)
	if now.Sub(s.Since) < limit || m.waits(now, s) {
		return false
	}
	if m.cfg.Idle < 0 && m.silence(now) >= max(limit, m.cfg.Patience, m.FirstLimit(s.Prompt)) {
		return true
	}
	if m.proof >= s.Since.Add(limit) && now.Sub(m.proof) >= settle {
		return true
	}
	producing := now.Sub(m.signs.Token) < pauseAfter && m.signs.Token > s.Since
	return producing && now.Sub(max(m.run, s.Since)) >= runProof
}

// waits reports whether the engine says that a stream's request may be waiting in its queue, which moves: at its beginning, or
// since it was preempted.
func (m *Machine) waits(now kv.Mono, s Stream) bool {
	queue := now.Sub(s.Since) < Most && m.signs.Tells && m.signs.Waiting > 0 && now.Sub(m.worked) < moving
	return queue && (!s.Begun || m.moved >= s.Since && m.moved > 0)
}

// Gap notes the longest of n times between two tokens of a stream.
func (m *Machine) Gap(longest time.Duration, n int) { m.gaps.add(longest, n) }

// First notes the time to a first token of a stream of which so many tokens of the prompt had to be computed; 0 where
// that is not known.
func (m *Machine) First(d time.Duration, computed int) {
	m.firsts.add(time.Duration(int64(d)/int64(computed+promptScale)*promptScale), 1)
}

// GapLimit is how long a stream may have no token behind another one: four times what all but one of a hundred take,
// between Least and Most.
func (m *Machine) GapLimit() time.Duration {
	switch {
	case m.cfg.Limit > 0:
		return m.cfg.Limit
	case m.gaps.seen < learnedGaps:
		return unlearned
	}
	return min(max(gapFactor*m.gaps.most(), Least), Most)
}

// FirstLimit returns how long a stream may take for its first token when prompt tokens have to be computed: eight
// times the 99th percentile for a prompt of that length, at most Most.
func (m *Machine) FirstLimit(prompt int) time.Duration {
	limit, least := time.Duration(0), max(leastFirst, m.cfg.Limit)
	if !m.signs.Tells {
		least = max(leastMute, m.cfg.Limit)
	}
	if prompt = min(max(prompt, 0), 1<<24); m.firsts.seen < learnedFirsts {
		limit = unlearnedFirst + time.Duration(prompt)*unlearnedToken
	} else {
		limit = min(firstFactor*m.firsts.most(), Most) / promptScale * time.Duration(prompt+promptScale)
	}
	return min(max(limit, least), max(Most, m.cfg.Limit))
}

// Check states the invariants. It is for tests.
func (m *Machine) Check() error {
	switch gap, first := m.GapLimit(), m.FirstLimit(0); {
	case m.cfg.Limit == 0 && (gap < Least || gap > Most):
		return fmt.Errorf("the limit between tokens is %v", gap)
	case first < leastFirst:
		return fmt.Errorf("the limit before the first token is %v", first)
	case m.FirstLimit(1000) < first:
		return errors.New("a longer prompt has a shorter limit")
	}
	return errors.Join(m.gaps.check(), m.firsts.check())
}
