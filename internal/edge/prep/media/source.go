package media

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/internal/media/fetch"
	"penstock/internal/media/probe"
)

// unorientedSizer is a Source which can skip the orientation of an image, for models to which it makes no
// difference.
type unorientedSizer interface {
	// FetchUnorientedSize is FetchSize, but width and height may be swapped.
	FetchUnorientedSize(ctx context.Context, url string) (FileInfo, error)
}

var _ unorientedSizer = fetcherSource{}

// NewFetcherSource returns a Source which fetches with f, with data: URIs of files of at most max bytes.
func NewFetcherSource(f *fetch.Fetcher, max int64) Source { return fetcherSource{f, max} }

type fetcherSource struct {
	fetcher *fetch.Fetcher
	max     int64
}

// urlChecker is a Source which can tell without a request that a URL may not be fetched.
type urlChecker interface{ Check(url string) error }

var _ urlChecker = fetcherSource{}

// Check implements urlChecker.
func (s fetcherSource) Check(url string) error { return forbiddenError(s.fetcher.Check(url)) }

// FetchSize implements Source.
func (s fetcherSource) FetchSize(ctx context.Context, url string) (FileInfo, error) {
	if err := s.Check(url); err != nil {
		return FileInfo{}, err
	}
	info, err := s.fetcher.Size(ctx, url)
	return newFileInfo(info), mapRefused(err)
}

// FetchUnorientedSize implements unorientedSizer.
func (s fetcherSource) FetchUnorientedSize(ctx context.Context, url string) (FileInfo, error) {
	if err := s.Check(url); err != nil {
		return FileInfo{}, err
	}
	info, err := s.fetcher.SizeEitherWay(ctx, url)
	return newFileInfo(info), mapRefused(err)
}

// FetchFile implements Source.
func (s fetcherSource) FetchFile(ctx context.Context, url string) ([]byte, func(), error) {
	if err := s.Check(url); err != nil {
		return nil, nil, err
	}
	blob, err := s.fetcher.Get(ctx, url)
	if err != nil {
		return nil, nil, mapRefused(err)
	}
	return blob.Bytes, blob.Release, nil
}

// mapRefused maps a URL which must never be fetched to Forbidden, apart from failures which may pass.
func mapRefused(err error) error {
	if err == nil || !fetch.IsRefused(err) {
		return err
	}
	return forbiddenError(err)
}

// forbiddenError is the error of a URL which may not be fetched.
func forbiddenError(err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	return &fault.Error{Code: fault.Forbidden, Message: f.Message, Err: f.Err}
}

// ParseData implements Source.
func (s fetcherSource) ParseData(uri string) ([]byte, error) {
	d, err := fetch.ParseData(uri, s.max)
	return d.Bytes, err
}

// ReadHeader implements Source.
func (s fetcherSource) ReadHeader(file []byte) (FileInfo, error) {
	info, err := probe.ReadHeader(file)
	if bad, ok := errors.AsType[*probe.Error](err); ok {
		code := fault.Invalid
		if bad.Kind == probe.TooLarge {
			code = fault.TooLarge
		}
		as := ""
		if bad.Format != 0 {
			as = " as " + bad.Format.String()
		}
		return FileInfo{}, &fault.Error{Code: code, Message: "the file cannot be taken" + as + ": " + bad.Reason, Err: bad}
	}
	return newFileInfo(info), err
}

func newFileInfo(info probe.Info) FileInfo {
	return FileInfo{Kind: info.Kind, Size: info.Size, Oriented: info.Oriented}
}
