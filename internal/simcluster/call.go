package simcluster

import (
	"math/bits"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine/sim"
)

// callState is the state of a call at its worker.
//
//	callSent       sent to the worker
//	callAwaitsRows its worker waits for rows of its media
//	callQueued     accepted, not yet scheduled
//	callRunning    scheduled
//	callFinished   its last frame was sent
type callState uint8

const (
	callSent       callState = iota // sent to the worker
	callAwaitsRows                  // its worker waits for rows of its media
	callQueued                      // accepted, not yet scheduled
	callRunning                     // scheduled
	callFinished                    // its last frame was sent
)

// attempt is one call of a task to one worker. Either side may end it.
type attempt struct {
	task, worker uint32
	generation   uint32 // of the slot: frames of earlier generations are ignored
	state        callState
	clientWaits  bool // a client waits for its frames
	index        int  // of the request
	prompt       int
	generated    int // response tokens so far
	limit        int
	parts        []sim.MediaPart // of the prompt
	missing      int             // parts whose rows the worker waits for before it schedules the call
	prefilled    bool            // it has given a token
	computed     int             // prompt tokens which the worker has computed
	readyAt      kv.Mono         // when the worker could begin with them
	job          jobRef          // which the call computes; noJob for the call of a request
	handoff      *callHandoff    // nil if there is none
}

func (cl *attempt) reset(at uint32, t *requestTask, worker uint32) {
	*cl = attempt{
		task: at, worker: worker, generation: cl.generation, clientWaits: true,
		index: t.request.Index, prompt: t.prompt, generated: t.generated, limit: t.limit, parts: append(cl.parts[:0], t.parts...),
		job: noJob,
	}
}

// cancelCall ends the client's side of a call.
func (c *cluster) cancelCall(at uint32) {
	cl := &c.calls.all[at]
	cl.clientWaits = false
	c.cancelHandoff(at)
	if cl.state == callAwaitsRows {
		c.workers[cl.worker].heldCalls--
		c.freeCall(at)
		return
	}
	if cl.state == callQueued || cl.state == callRunning {
		w := &c.workers[cl.worker]
		w.aborts = append(w.aborts, at)
		w.wakeWorker(c) // it computes nothing if all its calls are encoding
	}
}

// freeCall frees the slot of a call which has ended on both sides.
func (c *cluster) freeCall(at uint32) {
	c.calls.all[at].generation++
	c.calls.all[at].state = callFinished
	c.calls.freeSlot(at)
}

// frameKind is the kind of a frame.
type frameKind uint8

const (
	frameAccepted frameKind = iota
	frameToken
	frameFailed
)

// responseFrame is a message from a worker to a client.
type responseFrame struct {
	call, generation uint32
	kind             frameKind
	code             fault.Code // of a failure
	last             bool       // the token ends the response
	position         int        // of the token in the response
	cached           int        // prompt tokens
}

// newBatch returns an empty batch of frames.
func (c *cluster) newBatch() uint32 {
	at := c.batches.takeSlot()
	c.batches.all[at] = c.batches.all[at][:0]
	return at
}

func (c *cluster) newBatchOf(f responseFrame) uint32 {
	at := c.newBatch()
	c.appendFrame(at, f)
	return at
}

func (c *cluster) appendFrame(batch uint32, f responseFrame) {
	c.batches.all[batch] = append(c.batches.all[batch], f)
}

// sendBatch sends a batch of frames to their clients.
func (c *cluster) sendBatch(batch uint32, delay time.Duration) {
	if len(c.batches.all[batch]) == 0 {
		c.freeBatch(batch)
		return
	}
	c.queue.push(c.now.Add(delay), eventFramesArrived, batch, 0)
}

func (c *cluster) freeBatch(batch uint32) { c.batches.freeSlot(batch) }

// deriveSeed returns the seed for one use of another seed.
func deriveSeed(seed, use uint64) uint64 {
	return splitmix.Mix(splitmix.Mix(seed) + splitmix.Step*(use+1))
}

// randomSource draws faults.
type randomSource struct{ splitmix.Source }

// drawChance returns true with probability p.
func (r *randomSource) drawChance(p float64) bool {
	return p > 0 && float64(r.Next()>>11)/(1<<53) < p
}

// drawUpTo returns a duration from 1 ns to most; 0 if most is 0.
func (r *randomSource) drawUpTo(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	high, _ := bits.Mul64(r.Next(), uint64(most))
	return time.Duration(high) + 1
}

// firstOutputToken is the smallest response token: no prompt has it.
const firstOutputToken kv.Token = 1 << 31

// outputToken is the token at a position of the response to a request, on any worker.
func outputToken(index, position int) kv.Token {
	return firstOutputToken | kv.Token(splitmix.Mix(uint64(index)<<24^uint64(position))>>33)
}
