package disagg

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock/core/kv"
)

// model is a decode worker with memory, a queue, and prefill workers, around Handoffs and PrefillJobs. It performs their
// effects, delays, reorders and loses what they send, and keeps accounts of its own, by which it checks after every step
// what the package comment promises. It knows nothing of the machines' fields.
type model struct {
	draw    func(n int) int
	seen    map[string]int
	now     kv.Mono
	cfg     HandoffConfig
	jobCfg  JobConfig
	memory  []modelBlock
	epoch   uint64
	attempt uint32 // given to handoffs so far
	lives   []*modelRequest
	queue   []*modelEntry
	jobs    []*modelJob
	epochs  [3]uint64 // of the prefill workers
	mail    []modelMail
	err     error
	out     []HandoffEffect
}

const modelBlockSize = 4

// modelBlock is a block of the decode worker's memory: the request which holds it, and what its content is of.
type modelBlock struct {
	owner   *modelRequest
	content AttemptRef // zero: computed here, or of an earlier owner
	torn    bool       // an attempt has written to it
}

// modelRequest is a request at the decode worker.
type modelRequest struct {
	h         *Handoff
	began     kv.Mono
	tokens    int
	asked     bool // for a reservation
	settled   int  // ends of the reservation
	ends      int  // StartDecode, PrefillLocal, cancelled
	blocks    []int
	waits     bool // for the reservation
	held      int
	transfer  *modelTransfer
	attempts  int
	admitted  Incarnation // of the present attempt
	last      AttemptRef  // of its jobs
	to        Incarnation // to which the first job is addressed
	pinned    bool        // and no other job is made
	knows     bool        // the admitted worker knows that the attempt ended
	computed  int         // tokens whose content is to be right, since the end
	remote    AttemptRef  // the attempt which computed those from held on
	cancelled bool
}

// modelTransfer is a transfer into the blocks of a request. Whatever writes after its end changes nothing.
type modelTransfer struct {
	ref    AttemptRef
	blocks []int
	open   bool
	wrote  int
}

// modelEntry is a job in the queue, until it is removed.
type modelEntry struct {
	ref      AttemptRef
	offer    JobOffer
	of       *modelRequest
	inFlight bool
	only     Incarnation // the worker which gets it; zero if any does
}

// modelJob is a job at a prefill worker.
type modelJob struct {
	j        *PrefillJob
	entry    *modelEntry
	by       Incarnation
	transfer *modelTransfer // since it was admitted
	running  int            // RunPrefill without ReleasePrompt
	settled  int            // AckJob and ReturnJob
	told     bool
	refused  bool
	written  bool
}

type modelMailKind uint8

const (
	mailReserved modelMailKind = iota
	mailNotify
	mailTransferFailed
	localMail // those before are local, and are not lost

	mailPull
	mailProgress
	mailGaveUp
	mailPrompt
	mailRefused
)

// modelMail is a message which was not delivered.
type modelMail struct {
	kind     modelMailKind
	to       *modelRequest
	job      *modelJob
	ref      AttemptRef
	by       Incarnation
	why      HandoffReason
	held     int
	transfer *modelTransfer
	budget   time.Duration
}

func newModel(draw func(n int) int, seen map[string]int) *model {
	ms := time.Millisecond
	return &model{
		draw: draw, seen: seen, epoch: 7, epochs: [3]uint64{1, 1, 1}, memory: make([]modelBlock, 14),
		cfg: HandoffConfig{
			MaxAttempts: 1 + draw(4), LocalWait: time.Duration(5+draw(20)) * ms, QueueWait: time.Duration(5+draw(30)) * ms,
			AddressedWait: time.Duration(1+draw(40)) * ms,
			Silence:       time.Duration(5+draw(30)) * ms, Budget: time.Duration(20+draw(200)) * ms,
		},
		jobCfg: JobConfig{ClaimWait: time.Duration(3+draw(20)) * ms, Heartbeat: time.Duration(2+draw(10)) * ms, Budget: time.Duration(30+draw(200)) * ms},
	}
}

// fail records the first violation.
func (m *model) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("at %v: "+format, append([]any{time.Duration(m.now)}, args...)...)
	}
}

func (m *model) must(ok bool, format string, args ...any) {
	if !ok {
		m.fail(format, args...)
	}
}

// chance is true in one of n cases.
func (m *model) chance(n int) bool { return m.draw(n) == 0 }

// step does one thing, and checks everything.
func (m *model) step() error {
	switch d := m.draw(16); {
	case d == 0 && len(m.lives) < 4:
		m.beginRequest()
	case d < 8:
		m.deliver()
	case d < 10:
		m.pullJob()
	case d < 13:
		m.advanceJob()
	case d == 13:
		m.pass(time.Duration(1+m.draw(4)) * time.Millisecond)
	case d == 14:
		m.disturb()
	default:
		m.endSequence()
	}
	m.check()
	return m.err
}

