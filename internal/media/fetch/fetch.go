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
	"penstock/internal/media/probe"
)

// Fetcher downloads files. It is safe for concurrent use.
type Fetcher struct {
	cfg       Config
	transport *http.Transport
	sizes     *sizeCache
	store     *fileStore
	probes    *flightGroup[probe.Info]
	downloads *flightGroup[*cachedFile]

	sizeCounter, fileCounter hitCounter
}

// New returns a Fetcher. The caller must close it.
func New(cfg Config) (*Fetcher, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fetcher{cfg: cfg}
	f.transport = newTransport(&f.cfg)
	f.sizes = newSizeCache(cfg.Dimensions, cfg.DimensionsTTL, cfg.Now)
	f.store = newFileStore(cfg.CacheBytes, shareOf(cfg.CacheBytes, downloadMemory(cfg.MaxBytes)), cfg.CacheTTL, cfg.Now)
	f.probes = newFlightGroup(cfg.MaxFlights, cfg.Timeout, func(probe.Info) {})
	f.downloads = newFlightGroup(cfg.MaxFlights, cfg.Timeout, f.store.unpinFile)
	return f, nil
}

// Close aborts requests in progress, and waits for them. Files which callers hold stay valid.
func (f *Fetcher) Close() error {
	f.probes.closeAll()
	f.downloads.closeAll()
	f.transport.CloseIdleConnections()
	return nil
}

// Memory returns how many bytes files use, including downloads in progress.
func (f *Fetcher) Memory() int64 { return f.store.usedBytes() }

// Size returns the dimensions of the picture, or the length of the sound, at a URL; it reads only
// the header. If the header has the size but the file does not tell its orientation, the result is
// not Oriented. Results, including failures, are cached.
func (f *Fetcher) Size(ctx context.Context, uri string) (probe.Info, error) {
	return f.lookupSize(ctx, uri, withOrientation)
}

// SizeEitherWay is Size for callers which ignore rotation by 90 degrees: it makes no request that
// would only tell the orientation.
func (f *Fetcher) SizeEitherWay(ctx context.Context, uri string) (probe.Info, error) {
	return f.lookupSize(ctx, uri, withoutOrientation)
}

// sizeDetail is how much a caller wants to know about a picture.
type sizeDetail byte

const (
	withOrientation sizeDetail = iota
	withoutOrientation
)

func (f *Fetcher) lookupSize(ctx context.Context, uri string, w sizeDetail) (probe.Info, error) {
	u, err := f.cfg.parseURL(uri)
	if err != nil {
		return probe.Info{}, err
	}
	k := urlKeyOf(uri)
	e, ok := f.sizes.getSize(k)
	known := ok && (w == withoutOrientation || !e.partial)
	f.sizeCounter.record(known)
	if known {
		return e.info, e.err
	}
	flight := k // shared by callers with the same detail
	flight[0] ^= byte(w)
	var info probe.Info
	err = f.probes.runShared(ctx, flight, accountOf(ctx, u), func(ctx context.Context) (probe.Info, error) {
		e, err := f.probeHeader(ctx, u, w)
		if err == nil || fault.CodeOf(err) == fault.Invalid {
			e.err = err
			f.sizes.putSize(k, e)
		}
		return e.info, err
	}, func(i probe.Info) { info = i })
	return info, err
}

// probeHeader reads the header of the file at a URL, range by range.
func (f *Fetcher) probeHeader(ctx context.Context, u *url.URL, w sizeDetail) (sizeEntry, error) {
	p := probe.Probe{MaxPixels: f.cfg.MaxPixels}
	total, tag := int64(-1), ""
	for begun := false; ; begun = true {
		info, need, err := p.Result()
		if err != nil {
			return sizeEntry{}, unreadableError(err)
		}
		sized := info.Size.Width > 0
		if need.IsZero() || sized && w == withoutOrientation {
			return sizeEntry{info: info, partial: !need.IsZero()}, nil
		}
		b, n, at, t, err := f.fetchRange(ctx, u, need)
		if err == nil && begun && (n != total || t != tag) {
			err = invalidURL(errRange, "its file changed while it was read")
		}
		if err != nil {
			if sized && ctx.Err() == nil { // only the orientation is unknown
				return sizeEntry{info: info}, nil
			}
			return sizeEntry{}, err
		}
		p.AddBytes(need.Offset, b)
		if n >= 0 {
			p.SetLength(n)
		} else if int64(len(b)) < need.Length {
			p.SetLength(need.Offset + int64(len(b)))
		}
		u, total, tag = at, n, t // further ranges are requested from the redirect's target
	}
}

// Blob is a downloaded file. Bytes is shared: it must not be modified, nor used after Release.
type Blob struct {
	Bytes []byte

	store    *fileStore
	file     *cachedFile
	released atomic.Bool
}

