package worker

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// maxPieceData bounds the data of one frame. A whole answer is split into several frames; an event of a
// stream is never split.
const maxPieceData = 4 << 20

// servePass serves one passthrough request.
func (s *server) pass(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	req := new(engine.PassRequest)
	eng, ok := w.eng.(engine.Passer)
	err := error(fault.New(fault.Unimplemented, "the engine of worker %d takes no requests as their clients wrote them", w.cfg.ID))
	if ok {
		err = s.enter(func() (string, error) {
			if err := engine.DecodePassRequest(body, req); err != nil {
				return "", err
			}
			if err := req.Validate(); err != nil {
				return "", err
			}
			if !slices.Contains(w.card.Passes, req.Path) {
				return "", fault.New(fault.Unimplemented, "worker %d takes no %.100q as its client wrote it", w.cfg.ID, req.Path)
			}
			return req.Model, nil
		})
	}
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.leave()
	p := &passing{
		s: s, eng: eng, req: req, send: send, started: time.Now(),
		subject: subject{id: req.ID, attempt: req.Attempt, prompt: len(req.Prompt)},
	}
	p.prompt.Store(int64(len(req.Prompt)))
	p.progress = s.progress(p.subject, req.Stream) // otherwise nothing arrives before the end
	err = s.carry(ctx, p.progress, p.run)
	p.subject.prompt = int(p.prompt.Load())
	w.ended(ctx, p.subject, p.cached.Load(), p.output.Load(), time.Since(p.started), err)
	return err
}

// passthroughCall is one passthrough request. Counters are atomic because an aborted call is
// inspected while its goroutine may still run.
type passing struct {
	s        *server
	eng      engine.Passer
	subject  subject
	req      *engine.PassRequest
	send     func([]byte) error
	started  time.Time
	frame    []byte
	progress *progress

	order                  engine.PassOrder
	prompt, output, cached atomic.Int64
}

// run calls the engine.
func (p *passing) run(ctx context.Context) error {
	return p.s.w.guard(ctx, p.subject, func() error { return p.eng.Pass(ctx, p.req, p.deliver) })
}

// sendPiece sends one piece to the caller. A contract violation of the engine fails here, so that it is
// not attributed to the transport.
func (p *passing) deliver(piece *engine.PassPiece) error {
	if err := p.order.Take(piece); err != nil {
		return err
	}
	if len(piece.Data) > 0 { // a header does not show that anything is computed
		p.progress.came(p.s.beat())
		defer func() { p.progress.taken(p.s.now()) }()
	}
	p.output.Add(int64(piece.Tokens))
	if piece.Last {
		p.settle(piece)
	}
	out := *piece
	out.Attempt = p.req.Attempt
	for !p.req.Stream && len(out.Data) > maxPieceData {
		part := engine.PassPiece{Attempt: out.Attempt, Data: out.Data[:maxPieceData]}
		if err := p.write(&part); err != nil {
			return err
		}
		out.Data = out.Data[maxPieceData:]
	}
	return p.write(&out)
}

// setTotals takes the engine's totals.
func (p *passing) settle(last *engine.PassPiece) {
	for _, said := range [...]struct {
		n  int
		is *atomic.Int64
	}{{last.PromptTokens, &p.prompt}, {last.OutputTokens, &p.output}, {last.Cached, &p.cached}} {
		if said.n != engine.CachedUnknown {
			said.is.Store(int64(said.n))
		}
	}
}

func (p *passing) write(piece *engine.PassPiece) error {
	p.frame = engine.AppendPassPiece(p.frame[:0], piece)
	if cap(p.frame) <= maxPieceData {
		return p.send(p.frame)
	}
	frame := p.frame
	p.frame = nil // do not keep the memory of a large piece
	return p.send(frame)
}