func (m *model) beginRequest() {
	r := &modelRequest{began: m.now, tokens: 1 + m.draw(24)}
	req := HandoffRequest{First: AttemptRef{m.epoch, m.attempt + 1}, Tokens: r.tokens, BlockSize: modelBlockSize}
	m.attempt += uint32(m.cfg.MaxAttempts)
	var out []HandoffEffect
	r.h, out = StartHandoff(m.now, m.cfg, req, m.out[:0])
	m.must(len(out) == 1 && out[0].Kind == LookUpPrefix && out[0].Tokens == r.tokens, "a handoff does not look first: %v", out)
	m.lives = append(m.lives, r)
	m.seen["requests"]++
}

// perform performs the effects of a handoff.
func (m *model) perform(r *modelRequest, out []HandoffEffect) {
	m.out = out
	for _, e := range out {
		switch e.Kind {
		case ReserveBlocks:
			m.must(!r.asked && e.Tokens == r.tokens, "reserves twice")
			r.asked, r.waits = true, true
			m.grantBlocks()
		case EnqueueJob:
			m.must(e.Ref.Epoch == m.epoch && e.Ref.Attempt > 0, "job of %v", e.Ref)
			if reopened := e.Ref == r.last; !reopened {
				r.attempts++
			} else {
				m.must(r.to != Incarnation{} && !r.pinned && e.Peer == Incarnation{}, "the job %v is made twice", e.Ref)
				m.seen["opened"]++
			}
			m.must(r.attempts <= m.cfg.MaxAttempts, "%d attempts", r.attempts)
			m.must(e.Peer == Incarnation{} || e.Peer == r.to && r.last == AttemptRef{}, "%v is addressed to %v", e.Ref, e.Peer)
			m.must(!r.pinned || e.Peer == r.to, "a job which only %v may get: %v", r.to, e)
			m.must(!slices.ContainsFunc(m.queue, func(q *modelEntry) bool { return q.ref == e.Ref && q.only == e.Peer }), "the job %v is put in twice", e.Ref)
			r.last = e.Ref
			m.must(e.Budget > 0 && e.Start < e.End && e.End < r.tokens, "job %v", e)
			r.admitted, r.knows = Incarnation{}, false
			m.queue = append(m.queue, &modelEntry{ref: e.Ref, offer: JobOffer{e.Ref, e.Start, e.End, e.Budget}, of: r, only: e.Peer})
			m.seen["jobs"]++
		case WithdrawJob:
			m.must(r.admitted == Incarnation{}, "a job which was pulled is withdrawn")
			if m.chance(2) { // a queue need not be able to
				m.queue = slices.DeleteFunc(m.queue, func(q *modelEntry) bool { return q.ref == e.Ref })
			}
		case OpenTransfer:
			m.must(r.transfer == nil, "a second transfer")
			r.transfer = &modelTransfer{ref: e.Ref, open: true, blocks: r.blocks[e.Start/modelBlockSize : e.End/modelBlockSize]}
			if m.chance(30) {
				r.transfer.open = false
				m.mail = append(m.mail, modelMail{kind: mailTransferFailed, to: r, ref: e.Ref})
			}
		case AdmitPull:
			m.must(r.admitted == Incarnation{}, "%v and %v are admitted to %v", r.admitted, e.Peer, e.Ref)
			r.admitted = e.Peer
			m.answerPull(e, modelMail{kind: mailPrompt, transfer: r.transfer, budget: e.Budget})
		case RefusePull:
			m.seen["refused: "+e.Reason.String()]++
			m.answerPull(e, modelMail{kind: mailRefused})
		case CloseTransfer:
			m.must(r.transfer != nil && r.transfer.ref == e.Ref, "closes a transfer which it has not")
			r.transfer.open, r.transfer = false, nil
		case AbortPrefill:
			m.must(e.Peer == r.admitted && !r.knows, "%v is told of %v", e.Peer, e.Ref)
			r.knows = true
			m.answerPull(e, modelMail{kind: mailRefused})
		case StartDecode:
			m.takeBlocks(r, e)
		case PrefillLocal:
			m.seen["local: "+e.Reason.String()]++
			m.prefillLocally(r, e)
		case FreeBlocks:
			m.must(r.asked && r.settled == 0, "blocks are freed which are not reserved")
			r.settled++
			m.freeBlocks(r)
		default:
			m.fail("effect of a handoff: %v", e)
		}
	}
}