// Release releases the file, whose memory may then be reused. Calls after the first do nothing.
func (b *Blob) Release() {
	if b.released.CompareAndSwap(false, true) {
		b.store.unpinFile(b.file)
	}
}

// newBlob returns a Blob for a file which is pinned for it.
func (f *Fetcher) newBlob(e *cachedFile) *Blob { return &Blob{Bytes: e.b, store: f.store, file: e} }

// Get returns the file at a URL. The caller must release it.
func (f *Fetcher) Get(ctx context.Context, uri string) (*Blob, error) {
	u, err := f.cfg.parseURL(uri)
	if err != nil {
		return nil, err
	}
	k := urlKeyOf(uri)
	e, there := f.store.getPinned(k)
	f.fileCounter.record(there)
	if there {
		return f.newBlob(e), nil
	}
	var b *Blob
	o := accountOf(ctx, u)
	err = f.downloads.runShared(ctx, k, o, func(ctx context.Context) (*cachedFile, error) { return f.downloadFile(ctx, k, u, o.client) }, func(e *cachedFile) {
		f.store.pinFile(e)
		b = f.newBlob(e)
	})
	return b, err
}

// downloadFile downloads a file, which it returns pinned once.
func (f *Fetcher) downloadFile(ctx context.Context, k urlKey, u *url.URL, client string) (*cachedFile, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var host string
	resp, _, err := f.requestFile(tracePeer(ctx, &host), u, probe.ByteRange{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // everything relevant was read
	if err := checkUncompressed(resp); err != nil {
		return nil, err
	}
	n := resp.ContentLength
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, invalidURL(errStatus, "its host answered with status "+strconv.Itoa(resp.StatusCode))
	case n > f.cfg.MaxBytes:
		return nil, f.tooLargeError()
	}
	body := &limitedBody{Reader: resp.Body, announced: n, limit: f.cfg.MaxBytes}
	if n >= 0 {
		body.limit = n
	}
	claim := f.store.startDownload(account{client: client, host: host}, downloadMemory(body.limit))
	body.grow = func(n int64) error { return f.reserveMemory(ctx, claim, n) }
	body.shrink = func(n int64) { f.store.releaseMemory(claim, n) }
	b, err := f.readAll(stop, body)
	var refused *fault.Error
	switch {
	case err == nil:
		err = f.recordSize(k, b)
	case errors.Is(err, errTooLarge):
		err = f.tooLargeError()
	case !errors.As(err, &refused):
		err = fetchError(ctx, err)
	}
	if err != nil {
		f.store.abortDownload(claim)
		return nil, err
	}
	return f.store.putFile(k, b, claim), nil
}

// reserveMemory waits for more memory for a download.
func (f *Fetcher) reserveMemory(ctx context.Context, c *downloadClaim, n int64) error {
	err := f.store.reserveMemory(ctx, c, n)
	if errors.Is(err, context.DeadlineExceeded) {
		return &fault.Error{Code: fault.Overloaded, Message: "media URL: there is no memory for the file now: try again", Err: err}
	}
	if err != nil {
		return fetchError(ctx, err)
	}
	return nil
}

// recordSize caches what Size would find in a file, and rejects a file with more pixels than
// allowed, before it is decoded.
func (f *Fetcher) recordSize(k urlKey, b []byte) error {
	info, err := probe.ReadHeaderWithin(b, f.cfg.MaxPixels)
	if isTooLarge(err) {
		return unreadableError(err)
	}
	if err == nil {
		f.sizes.putSize(k, sizeEntry{info: info})
	}
	return nil
}

// tooLargeError returns the error for files above the limit.
func (f *Fetcher) tooLargeError() error {
	return invalidURL(errTooLarge, "its file has more than "+strconv.FormatInt(f.cfg.MaxBytes, 10)+" bytes")
}

// isTooLarge reports whether a probe found more pixels than allowed.
func isTooLarge(err error) bool {
	var e *probe.Error
	return errors.As(err, &e) && e.Kind == probe.TooLarge
}

// unreadableError returns the client's error for a file whose size cannot be determined.
func unreadableError(err error) error {
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

// Check returns an error if fetching a URL is not allowed, as far as its text tells.
func (f *Fetcher) Check(uri string) error {
	_, err := f.cfg.parseURL(uri)
	return err
}

// IsUnranged reports whether err, from [Fetcher.Size], means that the host does not support range
// requests. [Fetcher.Get] may succeed nevertheless, and yield the size.
func IsUnranged(err error) bool { return errors.Is(err, errRange) }

// IsRefused reports whether err, from a Fetcher, means that fetching from the URL's address is not
// allowed, or that its file is too large. Other processes would have to refuse it too, while other
// errors may not occur for them.
func IsRefused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, errTooLarge) || isTooLarge(err)
}
