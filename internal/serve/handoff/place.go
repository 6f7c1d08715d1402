package handoff

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/rpc"
)

// JobPlacer gives jobs to prefill workers. Implementations are safe for concurrent use.
type JobPlacer interface {
	// PlaceJob gives a job to a prefill worker which is none of failed, or to a queue. It returns without a worker and with
	// nil if a queue has the job, without a worker and with an error if none takes it, and otherwise the worker which
	// had it and does not work on it any more. The end of ctx withdraws the job, if its worker has not claimed it.
	PlaceJob(ctx context.Context, job *engine.PrefillRequest, failed []disagg.Incarnation) (by disagg.Incarnation, err error)
}

// QueuePlacer gives jobs to a queue. A worker which pulls a job that was withdrawn is refused.
type QueuePlacer struct {
	Queue bus.Queue
	// MaxLifetime bounds the time for which a job is in the queue, and Wait the wait for the queue to take it.
	MaxLifetime, Wait time.Duration
	// Else takes the jobs which the queue does not take; nil takes none.
	Else JobPlacer
}

var _ JobPlacer = (*QueuePlacer)(nil)

// PlaceJob implements JobPlacer. A queue which does not answer may have the job as well: one worker is admitted.
func (p *QueuePlacer) PlaceJob(ctx context.Context, job *engine.PrefillRequest, failed []disagg.Incarnation) (disagg.Incarnation, error) {
	put, cancel := context.WithTimeout(ctx, p.Wait)
	defer cancel()
	err := p.Queue.Put(put, bus.Job{
		ID: jobID(job), Data: engine.AppendPrefillRequest(nil, job), Lifetime: min(time.Duration(job.Budget)*time.Millisecond, p.MaxLifetime),
	})
	if err == nil || p.Else == nil || ctx.Err() != nil {
		return disagg.Incarnation{}, err
	}
	return p.Else.PlaceJob(ctx, job, failed)
}

// jobID is the id of a job in a queue.
func jobID(job *engine.PrefillRequest) string {
	return fmt.Sprintf("%d.%d.%d.%d", job.Decode.ID, job.Decode.Rank, job.Epoch, job.Attempt)
}

// PrefillPeer is a prefill worker which takes jobs by calls.
type PrefillPeer struct {
	disagg.Incarnation
	Addr string
	// Tokens are what it has to compute, and Jobs the prompts to which they belong, as far as is known.
	Tokens, Jobs int
}

// CallPlacer gives each job to the least loaded prefill worker, by a call. Jobs are lost with it: the decode worker makes
// another one.
type CallPlacer struct {
	calls rpc.Plane
	peers func() []PrefillPeer
	mu    struct {
		sync.Mutex
		placed map[disagg.Incarnation]int // tokens of jobs in progress
	}
}

var _ JobPlacer = (*CallPlacer)(nil)

// NewCallPlacer returns a CallPlacer which calls over calls one of the workers which peers returns.
func NewCallPlacer(calls rpc.Plane, peers func() []PrefillPeer) *CallPlacer {
	p := &CallPlacer{calls: calls, peers: peers}
	p.mu.placed = make(map[disagg.Incarnation]int)
	return p
}

// PlaceJob implements JobPlacer. It returns when the worker is done with the job.
func (p *CallPlacer) PlaceJob(ctx context.Context, job *engine.PrefillRequest, failed []disagg.Incarnation) (disagg.Incarnation, error) {
	to, ok := p.choosePeer(failed, job.Tokens)
	if !ok {
		return disagg.Incarnation{}, fault.New(fault.Unavailable, "no prefill worker is left for the job")
	}
	defer p.addPlaced(to.Incarnation, -job.Tokens)
	err := p.calls.Call(ctx, to.Addr, engine.MethodPrefill, engine.AppendPrefillRequest(nil, job), func([]byte) error { return nil })
	return to.Incarnation, err
}

// choosePeer returns the worker with the fewest tokens to compute which is none of failed, and adds tokens to them.
func (p *CallPlacer) choosePeer(failed []disagg.Incarnation, tokens int) (best PrefillPeer, ok bool) {
	peers, least := p.peers(), 0
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, peer := range peers {
		if slices.Contains(failed, peer.Incarnation) {
			continue
		}
		// What is placed may be in Tokens already, or not yet.
		if load := max(peer.Tokens, p.mu.placed[peer.Incarnation]); !ok || load < least {
			best, least, ok = peer, load, true
		}
	}
	if ok {
		p.addPlacedLocked(best.Incarnation, tokens)
	}
	return best, ok
}

func (p *CallPlacer) addPlaced(to disagg.Incarnation, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addPlacedLocked(to, tokens)
}

func (p *CallPlacer) addPlacedLocked(to disagg.Incarnation, tokens int) {
	if p.mu.placed[to] += tokens; p.mu.placed[to] == 0 {
		delete(p.mu.placed, to)
	}
}