// answerPull sends something to the job of e.Ref at e.Peer.
func (m *model) answerPull(e HandoffEffect, mail modelMail) {
	for _, j := range m.jobs {
		if j.by == e.Peer && j.entry.ref == e.Ref {
			mail.job = j
			m.mail = append(m.mail, mail)
		}
	}
}

// grantBlocks grants reservations in order, as far as there are blocks.
func (m *model) grantBlocks() {
	for _, r := range m.lives {
		need := (r.tokens + modelBlockSize - 1) / modelBlockSize
		if !r.waits {
			continue
		}
		var free []int
		for i := range m.memory {
			if m.memory[i].owner == nil && len(free) < need {
				free = append(free, i)
			}
		}
		if len(free) < need {
			return
		}
		r.blocks, r.waits = free, false
		r.held = m.draw(r.tokens+1) / modelBlockSize * modelBlockSize
		for _, b := range free {
			m.memory[b] = modelBlock{owner: r} // held blocks are right from the start
		}
		if r.ends == 0 {
			m.mail = append(m.mail, modelMail{kind: mailReserved, to: r, held: r.held})
		} else {
			m.computeRest(r) // it is admitted as an ordinary request
		}
	}
}

func (m *model) freeBlocks(r *modelRequest) {
	for _, b := range r.blocks {
		m.must(m.memory[b].owner == r, "block %d is freed twice", b)
		m.memory[b].owner = nil
	}
	r.blocks, r.waits = nil, false
	m.grantBlocks()
}

// takeBlocks gives blocks which another worker computed to the request.
func (m *model) takeBlocks(r *modelRequest, e HandoffEffect) {
	m.seen["remote"]++
	r.ends++
	r.settled++
	m.must(r.transfer != nil && r.transfer.ref == e.Ref && !r.transfer.open, "decodes before the end of the transfer")
	m.must(e.Start <= r.held && e.End < r.tokens, "%v of %d tokens, %d are held", e, r.tokens, r.held)
	r.transfer, r.knows, r.remote, r.computed = nil, true, e.Ref, e.End
	r.held = e.Start
}

// prefillLocally has the engine compute a prompt, at once if it has blocks.
func (m *model) prefillLocally(r *modelRequest, e HandoffEffect) {
	r.ends++
	if m.must(e.Reserved == (r.asked && r.settled == 0), "%v: %t %d", e, r.asked, r.settled); e.Reserved {
		r.settled++
	}
	m.must(!e.Reserved || e.Start <= r.held || r.waits, "%v, and %d tokens are held", e, r.held)
	m.must(r.transfer == nil, "prefills locally beside a transfer")
	if len(r.blocks) > 0 {
		m.computeRest(r)
		return
	}
	r.waits = true
	m.grantBlocks()
}

// computeRest computes all which is not held.
func (m *model) computeRest(r *modelRequest) {
	for i := r.held / modelBlockSize; i < len(r.blocks); i++ {
		m.memory[r.blocks[i]] = modelBlock{owner: r}
	}
	r.computed = r.tokens
}

// deliver delivers, loses or repeats a message.
func (m *model) deliver() {
	if len(m.mail) == 0 {
		m.decideOne()
		return
	}
	i := m.draw(len(m.mail))
	msg := m.mail[i]
	switch lossy := msg.kind > localMail; {
	case lossy && m.chance(20):
		m.seen["lost"]++
		m.mail = slices.Delete(m.mail, i, i+1)
		return
	case lossy && m.chance(20):
		m.seen["repeated"]++
	default:
		m.mail = slices.Delete(m.mail, i, i+1)
	}
	m.deliverMail(&msg)
}

func (m *model) deliverMail(msg *modelMail) {
	r, j, out := msg.to, msg.job, m.out[:0]
	switch msg.kind {
	case mailReserved:
		m.perform(r, r.h.HandleReserved(m.now, msg.held, out))
	case mailNotify:
		m.perform(r, r.h.HandleNotify(msg.ref, out))
	case mailTransferFailed:
		m.perform(r, r.h.HandleTransferFailed(m.now, msg.ref, out))
	case mailPull:
		m.perform(r, r.h.HandlePull(m.now, msg.ref, msg.by, out))
	case mailProgress:
		r.h.HandleProgress(m.now, msg.ref)
	case mailGaveUp:
		if r.admitted == msg.by && r.h.Ref() == msg.ref {
			r.knows = true
		}
		m.perform(r, r.h.HandlePrefillFailed(m.now, msg.ref, msg.by, msg.why, out))
	case mailPrompt:
		if j.j.State() == Claiming {
			j.transfer = msg.transfer
		}
		m.performJob(j, j.j.HandlePrompt(m.now, msg.budget, out))
	case mailRefused:
		if j.j.State() != JobOver {
			j.refused = true
		}
		m.performJob(j, j.j.HandleRefused(out))
	}
}

