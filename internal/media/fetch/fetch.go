// Package fetch downloads the media that clients' URLs refer to. The server thereby becomes a
// client which untrusted users control, so everything is guarded: every address is checked at the
// moment of connecting to it, redirects are checked like the URLs of clients, nothing but the
// request is sent, and bytes, pixels, time, concurrent files and the memory of the process are
// bounded. docs/media.md lists the guards.
//
// There are two ways to get the content of a URL: [Fetcher.Size] reads only the header of a file,
// in ranges, and [Fetcher.Get] reads the whole file, once for all concurrent callers. [ParseData]
// decodes data: URIs. Errors are of type *fault.Error, worded for the sender of the URL, or errors
// of the caller's context.
package fetch

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"

	"penstock/core/fault"
	"penstock/core/media/probe"
)

// Fetcher downloads files. It is safe for concurrent use.
type Fetcher struct {
	cfg       Config
	transport *http.Transport
	sizes     *sizes
	store     *store
	probes    *flights[probe.Info]
	downloads *flights[*file]

	sizeTally, fileTally tally
}

// New returns a Fetcher. The caller must close it.
func New(cfg Config) (*Fetcher, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fetcher{cfg: cfg}
	f.transport = newTransport(&f.cfg)
	f.sizes = newSizes(cfg.Dimensions, cfg.DimensionsTTL, cfg.Now)
	f.store = newStore(cfg.CacheBytes, shareOf(cfg.CacheBytes, reserve(cfg.MaxBytes)), cfg.CacheTTL, cfg.Now)
	f.probes = newFlights(cfg.MaxFlights, cfg.Timeout, func(probe.Info) {})
	f.downloads = newFlights(cfg.MaxFlights, cfg.Timeout, f.store.unpin)
	return f, nil
}

// Close aborts requests in progress, and waits for them. Files which callers hold stay valid.
func (f *Fetcher) Close() error {
	f.probes.close()
	f.downloads.close()
	f.transport.CloseIdleConnections()
	return nil
}

// Memory returns how many bytes files use, including downloads in progress.
func (f *Fetcher) Memory() int64 { return f.store.used() }

// Size returns the dimensions of the picture, or the length of the sound, at a URL; it reads only
// the header. If the header has the size but the file does not tell its orientation, the result is
// not Oriented. Results, including failures, are cached.
func (f *Fetcher) Size(ctx context.Context, uri string) (probe.Info, error) {
	return f.size(ctx, uri, upright)
}

// SizeEitherWay is Size for callers which ignore rotation by 90 degrees: it makes no request that
// would only tell the orientation.
func (f *Fetcher) SizeEitherWay(ctx context.Context, uri string) (probe.Info, error) {
	return f.size(ctx, uri, eitherWay)
}

// sizeDetail is how much a caller wants to know about a picture.
type wish byte

const (
	upright wish = iota
	eitherWay
)

func (f *Fetcher) size(ctx context.Context, uri string, w wish) (probe.Info, error) {
	u, err := f.cfg.parse(uri)
	if err != nil {
		return probe.Info{}, err
	}
	k := keyOf(uri)
	e, ok := f.sizes.get(k)
	known := ok && (w == eitherWay || !e.partial)
	f.sizeTally.note(known)
	if known {
		return e.info, e.err
	}
	flight := k // shared by callers with the same detail
	flight[0] ^= byte(w)
	var info probe.Info
	err = f.probes.do(ctx, flight, ownerOf(ctx, u), func(ctx context.Context) (probe.Info, error) {
		e, err := f.probe(ctx, u, w)
		if err == nil || fault.Of(err) == fault.Invalid {
			e.err = err
			f.sizes.put(k, e)
		}
		return e.info, err
	}, func(i probe.Info) { info = i })
	return info, err
}

// probeHeader reads the header of the file at a URL, range by range.
func (f *Fetcher) probe(ctx context.Context, u *url.URL, w wish) (sizeEntry, error) {
	p := probe.Probe{MaxPixels: f.cfg.MaxPixels}
	total, tag := int64(-1), ""
	for begun := false; ; begun = true {
		info, need, err := p.Result()
		if err != nil {
			return sizeEntry{}, unreadable(err)
		}
		sized := info.Size.Width > 0
		if need.IsZero() || sized && w == eitherWay {
			return sizeEntry{info: info, partial: !need.IsZero()}, nil
		}
		b, n, at, t, err := f.piece(ctx, u, need)
		if err == nil && begun && (n != total || t != tag) {
			err = invalid(errRange, "its file changed while it was read")
		}
		if err != nil {
			if sized && ctx.Err() == nil { // only the orientation is unknown
				return sizeEntry{info: info}, nil
			}
			return sizeEntry{}, err
		}
		p.Add(need.Offset, b)
		if n >= 0 {
			p.End(n)
		} else if int64(len(b)) < need.Length {
			p.End(need.Offset + int64(len(b)))
		}
		u, total, tag = at, n, t // further ranges are requested from the redirect's target
	}
}

