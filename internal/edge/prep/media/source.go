package media

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/core/media/probe"
	"penstock/internal/media/fetch"
)

// FromFetcher is the Source that a Fetcher is, with data: URIs of files of at most max bytes.
func FromFetcher(f *fetch.Fetcher, max int64) Source { return fetched{f, max} }

type fetched struct {
	fetcher *fetch.Fetcher
	max     int64
}

// Size implements Source.
func (s fetched) Size(ctx context.Context, url string) (Found, error) {
	info, err := s.fetcher.Size(ctx, url)
	return found(info), err
}

// File implements Source.
func (s fetched) File(ctx context.Context, url string) ([]byte, func(), error) {
	blob, err := s.fetcher.Get(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	return blob.Bytes, blob.Release, nil
}

// Data implements Source.
func (s fetched) Data(uri string) ([]byte, error) {
	d, err := fetch.ParseData(uri, s.max)
	return d.Bytes, err
}

// Header implements Source.
func (s fetched) Header(file []byte) (Found, error) {
	info, err := probe.Header(file)
	var bad *probe.Error
	if errors.As(err, &bad) {
		code := fault.Invalid
		if bad.Fault == probe.TooLarge {
			code = fault.TooLarge
		}
		return Found{}, fault.New(code, "the file cannot be taken: %v", bad)
	}
	return found(info), err
}

func found(info probe.Info) Found {
	return Found{Kind: info.Kind, Size: info.Size, Oriented: info.Oriented}
}