// decideOne answers a handoff which looks up its prefix.
func (m *model) decideOne() {
	for _, r := range m.lives {
		if r.h.State() == LookingUp {
			d := Decision{Remote: !m.chance(12)}
			if d.Remote && m.chance(3) {
				w := m.draw(len(m.epochs))
				d.To, d.Pinned = incarnationOf(kv.WorkerID(w+1), m.epochs[w]), m.chance(3)
				r.to, r.pinned = d.To, d.Pinned
			}
			m.perform(r, r.h.HandlePrefix(m.now, &d, m.out[:0]))
			return
		}
	}
}

// pullJob has a prefill worker pull a job: also one which another has pulled, since a queue delivers jobs again.
func (m *model) pullJob() {
	if len(m.queue) == 0 || len(m.jobs) > 8 {
		m.decideOne()
		return
	}
	q := m.queue[m.draw(len(m.queue))]
	if q.inFlight && !m.chance(8) {
		return
	}
	w := m.draw(len(m.epochs))
	j := &modelJob{entry: q, by: incarnationOf(kv.WorkerID(w+1), m.epochs[w])}
	if q.only != (Incarnation{}) && q.only != j.by {
		return // of another, or of an earlier life
	}
	q.inFlight = true
	owner := testMetadata(m.epoch)
	switch m.draw(40) {
	case 0:
		owner = nil
	case 1:
		owner.Epoch--
	case 2:
		owner.Numerics = "another"
	}
	out := m.out[:0]
	j.j, out = StartJob(m.now, m.jobCfg, q.offer, modelMetadata, owner, out)
	m.jobs = append(m.jobs, j)
	m.performJob(j, out)
}

// modelMetadata is that of each prefill worker.
var modelMetadata = testMetadata(1)

func (m *model) performJob(j *modelJob, out []HandoffEffect) {
	m.out = out
	for _, e := range out {
		m.must(e.Ref == j.entry.ref, "the effect %v of the job %v", e, j.entry.ref)
		switch e.Kind {
		case FetchPrompt:
			m.mail = append(m.mail, modelMail{kind: mailPull, to: j.entry.of, ref: e.Ref, by: j.by})
		case RunPrefill:
			j.running++
		case WriteBlocks:
			m.must(e.Start == j.entry.offer.Start && e.End == j.entry.offer.End && j.transfer != nil, "%v of %v", e, j.entry.offer)
		case KeepAlive:
			m.mail = append(m.mail, modelMail{kind: mailProgress, to: j.entry.of, ref: e.Ref})
			m.seen["heartbeats"]++
		case TellDecode:
			j.told = true
			m.seen["gave up: "+e.Reason.String()]++
			m.mail = append(m.mail, modelMail{kind: mailGaveUp, to: j.entry.of, ref: e.Ref, by: j.by, why: e.Reason})
		case AckJob:
			j.settled++
			m.queue = slices.DeleteFunc(m.queue, func(q *modelEntry) bool { return q == j.entry })
		case ReturnJob:
			j.settled++
			j.entry.inFlight = false
		case ReleasePrompt:
			j.running--
		default:
			m.fail("effect of a job: %v", e)
		}
	}
	switch over := j.j.State() == JobOver; {
	case over:
		m.must(j.settled == 1 && j.running == 0, "the job %v is over: %d times for the queue, %d prompts", j.entry.ref, j.settled, j.running)
		m.must(j.transfer == nil || j.told || j.refused || j.written, "the job %v ends without a word", j.entry.ref)
	default:
		m.must(j.settled == 0 && j.running <= 1, "the job %v: %d times for the queue, %d prompts", j.entry.ref, j.settled, j.running)
	}
	if err := j.j.Check(); err != nil {
		m.fail("%v", err)
	}
}

// advanceJob lets a prefill worker compute, write or fail.
func (m *model) advanceJob() {
	if len(m.jobs) == 0 {
		m.decideOne()
		return
	}
	j := m.jobs[m.draw(len(m.jobs))]
	out := m.out[:0]
	switch fails := m.chance(25); {
	case fails:
		m.performJob(j, j.j.HandleFailed(out))
	case j.j.State() == Computing:
		m.performJob(j, j.j.HandleComputed(out))
	case j.j.State() == Writing:
		m.writeBlock(j)
	}
}

