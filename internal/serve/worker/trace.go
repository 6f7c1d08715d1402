package worker

import (
	"context"
	"sync/atomic"

	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
)

// traceCalls serves calls in spans of their callers' traces: the call, and within a generation the time
// until its first token, which is queueing in the engine and prefill. Pings and inspections have no
// spans.
func traceCalls(t *obs.Tracer, w *Worker, h rpc.Handler) rpc.Handler {
	if t == nil {
		return h
	}
	role := "worker "
	if w.card.Router {
		role = "router "
	}
	return func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
		if method == engine.MethodPing || method == engine.MethodInspect {
			return h(ctx, method, body, send)
		}
		ctx, span := t.StartServer(ctx, role+spanMethod(method))
		span.SetInt("penstock.worker_id", int64(w.cfg.ID))
		span.SetInt("penstock.body_bytes", int64(len(body)))
		var err error
		if method == engine.MethodGenerate {
			_, wait := t.Start(ctx, "queue and prefill")
			first := &firstTokenSpan{span: wait, send: send}
			err = h(ctx, method, body, first.sendFrame)
			first.endSpan(err)
		} else {
			err = h(ctx, method, body, send)
		}
		span.End(err)
		return err
	}
}

// spanMethod is a method's name for a span; unknown methods, which callers may invent, share one name.
func spanMethod(method string) string {
	switch method {
	case engine.MethodGenerate, engine.MethodEmbed, engine.MethodPreprocess, engine.MethodPassthrough, engine.MethodEncode, engine.MethodFetch:
		return method
	}
	return "unknown"
}

// firstTokenSpan ends a span at the first frame that has tokens or the end of a choice. A frame may come from another
// goroutine than the end of the call, and after it.
type firstTokenSpan struct {
	span  obs.Span
	send  func([]byte) error
	delta engine.Delta
	ended atomic.Bool
}

func (u *firstTokenSpan) sendFrame(frame []byte) error {
	if !u.ended.Load() && engine.DecodeDelta(frame, &u.delta) == nil &&
		(len(u.delta.Tokens) > 0 || u.delta.Finish != engine.NotFinished) && u.ended.CompareAndSwap(false, true) {
		if u.delta.Cached != engine.CachedUnknown {
			u.span.SetInt("penstock.cached_tokens", int64(u.delta.Cached))
		}
		setSplit(u.span, u.delta.Split)
		u.span.End(nil)
	}
	return u.send(frame)
}

// setSplit says in a span where the prompt was computed; r is nil if this was not decided.
func setSplit(span obs.Span, r *engine.SplitReport) {
	if r == nil {
		return
	}
	span.SetText("penstock.disagg_policy", r.Policy.String())
	span.SetText("penstock.prefill_rule", r.Rule)
	span.SetInt("penstock.prefill_queued_jobs", int64(r.QueuedJobs))
	span.SetFloat("penstock.prefill_local_ms", r.LocalMs)
	span.SetFloat("penstock.prefill_remote_ms", r.RemoteMs)
	if r.Failure != "" {
		span.SetText("penstock.prefill_failure", r.Failure)
	}
	if r.By.ID != 0 {
		span.SetInt("penstock.prefill_worker_id", int64(r.By.ID))
	}
}

func (u *firstTokenSpan) endSpan(err error) {
	if u.ended.CompareAndSwap(false, true) {
		u.span.End(err)
	}
}
