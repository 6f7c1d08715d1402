package frontend

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/route"
	"penstock/internal/bounded"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

// answerWriter turns the events of a request's generations into its response. One goroutine uses it. It
// sends nothing before a worker has accepted the first attempt; it sends a whole answer only when that
// is complete.
type answerWriter struct {
	w            http.ResponseWriter
	controller   *http.ResponseController
	timeout      time.Duration // of one write
	keepAlive    time.Duration // of a stream before a keep-alive
	cancelBroken func(error)   // ends the request whose stream cannot be written
	stream       bool
	contentType  string     // Content-Type of the stream; "" for the usual one
	sse          *sseStream // nil before a stream is open
	responseHead api.Head
	writer       api.Writer // nil before the request is decoded
	refuse       func(http.ResponseWriter, error)
	appendError  func(dst []byte, err error) []byte // the event of an error in a stream
	ext          api.AnswerExt
	annotations  *api.Annotated // sent first in the stream; nil if there are none
	wantsMetrics bool           // requested by the annotation llm_metrics
	textOnly     media.Reason   // why the worker was chosen without the request's media
	openChoices  int            // choices that have not finished
	accepted     bool           // by a worker
	onAccept     func()         // called then; may be nil
	committed    bool           // status and headers are sent
	firstOutput  time.Time      // when output began; zero before
	buf          []byte
}

// handleEvent handles a step of a generation's attempt, or its next chunks.
func (a *answerWriter) handleEvent(event dispatch.AttemptEvent, g *generationTask) error {
	switch event {
	case dispatch.AttemptRouted:
		a.recordAttempt(g.index, g.Request.Attempt, g.Decision, g.counts.Prompt).Inexact = g.IsInexact()
		return nil
	case dispatch.AttemptReported:
		a.recordReported(g.index, g.Request.Attempt, g.Cached, g.PrefillWorker)
		return nil
	case dispatch.AttemptAccepted:
		return a.acceptRequest(g.Decision, g.Numerics)
	}
	return a.appendChunks(g.chunks)
}

// recordAttempt records an attempt at a prompt of so many tokens.
func (a *answerWriter) recordAttempt(prompt int, number uint32, d route.Decision, tokens int) *api.Attempt {
	a.ext.Attempts = append(a.ext.Attempts, api.Attempt{
		Prompt: prompt, Number: number, Worker: d.Worker, OverlapBlocks: d.OverlapBlocks,
		Predicted: d.CachedTokens(tokens), Reported: api.CachedUnknown,
	})
	return &a.ext.Attempts[len(a.ext.Attempts)-1]
}

// recordReported records what the worker of an attempt had cached, or prefill, which computed the prompt for it; zero if it
// did itself.
func (a *answerWriter) recordReported(prompt int, number uint32, cached int, prefill kv.Worker) {
	for i := range a.ext.Attempts {
		if t := &a.ext.Attempts[i]; t.Prompt == prompt && t.Number == number {
			t.Reported, t.Prefill = cached, prefill
		}
	}
}

// acceptRequest commits a stream when the first worker, of known numerics or "", accepts the request.
func (a *answerWriter) acceptRequest(d route.Decision, numerics string) error {
	if a.accepted {
		return nil
	}
	a.accepted = true
	if a.onAccept != nil {
		a.onAccept()
	}
	a.responseHead.Fingerprint = fingerprint(numerics)
	h := a.w.Header()
	h.Set("X-Penstock-Worker", strconv.FormatUint(uint64(d.Worker.ID), 10))
	h.Set("X-Penstock-Overlap-Blocks", strconv.Itoa(d.OverlapBlocks))
	if a.textOnly != media.NoReason {
		h.Set("X-Penstock-Text-Only", string(a.textOnly))
	}
	if len(a.ext.MediaDropped) > 0 {
		h.Set("X-Penstock-Media-Dropped", formatDropped(a.ext.MediaDropped))
	}
	if !a.stream {
		return nil
	}
	if err := a.openStream(); err != nil {
		return err
	}
	return a.sendOpeningEvents()
}

// fingerprint is the short form of a card's numerics that clients see.
func fingerprint(numerics string) string {
	if numerics == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(numerics))
	return "fp_" + hex.EncodeToString(sum[:5])
}