// writeBlock writes one block, and ends the transfer after the last one.
func (m *model) writeBlock(j *modelJob) {
	t, r := j.transfer, j.entry.of
	if !t.open {
		m.seen["writes to a closed transfer"]++
		m.performJob(j, j.j.HandleFailed(m.out[:0]))
		return
	}
	m.memory[t.blocks[t.wrote]].content = t.ref
	m.memory[t.blocks[t.wrote]].torn = true
	if t.wrote++; t.wrote < len(t.blocks) {
		return
	}
	t.open, j.written = false, true
	m.mail = append(m.mail, modelMail{kind: mailNotify, to: r, ref: t.ref})
	if m.chance(10) { // the writer does not learn of the success
		j.written = false
		m.performJob(j, j.j.HandleFailed(m.out[:0]))
		return
	}
	m.performJob(j, j.j.HandleWritten(m.out[:0]))
}

// pass has time pass: everything ticks, but for a worker which is paused.
func (m *model) pass(d time.Duration) {
	m.now = m.now.Add(d)
	for _, r := range m.lives {
		m.perform(r, r.h.Tick(m.now, m.out[:0]))
		if at, ok := r.h.Deadline(); ok {
			m.must(at > m.now, "a deadline has passed in the state %v", r.h.State())
			m.must(m.now <= r.began.Add(2*m.cfg.LocalWait+m.cfg.Budget), "a handoff since %v in the state %v", m.now.Sub(r.began), r.h.State())
		}
	}
	paused := m.draw(2 * len(m.epochs))
	for _, j := range m.jobs {
		if int(j.by.Worker.ID)-1 != paused {
			m.performJob(j, j.j.Tick(m.now, m.out[:0]))
		}
	}
	m.jobs = slices.DeleteFunc(m.jobs, func(j *modelJob) bool { return j.j.State() == JobOver && !m.mailFor(j) })
}

func (m *model) mailFor(j *modelJob) bool {
	return slices.ContainsFunc(m.mail, func(msg modelMail) bool { return msg.job == j })
}

// disturb breaks something.
func (m *model) disturb() {
	switch m.draw(6) {
	case 0: // a prefill worker dies: what it writes is cut off, or it is silent
		w := m.draw(len(m.epochs))
		dead := incarnationOf(kv.WorkerID(w+1), m.epochs[w])
		m.epochs[w]++
		m.seen["crashes"]++
		for _, j := range m.jobs {
			if t := j.transfer; j.by == dead && t != nil && t.open && m.chance(2) {
				t.open = false
				m.mail = append(m.mail, modelMail{kind: mailTransferFailed, to: j.entry.of, ref: t.ref})
			}
		}
		m.mail = slices.DeleteFunc(m.mail, func(msg modelMail) bool { return msg.job != nil && msg.job.by == dead })
		m.jobs = slices.DeleteFunc(m.jobs, func(j *modelJob) bool { return j.by == dead })
	case 1: // the queue loses its jobs
		if !m.chance(4) {
			return
		}
		lost := m.queue
		m.queue = nil
		for _, q := range lost {
			m.perform(q.of, q.of.h.HandleQueueFailed(m.now, q.ref, m.out[:0]))
		}
	case 2, 3:
		if len(m.lives) > 0 {
			r := m.lives[m.draw(len(m.lives))]
			if r.h.State().IsEnd() {
				return
			}
			m.seen["cancel: "+r.h.State().String()]++
			m.perform(r, r.h.CancelHandoff(m.out[:0]))
			r.ends++
			r.cancelled = true
		}
	case 4: // the engine takes the blocks of the newest request back
		if len(m.lives) > 0 {
			r := m.lives[len(m.lives)-1]
			m.seen["reclaim: "+r.h.State().String()]++
			m.perform(r, r.h.ReclaimBlocks(m.out[:0]))
		}
	}
}

// endSequence ends a request which decodes, after a look at its blocks.
func (m *model) endSequence() {
	for i, r := range m.lives {
		if r.ends == 0 || r.waits || !m.chance(3) {
			continue
		}
		m.checkContent(r)
		if !r.cancelled {
			m.freeBlocks(r)
		}
		m.lives = slices.Delete(m.lives, i, i+1)
		m.mail = slices.DeleteFunc(m.mail, func(msg modelMail) bool { return msg.to == r && msg.kind < localMail })
		return
	}
}

// checkContent checks what a request reads: blocks which it, or the attempt which it was notified of, has computed.
func (m *model) checkContent(r *modelRequest) {
	for i, b := range r.blocks {
		want := AttemptRef{}
		if at := i * modelBlockSize; r.remote != want && at >= r.held && at < r.computed {
			want = r.remote
		}
		block := &m.memory[b]
		m.must(block.owner == r, "block %d is another's", b)
		m.must(r.computed <= i*modelBlockSize || block.content == want && block.torn == (want != AttemptRef{}), "block %d has what %v wrote, not %v", b, block.content, want)
	}
}

