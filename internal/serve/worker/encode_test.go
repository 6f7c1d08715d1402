package worker_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
	"penstock/internal/serve/bulk"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// encodingEngine is an engine that encodes media: its rows are the part of the object, repeated.
type encodingEngine struct {
	*servetest.Engine
	held atomic.Int64 // objects which are not released
}

func (e *encodingEngine) EncodeLoad() int { return 5 }

func (e *encodingEngine) EncodeObject(ctx context.Context, req *engine.EncodeRequest, o *media.Object) (*engine.EncodedObject, error) {
	switch o.Part {
	case "bad": // 4 bytes are a row
		return nil, fault.InvalidParam(o.Part, "'bad': no picture")
	case "absent":
		return nil, fault.New(fault.NotFound, "not here")
	case "crash":
		panic("engine bug")
	case "plain":
		return nil, errors.New("secret detail")
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	e.held.Add(1)
	if o.Part == "handoff" {
		return &engine.EncodedObject{Handoff: []byte(`{"a":{}}`), Release: func() { e.held.Add(-1) }}, nil
	}
	data := bytes.Repeat([]byte(o.Part), o.Size.Width)
	return &engine.EncodedObject{
		Rows:    media.EncoderRows{Shape: []int{len(data) / 4, 1}, Type: media.Float32, Encoder: req.Encoder, Data: data},
		Cached:  o.Name == "cached",
		Release: func() { e.held.Add(-1) },
	}, nil
}

// startEncoding starts a worker of role encode.
func (r *rig) startEncoding(lender worker.RowLender) *encodingEngine {
	r.cfg.Role = engine.RoleEncode
	r.lender = lender
	e := &encodingEngine{Engine: r.engine}
	r.start(e)
	return e
}

func (r *rig) encode(ctx context.Context, req *engine.EncodeRequest, take func(*engine.Encoded) error) error {
	return r.rpc.Call(ctx, r.addr(), engine.MethodEncode, engine.AppendEncodeRequest(nil, req), func(frame []byte) error {
		var e engine.Encoded
		if err := engine.DecodeEncoded(frame, &e); err != nil {
			return err
		}
		return take(&e)
	})
}

func encodeRequest(parts ...string) *engine.EncodeRequest {
	req := &engine.EncodeRequest{ID: "r", Attempt: 2, Model: "m", Encoder: "e"}
	for _, part := range parts {
		req.Objects = append(req.Objects, media.Object{Kind: media.Image, Part: part, Size: media.Size{Width: 3}})
	}
	return req
}

// TestEncodes: a worker of role encode answers with the rows of each object, inline or by handles which last until
// the rows were fetched or the call ends. It serves nothing else but questions about itself.
func TestEncodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		handles := bulk.NewHandles(nil)
		e := r.startEncoding(handles)
		defer r.stop()
		fetcher := bulk.NewFetcher(bulk.FetcherConfig{Log: r.logger()}, r.rpc, nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = fetcher.Run(ctx) }() // it says nothing but that ctx has ended

		for _, inline := range []bool{false, true} {
			req := encodeRequest("aaaa", "bbbb")
			req.Objects[1].Name, req.Inline = "cached", inline
			n := 0
			err := r.encode(t.Context(), req, func(got *engine.Encoded) error {
				want := []byte(strings.Repeat([]string{"aaaa", "bbbb"}[n], 3))
				digest := binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(want)))
				if got.Attempt != 2 || got.Object != n || got.Cached != (n == 1) || got.Load != 5 || got.Rows.Encoder != "e" || !bytes.Equal(got.Rows.Digest, digest) || (len(got.Rows.Data) > 0) != inline {
					t.Errorf("answer %+v", got)
				}
				data := got.Rows.Data
				if n++; !inline {
					data = make([]byte, len(want))
					if has, err := fetcher.FetchInto(t.Context(), r.addr(), got.Rows.Handle, data); err != nil || !bytes.Equal(has, digest) {
						t.Errorf("fetch: %x, %v", has, err)
					}
				}
				if !bytes.Equal(data, want) {
					t.Errorf("rows %q, want %q", data, want)
				}
				return nil
			})
			if lent, _ := handles.Usage(); err != nil || n != 2 || lent != 0 || e.held.Load() != 0 {
				t.Errorf("%d answers, %d lent, %d held, %v", n, lent, e.held.Load(), err)
			}
		}
		for _, method := range []string{engine.MethodGenerate, engine.MethodEmbed, engine.MethodPrefill} {
			err := r.rpc.Call(t.Context(), r.addr(), method, engine.AppendRequest(nil, request(4)), func([]byte) error { return nil })
			if fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(err.Error(), "has the role encode") {
				t.Errorf("%s: %v", method, err)
			}
		}
	})
}

