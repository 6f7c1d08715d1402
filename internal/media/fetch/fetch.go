// Package fetch gets the media that clients' URLs show, for which a server of ours
// becomes a client that strangers direct. So it is guarded on all sides: every address is
// judged at the moment of connecting to it, redirects are judged as what clients sent is,
// nothing is sent but the request, and bytes, pixels, time, files at a time and the memory of
// the process are bounded. docs/media.md lists the guards.
//
// What a URL shows is had in two ways: [Fetcher.Size] reads no more than the header of a
// file, in ranges of it, and [Fetcher.Get] all of it, once for all who want it at a time.
// data: URIs are read by [ParseData]. Errors are of type *fault.Error, in words for who sent
// the URL, or those of the caller's context.
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

// Fetcher fetches. It is safe for concurrent use.
type Fetcher struct {
	cfg       Config
	transport *http.Transport
	sizes     *sizes
	store     *store
	probes    *flights[probe.Info]
	downloads *flights[*file]

	sizeTally, fileTally tally
}

// New returns a Fetcher. Close ends it.
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

// Close ends what is under way, and waits for it. Files that callers have stay theirs.
func (f *Fetcher) Close() error {
	f.probes.close()
	f.downloads.close()
	f.transport.CloseIdleConnections()
	return nil
}

// Memory returns how many bytes files take, those under way included.
func (f *Fetcher) Memory() int64 { return f.store.used() }

// Size returns how large the picture or sound behind a URL is, of which it reads the
// header alone. Where the header says the size but the file not which way up it is, the
// answer is not Oriented. Answers, and that there is none, are remembered.
func (f *Fetcher) Size(ctx context.Context, uri string) (probe.Info, error) {
	return f.size(ctx, uri, upright)
}

// SizeEitherWay is Size for those to whom a picture that is turned by 90 degrees is none
// other: it makes no request that would only tell that.
func (f *Fetcher) SizeEitherWay(ctx context.Context, uri string) (probe.Info, error) {
	return f.size(ctx, uri, eitherWay)
}

// wish is how much somebody wants to know of a picture.
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
	flight := k // of all who wish the same
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

// probe reads the header of the file behind a URL, range by range.
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
			if sized && ctx.Err() == nil { // all but which way up it is
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
		u, total, tag = at, n, t // what it redirects to is asked from now on
	}
}

// Blob is a file that was fetched. Bytes are shared and must not be written to, nor be
// used after Release.
type Blob struct {
	Bytes []byte

	store    *store
	file     *file
	released atomic.Bool
}

// Release lets go of the file, whose memory may be used for another one. Calls after the
// first do nothing.
func (b *Blob) Release() {
	if b.released.CompareAndSwap(false, true) {
		b.store.unpin(b.file)
	}
}

// blob returns a file that is pinned for it.
func (f *Fetcher) blob(e *file) *Blob { return &Blob{Bytes: e.b, store: f.store, file: e} }

// Get returns the file behind a URL. The caller releases it.
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

// download gets a file, which is pinned once.
func (f *Fetcher) download(ctx context.Context, k key, u *url.URL, client string) (*file, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var host string
	resp, _, err := f.do(tracePeer(ctx, &host), u, probe.Need{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // all that matters was read
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

// reserve waits for more memory for a download.
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

// learn remembers what Size would find in a file, and refuses one that has more pixels than
// there may be, before anybody decodes it.
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

// tooLarge is returned for files above the limit.
func (f *Fetcher) tooLarge() error {
	return invalid(errTooLarge, "its file has more than "+strconv.FormatInt(f.cfg.MaxBytes, 10)+" bytes")
}

// isTooLarge reports whether a probe found more pixels than there may be.
func isTooLarge(err error) bool {
	var e *probe.Error
	return errors.As(err, &e) && e.Fault == probe.TooLarge
}

// unreadable returns what a client reads of a file that says nothing of its size.
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
