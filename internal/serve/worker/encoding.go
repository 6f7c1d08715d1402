package worker

import (
	"context"
	"sync"
	"time"

	"penstock/core/stall"
	"penstock/internal/engine"
)

// beatInterval is the time between two frames which tell a caller that its media are being encoded. Callers give a
// worker up after minutes without a frame.
const beatInterval = 10 * time.Second

// callBeats tells the caller of a call that the engine encodes its media, for as long as a stream may be silent at all:
// after that callers judge the silence themselves.
type callBeats struct {
	send  func([]byte) error
	until time.Time
	mu    struct {
		sync.Mutex // held while a frame is sent: no other may be sent meanwhile
		stopped    bool
		timer      *time.Timer
	}
}

// startBeats starts the frames of a call whose media must be encoded. stop ends them; it may be called again.
func (c *generateCall) startBeats(ctx context.Context) (stop func()) {
	if len(c.req.Objects) == 0 {
		return func() {}
	}
	b := &callBeats{send: c.send, until: c.started.Add(stall.MaxLimit)}
	c.beats = b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.timer = time.AfterFunc(beatInterval, func() { b.sendFrame(ctx) })
	return b.stopBeats
}

// sendFrame runs in the timer's goroutine.
func (b *callBeats) sendFrame(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.stopped || ctx.Err() != nil || b.send(engine.ProgressFrame()) != nil {
		return // an error ends the call elsewhere
	}
	if time.Now().Before(b.until) {
		b.mu.timer.Reset(beatInterval)
	}
}

// stopBeats ends the frames: none is being sent when it returns.
func (b *callBeats) stopBeats() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.stopped = true
	b.mu.timer.Stop()
}

// sendFailures tells the caller which objects are the reason of err, the engine's error, if it refused the request for
// them. It returns err.
func (c *generateCall) sendFailures(err error) error {
	if c.accepted {
		return err
	}
	var failed []engine.FailedObject
	for _, f := range engine.FailedObjects(engine.MediaFailures(err)) {
		if f.Index >= 0 && f.Index < len(c.req.Objects) {
			failed = append(failed, f)
		}
	}
	if len(failed) > 0 {
		// If the frame cannot be sent, the call has no caller any more.
		_ = c.send(engine.AppendDelta(nil, &engine.Delta{Attempt: c.req.Attempt, Failures: failed}))
	}
	return err
}