// check checks the accounts.
func (m *model) check() {
	for _, r := range m.lives {
		state := r.h.State()
		end := state.IsEnd()
		if err := r.h.Check(); err != nil {
			m.fail("%v", err)
		}
		m.must(end == (r.ends == 1) && r.ends <= 1, "%d ends in the state %v", r.ends, state)
		if wantSettled := r.asked && end; wantSettled != (r.settled == 1) || r.settled > 1 {
			m.fail("a reservation has %d ends in the state %v", r.settled, state)
		}
		m.must((r.transfer != nil) == (state == Prefilling), "a transfer in the state %v: %t", state, r.transfer != nil)
		m.must((r.admitted == Incarnation{}) || r.knows || state == Prefilling, "%v was not told that its attempt ended, in the state %v", r.admitted, state)
		wantGivenUp := r.attempts
		if state == Queued || state == Prefilling || state == Decoding {
			wantGivenUp--
		}
		m.must(len(r.h.GivenUp()) == wantGivenUp, "%d attempts were given up in the state %v, of %d", len(r.h.GivenUp()), state, r.attempts)
		if end {
			m.checkContent(r)
		}
	}
}

// drain lets everything end without further faults, and checks that nothing is left.
func (m *model) drain() error {
	for rounds := 0; m.err == nil && len(m.lives)+len(m.jobs) > 0; rounds++ {
		if rounds > 5000 {
			return fmt.Errorf("%d requests and %d jobs are left", len(m.lives), len(m.jobs))
		}
		m.pass(5 * time.Millisecond)
		for _, j := range m.jobs { // none is paused
			m.performJob(j, j.j.Tick(m.now, m.out[:0]))
		}
		for i := len(m.mail) - 1; i >= 0; i-- {
			msg := m.mail[i]
			m.mail = slices.Delete(m.mail, i, i+1)
			m.deliverMail(&msg)
			i = min(i, len(m.mail))
		}
		for range len(m.lives) {
			m.endSequence()
		}
		m.check()
	}
	for i := range m.memory {
		m.must(m.memory[i].owner == nil, "block %d is leaked", i)
	}
	return m.err
}

// legsModel is a router with prefill engines and decode engines around Legs.
type legsModel struct {
	draw    func(n int) int
	seen    map[string]int
	now     kv.Mono
	cfg     LegsConfig
	began   kv.Mono
	legs    *Legs
	next    uint32 // attempt
	called  int
	handles []*modelHandle
	prefill *modelLeg // runs
	decode  *modelLeg // runs
	late    []lateResult
	ends    int
	err     error
}

// modelLeg is a call of an engine.
type modelLeg struct {
	ref    AttemptRef
	by     Incarnation
	placed bool
}

// modelHandle is what a prefill leg gave: blocks under a lease.
type modelHandle struct {
	ref      AttemptRef
	by       Incarnation
	until    kv.Mono // of the lease; 0 without
	used     bool
	released bool
	lost     bool
}

// lateResult is the result of a prefill leg which was under way when its call was aborted.
type lateResult struct {
	ref AttemptRef
	by  Incarnation
}

func newLegsModel(draw func(n int) int, seen map[string]int) *legsModel {
	ms := time.Millisecond
	return &legsModel{draw: draw, seen: seen, cfg: LegsConfig{
		Order: LegOrder(draw(2)), MaxAttempts: 1 + draw(4), LocalWait: time.Duration(3+draw(9)) * ms, PrefillWait: time.Duration(3+draw(30)) * ms,
		FirstTokenWait: time.Duration(3+draw(30)) * ms, Budget: time.Duration(5+draw(90)) * ms,
	}}
}

func (m *legsModel) must(ok bool, format string, args ...any) {
	if !ok && m.err == nil {
		m.err = fmt.Errorf("at %v: "+format, append([]any{time.Duration(m.now)}, args...)...)
	}
}

