package simcluster

import (
	"time"

	"penstock/core/fault"
	"penstock/internal/replay"
)

// callState is where a call is at its worker.
type callState uint8

const (
	sent    callState = iota // on its way
	inbox                    // taken, and not yet in the schedule
	running                  // in the schedule
	over                     // its last frame is on its way
)

// call is one attempt of a task at one worker. Both sides of it may end it.
type call struct {
	task, worker uint32
	life         uint32 // of those at this place: frames of earlier ones are void
	state        callState
	client       bool // somebody waits for its frames
	index        int  // of the request
	prompt       int
	generated    int // tokens of the answer, so far
	limit        int
	media        int // tokens at the beginning of the prompt that media fill
}

func (cl *call) reset(at uint32, t *task, worker uint32) {
	*cl = call{
		task: at, worker: worker, life: cl.life, client: true,
		index: t.request.Index, prompt: t.prompt, generated: t.got, limit: t.limit, media: placeholders(&t.request),
	}
}

// placeholders returns how many tokens of a prompt media fill: they come first
// where the prompt's content is not given otherwise.
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

// drop ends the client's side of a call.
func (c *cluster) drop(at uint32) {
	cl := &c.calls.all[at]
	cl.client = false
	if cl.state == inbox || cl.state == running {
		w := &c.workers[cl.worker]
		w.aborts = append(w.aborts, at)
	}
}

// forget makes the place of a call that has ended on both sides vacant.
func (c *cluster) forget(at uint32) {
	c.calls.all[at].life++
	c.calls.all[at].state = over
	c.calls.give(at)
}

// frameKind is what a frame says.
type frameKind uint8

const (
	acceptance frameKind = iota
	token
	failure
)

// frame is what a worker sends back.
type frame struct {
	call, life uint32
	kind       frameKind
	code       fault.Code // of a failure
	last       bool       // the token ends the answer
	position   int        // of the token in the answer
	cached     int        // tokens of the prompt
}

// batch returns an empty batch of frames.
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

// send sends a batch of frames to their clients.
func (c *cluster) send(batch uint32, delay time.Duration) {
	if len(c.batches.all[batch]) == 0 {
		c.recycle(batch)
		return
	}
	c.queue.push(c.now.Add(delay), framed, batch, 0)
}

func (c *cluster) recycle(batch uint32) { c.batches.give(batch) }
