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
	// PlaceJob gives a job to a prefill worker which is none of failed, or to a queue. If to is not zero it gives the job
	// to that worker, or to none. It returns without a worker and with nil if a queue has the job, without a worker and
	// with an error if none takes it, and otherwise the worker which had it and does not work on it any more. The end of
	// ctx withdraws the job, if its worker has not claimed it.
	PlaceJob(ctx context.Context, job *engine.PrefillRequest, to disagg.Incarnation, failed []disagg.Incarnation) (by disagg.Incarnation, err error)
}

// QueuePlacer gives jobs to a queue, except for jobs which are addressed to a worker. A worker which pulls a job that was withdrawn is refused.
type QueuePlacer struct {
	Queue bus.Queue
	// MaxLifetime bounds the time for which a job is in the queue, and Wait the wait for the queue to take it.
	MaxLifetime, Wait time.Duration
	// Else takes the jobs which are addressed to a worker, and the ones which the queue does not take; nil takes none.
	Else JobPlacer
}

var _ JobPlacer = (*QueuePlacer)(nil)

// PlaceJob implements JobPlacer. A queue which does not answer may have the job as well: one worker is admitted.
func (p *QueuePlacer) PlaceJob(ctx context.Context, job *engine.PrefillRequest, to disagg.Incarnation, failed []disagg.Incarnation) (disagg.Incarnation, error) {
	if to != (disagg.Incarnation{}) && p.Else != nil {
		return p.Else.PlaceJob(ctx, job, to, failed)
	}
	put, cancel := context.WithTimeout(ctx, p.Wait)
	defer cancel()
	err := p.Queue.Put(put, bus.Job{
		ID: jobID(job), Data: engine.AppendPrefillRequest(nil, job), Lifetime: min(time.Duration(job.Budget)*time.Millisecond, p.MaxLifetime),
	})
	if err == nil || p.Else == nil || ctx.Err() != nil {
		return disagg.Incarnation{}, err
	}
	return p.Else.PlaceJob(ctx, job, to, failed)
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
	From         disagg.Distance
}

// CallPlacer gives each job by a call to the prefill worker to which it is addressed, or to the least loaded one. Jobs are
// lost with it: the decode worker makes another one.
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

// Peers returns the prefill workers. Their Tokens are at least the tokens of the jobs which p has given them.
func (p *CallPlacer) Peers() []PrefillPeer {
	peers := slices.Clone(p.peers())
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range peers {
		// What is placed may be in Tokens already, or not yet.
		peers[i].Tokens = max(peers[i].Tokens, p.mu.placed[peers[i].Incarnation])
	}
	return peers
}

// PlaceJob implements JobPlacer. It returns when the worker is done with the job.
func (p *CallPlacer) PlaceJob(ctx context.Context, job *engine.PrefillRequest, to disagg.Incarnation, failed []disagg.Incarnation) (disagg.Incarnation, error) {
	peer, ok := p.choosePeer(to, failed, job.Tokens)
	if !ok {
		return disagg.Incarnation{}, fault.New(fault.Unavailable, "no prefill worker is left for the job")
	}
	defer p.addPlaced(peer.Incarnation, -job.Tokens)
	err := p.calls.Call(ctx, peer.Addr, engine.MethodPrefill, engine.AppendPrefillRequest(nil, job), func([]byte) error { return nil })
	return peer.Incarnation, err
}

// choosePeer returns the worker to, or, if that is zero, the one with the fewest tokens to compute which is none of failed,
// and adds tokens to them. Of workers with as few it returns the nearest.
func (p *CallPlacer) choosePeer(to disagg.Incarnation, failed []disagg.Incarnation, tokens int) (best PrefillPeer, ok bool) {
	peers := p.Peers()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, peer := range peers {
		switch {
		case to != disagg.Incarnation{}:
			if peer.Incarnation == to {
				best, ok = peer, true
			}
		case slices.Contains(failed, peer.Incarnation):
		case !ok || peer.Tokens < best.Tokens || peer.Tokens == best.Tokens && peer.From > best.From:
			best, ok = peer, true
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