func (m *legsModel) perform(out []HandoffEffect) {
	for _, e := range out {
		switch e.Kind {
		case CallPrefill:
			m.must(m.prefill == nil && m.decode == nil, "a prefill leg beside others")
			m.called++
			m.must(m.called <= m.cfg.MaxAttempts, "%d prefill legs", m.called)
			m.must(!slices.ContainsFunc(m.handles, func(h *modelHandle) bool { return h.ref == e.Ref }), "the attempt %v again", e.Ref)
			m.prefill = &modelLeg{ref: e.Ref}
		case CallDecode:
			m.must(m.decode == nil, "a second decode leg")
			m.decode = &modelLeg{ref: e.Ref, by: e.Peer}
			m.useHandle(e)
		case CallWhole:
			m.seen["whole: "+e.Reason.String()]++
			m.must(m.prefill == nil && m.decode == nil, "the whole request beside a leg")
			m.ends++
		case AbortPrefill:
			m.must(m.prefill != nil && m.prefill.ref == e.Ref && m.prefill.by == e.Peer, "%v, and there is none", e)
			if m.cfg.Order == PrefillFirst && m.prefill.placed && m.draw(3) == 0 {
				m.late = append(m.late, lateResult{e.Ref, m.prefill.by})
			}
			m.prefill = nil
		case AbortDecode:
			m.must(m.decode != nil && m.decode.ref == e.Ref, "%v, and there is none", e)
			m.decode = nil
		case ReleaseHandoff:
			h := m.handleOf(e.Ref)
			m.must(h != nil && h.by == e.Peer && !h.released && !h.lost, "%v, and it is not held", e)
			if h != nil {
				h.released = true
			}
		case DeliverPrefill:
			m.seen["delivered"]++
			m.must(m.decode == nil, "two answers")
			m.ends++
		case DrainPrefill:
			m.must(m.prefill != nil && m.prefill.ref == e.Ref, "%v, and there is none", e)
			m.prefill = nil
		default:
			m.must(false, "effect of legs: %v", e)
		}
	}
}

func (m *legsModel) handleOf(ref AttemptRef) *modelHandle {
	for _, h := range m.handles {
		if h.ref == ref {
			return h
		}
	}
	return nil
}

// useHandle gives a decode leg what the prefill leg gave.
func (m *legsModel) useHandle(e HandoffEffect) {
	if m.cfg.Order == BothAtOnce {
		m.must(m.prefill != nil && m.prefill.ref == e.Ref && m.prefill.by == e.Peer, "a decode leg alone in its room")
		return
	}
	h := m.handleOf(e.Ref)
	m.must(m.prefill == nil && h != nil && !h.used && !h.released && !h.lost && h.by == e.Peer, "%v: %+v", e, h)
	if h != nil {
		h.used = true
	}
}

// step does one thing with the request, or begins another one.
func (m *legsModel) step() error {
	if m.legs == nil || m.legs.State().IsEnd() && len(m.late) == 0 && m.draw(4) == 0 {
		m.begin()
		return m.err
	}
	l, ref := m.legs, m.legs.Ref()
	if m.draw(12) == 0 && ref.Attempt > 1 {
		ref.Attempt-- // something late
		m.seen["late"]++
	}
	switch m.draw(12) {
	case 0:
		m.perform(l.HandlePrefix(m.now, &Decision{Remote: m.draw(9) > 0}, nil))
	case 1, 2:
		m.placeLeg(ref)
	case 3, 4, 5:
		m.endPrefill(ref)
	case 6:
		if m.decode != nil && m.decode.ref == ref {
			m.decode = nil
			m.seen["decode failed"]++
			m.perform(l.HandleDecodeFailed(m.now, ref, nil))
			break
		}
		m.perform(l.HandleDecodeFailed(m.now, AttemptRef{1, ref.Attempt}, nil))
	case 7:
		m.giveToken(ref)
	case 8:
		m.losePrefill()
	case 9:
		m.deliverLate()
	case 10:
		if m.draw(5) == 0 && !l.State().IsEnd() {
			m.seen["cancel: "+l.State().String()]++
			m.perform(l.CancelLegs(nil))
			m.ends++
		}
	default:
		m.passTime(time.Duration(1+m.draw(8)) * time.Millisecond)
	}
	m.checkLegs()
	return m.err
}

func (m *legsModel) begin() {
	m.must(m.legs == nil || m.ends == 1, "%d ends", m.ends)
	for _, h := range m.handles {
		m.must(h.released || h.lost || h.used && m.legs.State() == Streaming && h.ref == m.legs.Ref(), "%v is neither used nor released: %+v", h.ref, *h)
	}
	*m = legsModel{draw: m.draw, seen: m.seen, now: m.now, cfg: m.cfg, next: m.next, began: m.now, err: m.err}
	var out []HandoffEffect
	m.legs, out = StartLegs(m.now, m.cfg, AttemptRef{7, m.next + 1}, 9, nil)
	m.next += uint32(m.cfg.MaxAttempts)
	m.must(len(out) == 1 && out[0].Kind == LookUpPrefix, "legs do not look first: %v", out)
}

