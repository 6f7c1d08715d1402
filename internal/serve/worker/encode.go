package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// RowLender lends bytes to callers by handles.
type RowLender interface {
	// LendHandle lends data until release is called. fetched is closed when they have been fetched once, and free is
	// called after the release when they are not read any more.
	LendHandle(data []byte, free func()) (handle []byte, fetched <-chan struct{}, release func())
	// ServeFetch answers the method fetch.
	ServeFetch(ctx context.Context, body []byte, send func([]byte) error) error
}

// fetchLimit bounds how long the rows of a call are lent after the last of them was encoded.
const fetchLimit = 30 * time.Second

// maxInline bounds rows in the answer, in bytes.
const maxInline = rpc.MaxFrame - 64<<10

// serveEncode serves one request for the rows of media.
func (s *callServer) serveEncode(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.MediaEncoder)
	if !ok && w.cfg.Holder != nil {
		eng, ok = heldOnly{w.cfg.Holder}, true
	}
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d encodes no media for others", w.cfg.ID)
		w.metrics.countRefused(err)
		return err
	}
	req := new(engine.EncodeRequest)
	return s.serveOnce(ctx, func() (string, callInfo, error) {
		if err := engine.DecodeEncodeRequest(body, req); err != nil {
			return "", callInfo{}, err
		}
		return req.Model, callInfo{id: req.ID, attempt: req.Attempt}, req.Validate()
	}, func(ctx context.Context) error {
		c := encodeCall{w: w, eng: eng, req: req, send: send}
		defer c.releaseAll()
		return c.run(ctx)
	})
}

// heldOnly answers with rows which an embedding cache has, and encodes nothing.
type heldOnly struct{ of engine.RowHolder }

// EncodeObject implements engine.MediaEncoder.
func (h heldOnly) EncodeObject(ctx context.Context, req *engine.EncodeRequest, o *media.Object) (*engine.EncodedObject, error) {
	return h.of.HeldRows(ctx, req, o)
}

// EncodeLoad implements engine.MediaEncoder.
func (h heldOnly) EncodeLoad() int { return 0 }

// encodeCall is a call of encode in progress.
type encodeCall struct {
	w    *Worker
	eng  engine.MediaEncoder
	req  *engine.EncodeRequest
	send func([]byte) error
	lent []lentRows
}

type lentRows struct {
	fetched <-chan struct{}
	release func()
}

// run answers with the rows of each object, and returns when all lent rows were fetched.
func (c *encodeCall) run(ctx context.Context) error {
	for i := range c.req.Objects {
		if err := c.encode(ctx, i); err != nil {
			return err
		}
	}
	if len(c.lent) == 0 {
		return nil
	}
	late := time.NewTimer(fetchLimit)
	defer late.Stop()
	for _, l := range c.lent {
		select {
		case <-l.fetched:
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fault.New(fault.Deadline, "encode: the rows were not fetched within %v", fetchLimit)
		}
	}
	return nil
}

// encode answers with the rows of one object.
func (c *encodeCall) encode(ctx context.Context, i int) error {
	got, err := c.eng.EncodeObject(ctx, c.req, &c.req.Objects[i])
	if err != nil {
		return mediaFailed(err)
	}
	release := got.Release
	defer func() { release() }()
	if len(got.Handoff) > 0 {
		return c.send(engine.AppendEncoded(nil, &engine.Encoded{
			Attempt: c.req.Attempt, Object: i, Handoff: got.Handoff, Cached: got.Cached, Load: c.eng.EncodeLoad(),
		}))
	}
	rows := got.Rows
	rows.Digest = binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(rows.Data)))
	switch lender := c.w.planes.Lender; {
	case lender != nil && !c.req.Inline:
		var l lentRows
		rows.Handle, l.fetched, l.release = lender.LendHandle(rows.Data, got.Release)
		rows.Data, release = nil, func() {} // the lender's
		c.lent = append(c.lent, l)
	case len(rows.Data) > maxInline:
		return fault.New(fault.TooLarge, "encode: the rows have %d bytes, and an answer at most %d: ask for handles", len(rows.Data), maxInline)
	}
	return c.send(engine.AppendEncoded(nil, &engine.Encoded{
		Attempt: c.req.Attempt, Object: i, Rows: rows, Cached: got.Cached, Load: c.eng.EncodeLoad(),
	}))
}

func (c *encodeCall) releaseAll() {
	for _, l := range c.lent {
		l.release()
	}
}

// mediaFailed turns an error about an object into the one which says that no worker can encode it.
func mediaFailed(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Invalid {
		return err
	}
	failed := *f
	failed.Code = fault.MediaFailed
	return &failed
}