// Blob is a downloaded file. Bytes is shared: it must not be modified, nor used after Release.
type Blob struct {
	Bytes []byte

	store    *store
	file     *file
	released atomic.Bool
}

// Release releases the file, whose memory may then be reused. Calls after the first do nothing.
func (b *Blob) Release() {
	if b.released.CompareAndSwap(false, true) {
		b.store.unpin(b.file)
	}
}

// newBlob returns a Blob for a file which is pinned for it.
func (f *Fetcher) blob(e *file) *Blob { return &Blob{Bytes: e.b, store: f.store, file: e} }

// Get returns the file at a URL. The caller must release it.
func (f *Fetcher) Get(ctx context.Context, uri string) (*Blob, error) {
	u, err := f.cfg.parse(uri)
	if err != nil {
		return nil, err
	}
	k := keyOf(uri)
	e, there := f.store.get(k)
	f.fileTally.note(there)
	if there {
		return f.blob(e), nil
	}
	var b *Blob
	o := ownerOf(ctx, u)
	err = f.downloads.do(ctx, k, o, func(ctx context.Context) (*file, error) { return f.download(ctx, k, u, o.client) }, func(e *file) {
		f.store.pin(e)
		b = f.blob(e)
	})
	return b, err
}

// downloadFile downloads a file, which it returns pinned once.
func (f *Fetcher) download(ctx context.Context, k key, u *url.URL, client string) (*file, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var host string
	resp, _, err := f.do(tracePeer(ctx, &host), u, probe.Need{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // everything relevant was read
	if err := plain(resp); err != nil {
		return nil, err
	}
	n := resp.ContentLength
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, invalid(errStatus, "its host answered with status "+strconv.Itoa(resp.StatusCode))
	case n > f.cfg.MaxBytes:
		return nil, f.tooLarge()
	}
	body := &body{Reader: resp.Body, n: n, limit: f.cfg.MaxBytes}
	if n >= 0 {
		body.limit = n
	}
	claim := f.store.begin(owner{client: client, host: host}, reserve(body.limit))
	body.grow = func(n int64) error { return f.reserve(ctx, claim, n) }
	body.shrink = func(n int64) { f.store.shrink(claim, n) }
	b, err := f.readAll(stop, body)
	var refused *fault.Error
	switch {
	case err == nil:
		err = f.learn(k, b)
	case errors.Is(err, errTooLarge):
		err = f.tooLarge()
	case !errors.As(err, &refused):
		err = failed(ctx, err)
	}
	if err != nil {
		f.store.abandon(claim)
		return nil, err
	}
	return f.store.put(k, b, claim), nil
}

// reserveMemory waits for more memory for a download.
func (f *Fetcher) reserve(ctx context.Context, c *claim, n int64) error {
	err := f.store.grow(ctx, c, n)
	if errors.Is(err, context.DeadlineExceeded) {
		return &fault.Error{Code: fault.Overloaded, Message: "media URL: there is no memory for the file now: try again", Err: err}
	}
	if err != nil {
		return failed(ctx, err)
	}
	return nil
}

// recordSize caches what Size would find in a file, and rejects a file with more pixels than
// allowed, before it is decoded.
func (f *Fetcher) learn(k key, b []byte) error {
	info, err := probe.HeaderWithin(b, f.cfg.MaxPixels)
	if isTooLarge(err) {
		return unreadable(err)
	}
	if err == nil {
		f.sizes.put(k, sizeEntry{info: info})
	}
	return nil
}

// tooLargeError returns the error for files above the limit.
func (f *Fetcher) tooLarge() error {
	return invalid(errTooLarge, "its file has more than "+strconv.FormatInt(f.cfg.MaxBytes, 10)+" bytes")
}

// isTooLarge reports whether a probe found more pixels than allowed.
func isTooLarge(err error) bool {
	var e *probe.Error
	return errors.As(err, &e) && e.Fault == probe.TooLarge
}

// unreadableError returns the client's error for a file whose size cannot be determined.
func unreadable(err error) error {
	var e *probe.Error
	message := err.Error()
	if errors.As(err, &e) {
		message = e.Reason
		if e.Format != 0 {
			message = "as " + e.Format.String() + ": " + message
		}
	}
	return &fault.Error{Code: fault.Invalid, Message: "media file: " + message, Err: err}
}
