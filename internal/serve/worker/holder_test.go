package worker_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
)

// heldRows has the rows of the object "held".
type heldRows struct{ released int }

func (h *heldRows) HeldRows(_ context.Context, req *engine.EncodeRequest, o *media.Object) (*engine.EncodedObject, error) {
	if o.Part != "held" {
		return nil, fault.New(fault.NotFound, "not here")
	}
	return &engine.EncodedObject{
		Rows:   media.EncoderRows{Shape: []int{1, 1}, Type: media.Float32, Encoder: req.Encoder, Data: []byte("rows")},
		Cached: true, Release: func() { h.released++ },
	}, nil
}

// TestHolder: a worker which serves requests gives rows that its engine holds, and is asked for a token by its canary as
// before. What it does not hold is NotFound.
func TestHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		holder := &heldRows{}
		r.cfg.Holder = holder
		r.start(r.engine)
		defer r.stop()
		var data []byte
		err := r.encode(t.Context(), encodeRequest("held"), func(e *engine.Encoded) error {
			data = bytes.Clone(e.Rows.Data)
			if !e.Cached || e.Load != 0 {
				t.Errorf("%+v", e)
			}
			return nil
		})
		if err != nil || string(data) != "rows" || holder.released != 1 {
			t.Errorf("%q, released %d times, %v", data, holder.released, err)
		}
		if err := r.encode(t.Context(), encodeRequest("absent"), func(*engine.Encoded) error { return nil }); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("not held: %v", err)
		}
		if err := r.rpc.Call(t.Context(), r.addr(), engine.MethodGenerate, engine.AppendRequest(nil, request(4)), func([]byte) error { return nil }); err != nil {
			t.Errorf("a request: %v", err)
		}
	})
}