func (m *legsModel) placeLeg(ref AttemptRef) {
	p := m.prefill
	switch {
	case p == nil || p.placed || p.ref != ref:
		m.perform(m.legs.HandlePrefillPlaced(m.now, AttemptRef{1, ref.Attempt}, incarnationOf(9, 1), 0, nil))
	case m.draw(8) == 0:
		m.prefill = nil
		m.perform(m.legs.HandleNoPrefillWorker(ref, nil))
	default:
		for id := kv.WorkerID(1); ; id++ {
			if p.by = incarnationOf(id, 1); !slices.Contains(m.legs.Failed(), p.by) {
				break
			}
		}
		p.placed = true
		m.perform(m.legs.HandlePrefillPlaced(m.now, ref, p.by, time.Duration(m.draw(20))*time.Millisecond, nil))
	}
}

// endPrefill ends the prefill leg which runs, well or not.
func (m *legsModel) endPrefill(ref AttemptRef) {
	p := m.prefill
	if p == nil || !p.placed || p.ref != ref {
		return
	}
	m.prefill = nil
	if m.draw(4) == 0 {
		m.perform(m.legs.HandlePrefillFailed(m.now, ref, p.by, nil))
		return
	}
	gave, lease := GaveNothing, time.Duration(0)
	if m.cfg.Order == PrefillFirst && m.draw(8) > 0 {
		gave = GaveHandoff
		if lease = time.Duration(m.draw(20)) * time.Millisecond; m.draw(12) == 0 {
			gave = GaveAnswer
		}
	}
	if gave == GaveHandoff {
		h := &modelHandle{ref: ref, by: p.by}
		if lease > 0 {
			h.until = m.now.Add(lease)
		}
		m.handles = append(m.handles, h)
	}
	m.perform(m.legs.HandlePrefilled(m.now, ref, p.by, gave, lease, nil))
}

func (m *legsModel) giveToken(ref AttemptRef) {
	d := m.decode
	if d == nil || d.ref != ref {
		m.perform(m.legs.HandleFirstToken(AttemptRef{1, ref.Attempt}, nil))
		return
	}
	if h := m.handleOf(ref); h != nil {
		m.must(h.used && !h.lost && (h.until == 0 || m.now < h.until), "a token from %+v at %d", *h, m.now)
	}
	m.decode = nil
	m.seen["first token: "+m.legs.State().String()]++
	m.perform(m.legs.HandleFirstToken(ref, nil))
	m.ends++
}

// losePrefill has the prefill worker die whose blocks a decode leg fetches.
func (m *legsModel) losePrefill() {
	d := m.decode
	if d == nil || m.prefill != nil {
		return
	}
	if h := m.handleOf(d.ref); h != nil {
		h.lost = true
	}
	m.seen["prefill worker lost"]++
	m.perform(m.legs.HandlePrefillFailed(m.now, d.ref, d.by, nil))
}

func (m *legsModel) deliverLate() {
	if len(m.late) == 0 {
		return
	}
	r := m.late[0]
	m.late = m.late[1:]
	m.seen["late handoff"]++
	m.handles = append(m.handles, &modelHandle{ref: r.ref, by: r.by})
	m.perform(m.legs.HandlePrefilled(m.now, r.ref, r.by, GaveHandoff, time.Minute, nil))
}

func (m *legsModel) passTime(d time.Duration) {
	m.now = m.now.Add(d)
	m.perform(m.legs.Tick(m.now, nil))
	if at, ok := m.legs.Deadline(); ok {
		m.must(at > m.now, "a deadline has passed in the state %v", m.legs.State())
		m.must(m.now <= m.began.Add(m.cfg.LocalWait+m.cfg.Budget+m.cfg.FirstTokenWait), "legs since %v in the state %v", m.now.Sub(m.began), m.legs.State())
	}
}

func (m *legsModel) checkLegs() {
	if err := m.legs.Check(); err != nil {
		m.err = errors.Join(m.err, err)
	}
	s := m.legs.State()
	m.must(s.IsEnd() == (m.ends == 1) && m.ends <= 1, "%d ends in the state %v", m.ends, s)
	m.must((m.prefill != nil) == (s == PrefillLeg || s == BothLegs), "a prefill leg runs in the state %v: %t", s, m.prefill != nil)
	m.must((m.decode != nil) == (s == BothLegs || s == DecodeLeg), "a decode leg runs in the state %v: %t", s, m.decode != nil)
}

// drainLegs lets a request end.
func (m *legsModel) drainLegs() error {
	for m.err == nil && m.legs != nil && !m.legs.State().IsEnd() {
		m.passTime(time.Millisecond)
		if m.legs.State().IsEnd() {
			break
		}
		m.checkLegs()
	}
	for m.err == nil && len(m.late) > 0 {
		m.deliverLate()
	}
	if m.err == nil && m.legs != nil {
		m.begin() // checks the handoffs
	}
	return m.err
}