// TestHandsOff: an engine's handoff is sent as it is, and nothing is lent.
func TestHandsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		handles := bulk.NewHandles(nil)
		e := r.startEncoding(handles)
		defer r.stop()
		n := 0
		err := r.encode(t.Context(), encodeRequest("aaaa", "handoff"), func(got *engine.Encoded) error {
			if n++; n == 2 && (string(got.Handoff) != `{"a":{}}` || got.Object != 1 || got.Attempt != 2 || got.Load != 5) {
				t.Errorf("answer %+v", got)
			}
			if n == 2 {
				return errEnough
			}
			return nil
		})
		synctest.Wait()
		if lent, _ := handles.Usage(); !errors.Is(err, errEnough) || n != 2 || lent != 0 || e.held.Load() != 0 {
			t.Errorf("%d answers, %d lent, %d held, %v", n, lent, e.held.Load(), err)
		}
	})
}

// errEnough ends a call.
var errEnough = errors.New("enough")

// TestEncodeFails: how a call ends that cannot be served. Nothing stays lent.
func TestEncodeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		handles := bulk.NewHandles(nil)
		e := r.startEncoding(handles)
		defer r.stop()
		for name, c := range map[string]struct {
			req  *engine.EncodeRequest
			edit func(*engine.EncodeRequest)
			want fault.Code
		}{
			"other model":   {encodeRequest("aaaa"), func(q *engine.EncodeRequest) { q.Model = "other" }, fault.NotFound},
			"no objects":    {encodeRequest(), nil, fault.Invalid},
			"no attempt":    {encodeRequest("aaaa"), func(q *engine.EncodeRequest) { q.Attempt = 0 }, fault.Invalid},
			"bad object":    {encodeRequest("aaaa", "bad"), nil, fault.MediaFailed},
			"not here":      {encodeRequest("absent"), nil, fault.NotFound},
			"engine panics": {encodeRequest("crash"), nil, fault.Internal},
			"plain error":   {encodeRequest("plain"), nil, fault.Internal},
			"too large inline": {encodeRequest("aaaa"), func(q *engine.EncodeRequest) {
				q.Inline, q.Objects[0].Size.Width = true, rpc.MaxFrame/4
			}, fault.TooLarge},
		} {
			if c.edit != nil {
				c.edit(c.req)
			}
			err := r.encode(t.Context(), c.req, func(*engine.Encoded) error { return nil })
			if err == nil || fault.CodeOf(err) != c.want || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			var f *fault.Error
			if c.want == fault.MediaFailed && (!errors.As(err, &f) || f.Param != "bad") {
				t.Errorf("%s: about %v", name, err)
			}
		}
		if err := r.rpc.Call(t.Context(), r.addr(), engine.MethodEncode, nil, func([]byte) error { return nil }); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("an empty body: %v", err)
		}
		begin := time.Now()
		err := r.encode(t.Context(), encodeRequest("aaaa"), func(*engine.Encoded) error { return nil })
		if fault.CodeOf(err) != fault.Deadline || time.Since(begin) > time.Minute {
			t.Errorf("rows which nobody fetches: %v after %v", err, time.Since(begin))
		}
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if err := r.encode(ctx, encodeRequest("aaaa", "slow"), func(*engine.Encoded) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		synctest.Wait()
		if lent, _ := handles.Usage(); lent != 0 || e.held.Load() != 0 {
			t.Errorf("%d lent, %d held", lent, e.held.Load())
		}
	})
}

// TestEncodesWithoutLender: a worker which lends nothing answers inline. One whose engine encodes nothing refuses.
func TestEncodesWithoutLender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.startEncoding(nil)
		n := 0
		err := r.encode(t.Context(), encodeRequest("aaaa"), func(e *engine.Encoded) error {
			n += len(e.Rows.Data)
			return nil
		})
		if err != nil || n != 12 {
			t.Errorf("%d bytes, %v", n, err)
		}
		err = r.rpc.Call(t.Context(), r.addr(), engine.MethodFetch, nil, func([]byte) error { return nil })
		if fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("fetch: %v", err)
		}
		r.stop()
	})
	for _, role := range []engine.Role{engine.RoleAggregated, engine.RoleEncode} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, servetest.Config{})
			r.cfg.Role = role
			r.start(r.engine)
			err := r.encode(t.Context(), encodeRequest("aaaa"), func(*engine.Encoded) error { return nil })
			if fault.CodeOf(err) != fault.Unimplemented || !strings.Contains(fmt.Sprint(err), "encodes no media") {
				t.Errorf("role %s: %v", role, err)
			}
			r.stop()
		})
	}
}
