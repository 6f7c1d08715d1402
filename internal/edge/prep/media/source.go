package media

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/core/media/probe"
	"penstock/internal/media/fetch"
)

// unorientedSizer is a Source which can skip the orientation of an image, for models to which it makes no
// difference.
type glancer interface {
	// FetchUnorientedSize is FetchSize, but width and height may be swapped.
	SizeEitherWay(ctx context.Context, url string) (Found, error)
}

var _ glancer = fetched{}

// NewFetcherSource returns a Source which fetches with f, with data: URIs of files of at most max bytes.
func FromFetcher(f *fetch.Fetcher, max int64) Source { return fetched{f, max} }

type fetched struct {
	fetcher *fetch.Fetcher
	max     int64
}

// urlChecker is a Source which can tell without a request that a URL may not be fetched.
type checker interface{ Check(url string) error }

var _ checker = fetched{}

// Check implements urlChecker.
func (s fetched) Check(url string) error { return forbidden(s.fetcher.Check(url)) }

// FetchSize implements Source.
func (s fetched) Size(ctx context.Context, url string) (Found, error) {
	if err := s.Check(url); err != nil {
		return Found{}, err
	}
	info, err := s.fetcher.Size(ctx, url)
	return found(info), refused(err)
}

// FetchUnorientedSize implements unorientedSizer.
func (s fetched) SizeEitherWay(ctx context.Context, url string) (Found, error) {
	if err := s.Check(url); err != nil {
		return Found{}, err
	}
	info, err := s.fetcher.SizeEitherWay(ctx, url)
	return found(info), refused(err)
}

// FetchFile implements Source.
func (s fetched) File(ctx context.Context, url string) ([]byte, func(), error) {
	if err := s.Check(url); err != nil {
		return nil, nil, err
	}
	blob, err := s.fetcher.Get(ctx, url)
	if err != nil {
		return nil, nil, refused(err)
	}
	return blob.Bytes, blob.Release, nil
}

// mapRefused maps a URL which must never be fetched to Forbidden, apart from failures which may pass.
func refused(err error) error {
	if err == nil || !fetch.Refused(err) {
		return err
	}
	return forbidden(err)
}

// forbiddenError is the error of a URL which may not be fetched.
func forbidden(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	return &fault.Error{Code: fault.Forbidden, Message: f.Message, Err: f.Err}
}

// ParseData implements Source.
func (s fetched) Data(uri string) ([]byte, error) {
	d, err := fetch.ParseData(uri, s.max)
	return d.Bytes, err
}

// ReadHeader implements Source.
func (s fetched) Header(file []byte) (Found, error) {
	info, err := probe.Header(file)
	var bad *probe.Error
	if errors.As(err, &bad) {
		code := fault.Invalid
		if bad.Fault == probe.TooLarge {
			code = fault.TooLarge
		}
		as := ""
		if bad.Format != 0 {
			as = " as " + bad.Format.String()
		}
		return Found{}, fault.New(code, "the file cannot be taken%s: %s", as, bad.Reason)
	}
	return found(info), err
}

func found(info probe.Info) Found {
	return Found{Kind: info.Kind, Size: info.Size, Oriented: info.Oriented}
}
