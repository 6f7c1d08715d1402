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
func (s *callServer) servePass(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	req := new(engine.PassthroughRequest)
	eng, ok := w.eng.(engine.PassthroughEngine)
	err := error(fault.New(fault.Unimplemented, "the engine of worker %d takes no requests as their clients wrote them", w.cfg.ID))
	if ok {
		err = s.admitCall(func() (string, error) {
			if err := engine.DecodePassthroughRequest(body, req); err != nil {
				return "", err
			}
			if err := req.Validate(); err != nil {
				return "", err
			}
			if !slices.Contains(w.card.PassthroughPaths, req.Path) {
				return "", fault.New(fault.Unimplemented, "worker %d takes no %.100q as its client wrote it", w.cfg.ID, req.Path)
			}
			return req.Model, nil
		})
	}
	if err != nil {
		w.metrics.countRefused(err)
		return err
	}
	defer s.finishCall()
	p := &passthroughCall{
		s: s, eng: eng, req: req, send: send, started: time.Now(),
		subject: callInfo{id: req.ID, attempt: req.Attempt, prompt: len(req.Prompt)},
	}
	p.prompt.Store(int64(len(req.Prompt)))
	p.progress = s.newProgress(p.subject, req.Stream) // otherwise nothing arrives before the end
	err = s.runCall(ctx, p.progress, p.run)
	p.subject.prompt = int(p.prompt.Load())
	w.recordCall(ctx, p.subject, p.cached.Load(), p.output.Load(), time.Since(p.started), err)
	return err
}

// passthroughCall is one passthrough request. Counters are atomic because an aborted call is
// inspected while its goroutine may still run.
type passthroughCall struct {
	s        *callServer
	eng      engine.PassthroughEngine
	subject  callInfo
	req      *engine.PassthroughRequest
	send     func([]byte) error
	started  time.Time
	frame    []byte
	progress *callProgress

	order                  engine.PassthroughOrder
	prompt, output, cached atomic.Int64
}

// run calls the engine.
func (p *passthroughCall) run(ctx context.Context) error {
	return p.s.w.guardEngine(ctx, p.subject, func() error { return p.eng.PassThrough(ctx, p.req, p.sendPiece) })
}

// sendPiece sends one piece to the caller. A contract violation of the engine fails here, so that it is
// not attributed to the transport.
func (p *passthroughCall) sendPiece(piece *engine.PassthroughChunk) error {
	if err := p.order.AcceptChunk(piece); err != nil {
		return err
	}
	if len(piece.Data) > 0 { // a header does not show that anything is computed
		p.progress.recordOutput(p.s.recordEngineOutput())
		defer func() { p.progress.recordTaken(p.s.now()) }()
	}
	p.output.Add(int64(piece.Tokens))
	if piece.Last {
		p.setTotals(piece)
	}
	out := *piece
	out.Attempt = p.req.Attempt
	for !p.req.Stream && len(out.Data) > maxPieceData {
		part := engine.PassthroughChunk{Attempt: out.Attempt, Data: out.Data[:maxPieceData]}
		if err := p.sendFrame(&part); err != nil {
			return err
		}
		out.Data = out.Data[maxPieceData:]
	}
	return p.sendFrame(&out)
}

// setTotals takes the engine's totals.
func (p *passthroughCall) setTotals(last *engine.PassthroughChunk) {
	for _, said := range [...]struct {
		n  int
		is *atomic.Int64
	}{{last.PromptTokens, &p.prompt}, {last.OutputTokens, &p.output}, {last.Cached, &p.cached}} {
		if said.n != engine.CachedUnknown {
			said.is.Store(int64(said.n))
		}
	}
}

func (p *passthroughCall) sendFrame(piece *engine.PassthroughChunk) error {
	p.frame = engine.AppendPassthroughChunk(p.frame[:0], piece)
	if cap(p.frame) <= maxPieceData {
		return p.send(p.frame)
	}
	frame := p.frame
	p.frame = nil // do not keep the memory of a large piece
	return p.send(frame)
}

// serveEmbed serves one request for an embedding.
func (s *callServer) serveEmbed(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Embedder)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no embeddings", w.cfg.ID)
		w.metrics.countRefused(err)
		return err
	}
	req := new(engine.EmbedRequest)
	return s.serveOnce(ctx, func() (string, callInfo, error) {
		if err := engine.DecodeEmbedRequest(body, req); err != nil {
			return "", callInfo{}, err
		}
		return req.Model, callInfo{req.ID, req.Attempt, len(req.Prompt)}, req.Validate()
	}, func(ctx context.Context) error {
		vector, err := eng.Embed(ctx, req)
		if err != nil {
			return err
		}
		s.recordEngineOutput()
		return send(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: req.Attempt, Vector: vector}))
	})
}

// serveOnce serves a call with a single answer. read decodes the request and returns its model and its
// callInfo; answer makes the answer and sends it.
func (s *callServer) serveOnce(ctx context.Context, read func() (model string, of callInfo, err error), answer func(context.Context) error) error {
	w := s.w
	var of callInfo
	err := s.admitCall(func() (model string, err error) {
		model, of, err = read()
		return model, err
	})
	if err != nil {
		w.metrics.countRefused(err)
		return err
	}
	defer s.finishCall()
	started := time.Now()
	err = s.runCall(ctx, s.newProgress(of, false), func(ctx context.Context) error {
		return w.guardEngine(ctx, of, func() error { return answer(ctx) })
	})
	w.recordCall(ctx, of, 0, 0, time.Since(started), err)
	return err
}
