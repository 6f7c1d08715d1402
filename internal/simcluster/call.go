package simcluster

import (
	"time"

	"penstock/core/fault"
	"penstock/internal/replay"
)

// callState is the state of a call at its worker.
//
//	callSent       sent to the worker
//	callQueued     accepted, not yet scheduled
//	callRunning    scheduled
//	callFinished   its last frame was sent
type callState uint8

const (
	sent    callState = iota // sent to the worker
	inbox                    // accepted, not yet scheduled
	running                  // scheduled
	over                     // its last frame was sent
)

// attempt is one call of a task to one worker. Either side may end it.
type call struct {
	task, worker uint32
	life         uint32 // of the slot: frames of earlier generations are ignored
	state        callState
	client       bool // a client waits for its frames
	index        int  // of the request
	prompt       int
	generated    int // response tokens so far
	limit        int
	media        int // media tokens at the start of the prompt
}

func (cl *call) reset(at uint32, t *task, worker uint32) {
	*cl = call{
		task: at, worker: worker, life: cl.life, client: true,
		index: t.request.Index, prompt: t.prompt, generated: t.got, limit: t.limit, media: placeholders(&t.request),
	}
}

// countMediaTokens returns how many prompt tokens are media: they come first where the prompt's content is
// not given otherwise.
func placeholders(r *replay.Request) int {
	if len(r.Tokens)+len(r.Text)+len(r.Messages)+len(r.Payload)+len(r.Blocks) > 0 {
		return 0
	}
	n := 0
	for i := range r.Media {
		n += max(r.Media[i].Tokens, 0)
	}
	return min(n, r.Input)
}

// cancelCall ends the client's side of a call.
func (c *cluster) drop(at uint32) {
	cl := &c.calls.all[at]
	cl.client = false
	if cl.state == inbox || cl.state == running {
		w := &c.workers[cl.worker]
		w.aborts = append(w.aborts, at)
	}
}

// freeCall frees the slot of a call which has ended on both sides.
func (c *cluster) forget(at uint32) {
	c.calls.all[at].life++
	c.calls.all[at].state = over
	c.calls.give(at)
}

// frameKind is the kind of a frame.
type frameKind uint8

const (
	acceptance frameKind = iota
	token
	failure
)

// responseFrame is a message from a worker to a client.
type frame struct {
	call, life uint32
	kind       frameKind
	code       fault.Code // of a failure
	last       bool       // the token ends the response
	position   int        // of the token in the response
	cached     int        // prompt tokens
}

// newBatch returns an empty batch of frames.
func (c *cluster) batch() uint32 {
	at := c.batches.take()
	c.batches.all[at] = c.batches.all[at][:0]
	return at
}

func (c *cluster) batchOf(f frame) uint32 {
	at := c.batch()
	c.put(at, f)
	return at
}

func (c *cluster) put(batch uint32, f frame) {
	c.batches.all[batch] = append(c.batches.all[batch], f)
}

// sendBatch sends a batch of frames to their clients.
func (c *cluster) send(batch uint32, delay time.Duration) {
	if len(c.batches.all[batch]) == 0 {
		c.recycle(batch)
		return
	}
	c.queue.push(c.now.Add(delay), framed, batch, 0)
}

func (c *cluster) recycle(batch uint32) { c.batches.give(batch) }
