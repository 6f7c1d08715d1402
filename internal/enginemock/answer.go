package enginemock

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// usage counts the tokens of a complete answer.
type usage struct{ prompt, completion, cached int }

// answer is the answer to one request of any API, as it arrives.
type answer struct {
	server  *Server
	out     *outputStream
	faults  *answerFaults
	stats   *requestStats
	usage   usage
	choices [][]choiceOutput // of each prompt
}

// choiceOutput is the output of one choice so far; offset is the end of the tokens which were encoded.
type choiceOutput struct {
	outputPart
	started bool
}

// serveAnswer starts requests on a rank, and passes their answer to write once the engine accepted them; before,
// errors go to refuse.
func (s *Server) serveAnswer(
	ctx context.Context, w http.ResponseWriter, rank *rankServer, f *answerFaults, asks []promptRequest, refuse func(http.ResponseWriter, error), write func(*answer),
) {
	out, err := s.startGeneration(ctx, rank, asks...)
	if err == nil {
		defer out.stopAndWait()
		err = out.awaitAccepted(ctx)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	a := &answer{server: s, out: out, faults: f, usage: usage{cached: engine.CachedUnknown}}
	for i := range asks {
		a.usage.prompt += len(asks[i].req.Prompt)
		choices := make([]choiceOutput, asks[i].req.Choices)
		for c := range choices {
			choices[c].prompt, choices[c].choice = i, c
		}
		a.choices = append(a.choices, choices)
	}
	a.stats = s.stats.startRequest(rank.index, a.usage.prompt, publicPart(asks[0].req.Salt.LoRA))
	defer a.stats.finishRequest()
	write(a)
}

// forEachPart adds the parts of the answer to their choices, counts them and passes them to visit. It applies the
// faults that are due, and flushes after each batch of parts.
func (a *answer) forEachPart(ctx context.Context, flush func(), visit func(p *outputPart, c *choiceOutput, first bool)) error {
	for {
		parts, err := a.out.nextParts(ctx)
		if err != nil || len(parts) == 0 {
			return err
		}
		for i := range parts {
			p := &parts[i]
			if err := a.faults.beforePart(ctx, p, a.out.requests[p.prompt].req.Stop.MaxTokens, flush); err != nil {
				return err
			}
			c := &a.choices[p.prompt][p.choice]
			first := !c.started
			a.addPart(c, p)
			visit(p, c, first)
		}
		flush()
	}
}

// addPart adds a part to its choice, and counts it.
func (a *answer) addPart(c *choiceOutput, p *outputPart) {
	if !c.started {
		c.started, c.cached = true, p.cached
		if p.choice == 0 { // the choices of a prompt share it
			a.usage.cached = addCached(a.usage.cached, p.cached)
		}
	}
	c.tokens, c.logprobs = append(c.tokens, p.tokens...), append(c.logprobs, p.logprobs...)
	c.text += p.text
	a.usage.completion += len(p.tokens)
	a.stats.countTokens(p)
	if p.reason != "" {
		c.reason, c.stop = p.reason, p.stop
		a.stats.countFinish(p.reason)
	}
}

// addCached adds up known numbers of cached tokens; CachedUnknown if none is known.
func addCached(sum, cached int) int {
	switch {
	case cached == engine.CachedUnknown:
		return sum
	case sum == engine.CachedUnknown:
		return cached
	}
	return sum + cached
}

// answerFaults are the faults of one answer.
type answerFaults struct {
	server                               *Server
	stall, streamError, disconnect, drip *Fault
	sent                                 int
}

// errStreamFault is an error in the middle of an answer.
var errStreamFault = fault.New(fault.Internal, "EngineCore encountered an issue. See stack trace (above) for the root cause.")

// startAnswer applies the faults which come before an answer. It reports false if it answered.
func (s *Server) startAnswer(w http.ResponseWriter, r *http.Request) (*answerFaults, bool) {
	if status, err := strconv.Atoi(r.Header.Get("X-Return-Error")); err == nil && status >= 400 && status < 600 {
		s.refuseRequest(w, status, "asked for by the request")
		return nil, false
	}
	if _, hit := s.faults.takeDue(FaultLimit); hit {
		w.Header().Set("Retry-After", "1")
		s.refuseRequest(w, http.StatusTooManyRequests, "Too many requests")
		return nil, false
	}
	if x, hit := s.faults.takeDue(FaultError); hit {
		s.refuseRequest(w, cmp.Or(x.Status, http.StatusInternalServerError), "injected error")
		return nil, false
	}
	f := &answerFaults{server: s}
	for _, k := range []struct {
		kind FaultKind
		at   **Fault
	}{{FaultStall, &f.stall}, {FaultStreamError, &f.streamError}, {FaultDisconnect, &f.disconnect}, {FaultDrip, &f.drip}} {
		if x, hit := s.faults.takeDue(k.kind); hit {
			*k.at = &x
		}
	}
	return f, true
}

// openAnswer decodes the body of a request into q, and starts its answer.
func (s *Server) openAnswer(w http.ResponseWriter, r *http.Request, q any) (*answerFaults, bool) {
	if !s.readBody(w, r, q) {
		return nil, false
	}
	return s.startAnswer(w, r)
}

// release ends the answer: faults which it did not reach are for later answers.
func (f *answerFaults) release() {
	for _, x := range []*Fault{f.stall, f.streamError, f.disconnect} {
		if x != nil {
			f.server.faults.giveBack(*x)
		}
	}
}

// beforePart applies the faults which are due before p is sent; flush sends what was queued before. limit is how
// many tokens the request allows.
func (f *answerFaults) beforePart(ctx context.Context, p *outputPart, limit int, flush func()) error {
	due := func(x *Fault) bool { return x != nil && f.sent >= x.After && limit >= x.MinTokens }
	if due(f.disconnect) {
		f.disconnect = nil
		flush()
		panic(http.ErrAbortHandler)
	}
	if due(f.streamError) {
		f.streamError = nil
		return errStreamFault
	}
	if due(f.stall) {
		flush()
		d := time.Duration(f.stall.For)
		f.stall = nil
		if err := waitFor(ctx, d); err != nil {
			return err
		}
	}
	if due(f.drip) {
		flush()
		if err := waitFor(ctx, cmp.Or(time.Duration(f.drip.For), 100*time.Millisecond)); err != nil {
			return err
		}
	}
	f.sent += len(p.tokens)
	return nil
}

// waitFor waits for d; 0 is until ctx ends.
func waitFor(ctx context.Context, d time.Duration) error {
	if d == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sseStream writes server-sent events.
type sseStream struct {
	buf []byte
	mu  struct {
		sync.Mutex
		w     http.ResponseWriter
		rc    *http.ResponseController
		wrote bool // since the last tick of startPings
	}
}

func newSSEStream(w http.ResponseWriter) *sseStream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	st := &sseStream{}
	st.mu.w, st.mu.rc = w, http.NewResponseController(w)
	st.flush()
	return st
}

// writeEvent queues one event.
func (st *sseStream) writeEvent(v any) { st.writeLine(marshalJSON(v)) }

func (st *sseStream) writeLine(data []byte) {
	st.buf = append(st.buf, "data: "...)
	st.buf = append(st.buf, data...)
	st.buf = append(st.buf, "\n\n"...)
}

// writeDone ends the stream.
func (st *sseStream) writeDone() {
	st.writeLine([]byte("[DONE]"))
	st.flush()
}

// flush sends what is queued. The request's context reports a client that disconnected.
func (st *sseStream) flush() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.buf) > 0 {
		_, _ = st.mu.w.Write(st.buf)
		st.buf = st.buf[:0]
		st.mu.wrote = true
	}
	_ = st.mu.rc.Flush()
}

// startPings writes a comment whenever nothing was sent for a while, until the returned function is called.
func (st *sseStream) startPings(every time.Duration) (stop func()) {
	if every <= 0 {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				st.writePing()
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

func (st *sseStream) writePing() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.mu.wrote {
		_, _ = st.mu.w.Write([]byte(":\n\n"))
		_ = st.mu.rc.Flush()
	}
	st.mu.wrote = false
}