func (a *answerWriter) openStream() error {
	h := a.w.Header()
	h.Set("Content-Type", cmp.Or(a.contentType, "text/event-stream"))
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // a proxy must not hold tokens back
	a.committed = true
	a.w.WriteHeader(http.StatusOK)
	a.sse = newSSEStream(a.keepAlive, a.send, a.cancelBroken)
	a.sse.writeLast = a.writeBuffered
	a.buf = bounded.TakeBuffer()
	go func() { // close waits for it; the header goes out first, or with what has arrived by then
		growStack()
		a.sse.run()
	}()
	return nil
}

// growStack grows a goroutine's stack once to the size that a response of net/http needs. Growing it
// step by step would copy it each time, with all frames on it.
//
//go:noinline
func growStack() {
	var room [6 << 10]byte
	touchStack(&room)
}

//go:noinline
func touchStack(*[6 << 10]byte) {}

// close returns when nothing more is written.
func (a *answerWriter) close() {
	if a.sse != nil {
		_ = a.sse.close() // a write error means that the client has disconnected
		bounded.RecycleBuffer(a.buf)
		a.buf = nil
	}
}

// appendChunks takes chunks that belong together: a stream never separates them.
func (a *answerWriter) appendChunks(chunks []api.Chunk) error {
	if a.firstOutput.IsZero() {
		a.firstOutput = time.Now()
	}
	for i := range chunks {
		c := &chunks[i]
		if c.Kind == api.Finish {
			if a.openChoices--; a.openChoices == 0 {
				c.Ext = a.attemptHistory()
			}
		}
		a.buf = a.writer.Append(a.buf, c)
	}
	if len(a.buf) == 0 {
		return nil
	}
	return a.flushBuffer()
}

// finishAnswer ends a complete answer.
func (a *answerWriter) finishAnswer(counts api.TokenCounts) error {
	metrics := a.metricsOf(counts)
	if a.ext.Annotated != nil {
		a.ext.Annotated.Metrics = metrics
	}
	a.buf = a.writer.Append(a.buf, &api.Chunk{Kind: api.Usage, Tokens: counts, Ext: a.attemptHistory()})
	if a.annotations != nil && metrics != nil {
		a.buf = openai.AppendMetricsEvent(a.buf, metrics)
	}
	a.buf = a.writer.End(a.buf)
	if !a.stream {
		return a.sendWhole(append(a.buf, '\n'))
	}
	if err := a.flushBuffer(); err != nil {
		return err
	}
	return a.sse.close()
}

// attemptHistory returns the attempts of the answer by prompt, then attempt, regardless of the order in
// which concurrent prompts were routed.
func (a *answerWriter) attemptHistory() *api.AnswerExt {
	slices.SortStableFunc(a.ext.Attempts, func(x, y api.Attempt) int { return x.Prompt - y.Prompt })
	return &a.ext
}

// sendWhole sends a complete body.
func (a *answerWriter) sendWhole(body []byte) error {
	return a.sendBody(http.StatusOK, "application/json", body)
}

// sendBody sends a complete body with a status and a type.
func (a *answerWriter) sendBody(status int, kind string, body []byte) error {
	h := a.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	a.committed = true
	a.w.WriteHeader(status)
	return a.send(body)
}

// sendError ends an answer that stays incomplete: with a status while that is possible, else with an event.
func (a *answerWriter) sendError(err error) {
	if a.committed {
		if a.sse != nil {
			// A write error means that the client has disconnected, so nothing else can report err.
			_ = a.sse.put(a.appendError(nil, err))
		}
		return
	}
	a.extendDeadline()
	a.refuse(a.w, err)
}

func (a *answerWriter) flushBuffer() error {
	err := a.sse.put(a.buf)
	a.buf = a.buf[:0]
	return err
}

// send writes b and what the server buffered before it.
func (a *answerWriter) send(b []byte) error {
	if err := a.writeBuffered(b); err != nil {
		return err
	}
	return writeError(a.controller.Flush())
}

// writeBuffered passes b to the server, which sends it once it has buffered enough or the request ends:
// together with the end of the answer, in one write.
func (a *answerWriter) writeBuffered(b []byte) error {
	a.extendDeadline()
	_, err := a.w.Write(b)
	return writeError(err)
}

// writeError wraps the error of a write.
func writeError(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Canceled, "the client does not take the answer: %w", err)
}

// extendDeadline bounds the next write; the server removes the deadline when the request ends. Only a
// real connection has one: a recorded response never blocks.
func (a *answerWriter) extendDeadline() { _ = a.controller.SetWriteDeadline(time.Now().Add(a.timeout)) }
