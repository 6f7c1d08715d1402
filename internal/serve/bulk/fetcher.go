package bulk

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// FetcherConfig says how a Fetcher fetches.
type FetcherConfig struct {
	// BulkOnly fetches over the plane for bulk data alone, for a plane which reaches only some processes.
	// Otherwise what does not come that way comes with the answer of the call.
	BulkOnly bool
	Log      *slog.Logger
}

// Fetcher fetches what other processes lend. It listens for bulk data from the first Fetch on.
type Fetcher struct {
	cfg    FetcherConfig
	calls  rpc.Plane
	bulk   xfer.Plane // nil if there is none
	wanted chan struct{}
	want   sync.Once
	ready  chan struct{} // closed when bulk can be reached, or cannot
	// startTimeout bounds the wait of the first Fetch for that.
	startTimeout time.Duration
}

// NewFetcher returns a Fetcher which calls over calls and receives over bulk, which may be nil. Run must be called.
func NewFetcher(cfg FetcherConfig, calls rpc.Plane, bulk xfer.Plane) *Fetcher {
	return &Fetcher{cfg: cfg, calls: calls, bulk: bulk, wanted: make(chan struct{}), ready: make(chan struct{}), startTimeout: startTimeout}
}

// Run receives bulk data, once some are fetched, until ctx ends.
func (f *Fetcher) Run(ctx context.Context) error {
	known := sync.OnceFunc(func() { close(f.ready) })
	defer known()
	select {
	case <-f.wanted:
	case <-ctx.Done():
		return nil
	}
	if f.bulk == nil {
		known()
		<-ctx.Done()
		return nil
	}
	if err := f.bulk.Run(ctx, known); err != nil && ctx.Err() == nil {
		f.cfg.Log.Warn("bulk data cannot be received: they come with answers of calls, if they can", "error", err)
		known()
		<-ctx.Done()
	}
	return nil
}

// Fetch returns the size bytes which are lent at place. It is NotFound if they are not lent any more, and
// TransferFailed if they do not come.
func (f *Fetcher) Fetch(ctx context.Context, place string, size int) ([]byte, error) {
	addr, handle, ok := splitPlace(place)
	if !ok || size <= 0 {
		return nil, fault.New(fault.Invalid, "fetch: %d bytes at %.100q", size, place)
	}
	into := make([]byte, size)
	if _, err := f.fetch(ctx, addr, handle, into, !f.cfg.BulkOnly); err != nil {
		return nil, err
	}
	return into, nil
}

// FetchInto fetches as many bytes as into has, which the process at addr on the request plane lends by a handle, in
// any way, and returns their digest as messages have it. Its errors are Fetch's. After an error the content of into
// is undefined, and the memory is the caller's.
func (f *Fetcher) FetchInto(ctx context.Context, addr string, handle, into []byte) (digest []byte, err error) {
	d, err := f.fetch(ctx, addr, handle, into, true)
	if err != nil {
		return nil, err
	}
	return appendDigest(nil, d), nil
}

// Listen begins to receive bulk data before the first Fetch, and returns when this process can be reached. It is
// Unavailable if it cannot. Run must be called.
func (f *Fetcher) Listen(ctx context.Context) error {
	f.want.Do(func() { close(f.wanted) })
	select {
	case <-f.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.bulk == nil || len(f.bulk.Addresses()) == 0 {
		return fault.New(fault.Unavailable, "this process cannot receive bulk data")
	}
	return nil
}

func (f *Fetcher) fetch(ctx context.Context, addr string, handle, into []byte, inline bool) (xfer.Digest, error) {
	f.want.Do(func() { close(f.wanted) })
	select {
	case <-f.ready:
	case <-time.After(f.startTimeout): // without Run
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	digest, err := f.fetchBulk(ctx, addr, handle, into)
	if err != nil && inline && fault.CodeOf(err) != fault.NotFound && ctx.Err() == nil {
		f.cfg.Log.DebugContext(ctx, "bytes did not come as bulk data, and are asked for in the answer of the call", "error", err)
		clear(into)
		digest, err = f.fetchInline(ctx, addr, handle, into)
	}
	switch {
	case err == nil:
		return digest, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case fault.CodeOf(err) == fault.NotFound:
		return 0, err
	}
	return 0, fault.New(fault.TransferFailed, "fetch: %d bytes did not come: %w", len(into), err)
}

// fetchBulk fetches over the plane for bulk data.
func (f *Fetcher) fetchBulk(ctx context.Context, addr string, handle, into []byte) (xfer.Digest, error) {
	if f.bulk == nil {
		return 0, fault.New(fault.Unavailable, "fetch: this process has no plane for bulk data")
	}
	t, err := f.bulk.Expect(xfer.Incoming{Into: [][]byte{into}})
	if err != nil {
		return 0, err
	}
	descriptor, err := t.Descriptor().AppendBinary(nil)
	if err == nil {
		_, err = f.call(ctx, addr, &engine.FetchRequest{Handle: handle, Into: descriptor}, nil)
	}
	if err != nil {
		// The memory is the caller's again. If all bytes have come, only the answer is lost.
		t.Abort(err)
	}
	receipt, ended := t.Wait(ctx)
	if ended == nil {
		return receipt.Digest, nil
	}
	if err != nil {
		return 0, err
	}
	return 0, ended
}

// fetchInline fetches in the answer of the call.
func (f *Fetcher) fetchInline(ctx context.Context, addr string, handle, into []byte) (xfer.Digest, error) {
	rest := into
	last, err := f.call(ctx, addr, &engine.FetchRequest{Handle: handle}, func(piece []byte) error {
		if len(piece) > len(rest) {
			return errors.New("fetch: more bytes came than were asked for")
		}
		rest = rest[copy(rest, piece):]
		return nil
	})
	digest := xfer.DigestOf(into)
	switch {
	case err != nil:
		return 0, err
	case len(rest) > 0:
		return 0, fault.New(fault.Unavailable, "fetch: %d of %d bytes came", len(into)-len(rest), len(into))
	case string(last.Digest) != string(appendDigest(nil, digest)):
		return 0, fault.New(fault.Unavailable, "fetch: the digest of what came is wrong")
	}
	return digest, nil
}

// call calls fetch, and returns the last frame of the answer.
func (f *Fetcher) call(ctx context.Context, addr string, req *engine.FetchRequest, take func(piece []byte) error) (last engine.Fetched, err error) {
	req.Attempt = 1
	err = f.calls.Call(ctx, addr, engine.MethodFetch, engine.AppendFetchRequest(nil, req), func(frame []byte) error {
		var got engine.Fetched
		if err := engine.DecodeFetched(frame, &got); err != nil {
			return err
		}
		if got.Last {
			last = got
		}
		if len(got.Data) == 0 || take == nil {
			return nil
		}
		return take(got.Data)
	})
	if err == nil && !last.Last {
		err = fault.New(fault.Unavailable, "fetch: the answer ended early")
	}
	return last, err
}
