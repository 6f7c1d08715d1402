// Package fetch gets the media that clients' URLs show, for which a server of ours
// becomes a client that strangers direct.
package fetch

import (
	"context"
	"errors"

	"penstock/core/media/probe"
)

// Fetcher fetches. It is safe for concurrent use.
type Fetcher struct{ cfg Config }

// New returns a Fetcher. Close ends it.
func New(cfg Config) (*Fetcher, error) {
	cfg.EnsureDefaults()
	return &Fetcher{cfg: cfg}, cfg.Validate()
}

// Close ends what is under way, and waits for it.
func (f *Fetcher) Close() error { return nil }

// Size returns how large the picture or sound behind a URL is, of which it reads the
// header alone.
func (f *Fetcher) Size(ctx context.Context, url string) (probe.Info, error) {
	return probe.Info{}, errors.ErrUnsupported
}

// Get returns the file behind a URL. The caller releases it.
func (f *Fetcher) Get(ctx context.Context, url string) (*Blob, error) {
	return nil, errors.ErrUnsupported
}

// Blob is a file that was fetched. Bytes are shared and must not be written to, nor be
// used after Release.
type Blob struct{ Bytes []byte }

// Release lets go of the file.
func (b *Blob) Release() {}

// Data is what a data: URI has.
type Data struct {
	MIME  string
	Bytes []byte
}

// ParseData decodes a data: URI of at most max bytes.
func ParseData(uri string, max int64) (Data, error) { return Data{}, errors.ErrUnsupported }

// DataSize returns how large the picture or sound in a data: URI is, of which it decodes
// the header alone.
func DataSize(uri string) (probe.Info, error) { return probe.Info{}, errors.ErrUnsupported }
