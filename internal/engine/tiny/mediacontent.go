package tiny

import (
	"context"
	"errors"
	"strings"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/media/pixel"
)

// Files loads the files of media that do not travel with their requests. It is called from several
// goroutines.
type Files interface {
	// FetchFile returns the file at a URL, which may be used until release is called, and must not be changed.
	// Errors should be *fault.Error.
	FetchFile(ctx context.Context, url string) (file []byte, release func(), err error)
	// ParseData returns the file in a data: URI.
	ParseData(uri string) ([]byte, error)
}

// FetchFunc returns the size bytes which a process lends at place. They belong to the caller.
type FetchFunc func(ctx context.Context, place string, size int) ([]byte, error)

// mediaContent is the source of an engine's media objects.
type mediaContent struct {
	files  Files     // nil: only content that travels with requests
	fetch  FetchFunc // nil: nothing that other processes lend
	limits pixel.Limits
}

func newContent(cfg *Config) mediaContent {
	return mediaContent{files: cfg.Files, fetch: cfg.Fetch, limits: cfg.MediaLimits}
}

// objectContent is the content of an object: decoded, or a file.
type objectContent struct {
	tensor  media.Tensor
	file    []byte
	limits  *pixel.Limits
	release func()
}

// findContent finds an object's content: in the request, or where a process lends it, or in the file that its
// source names, in that order.
func (c *mediaContent) findContent(ctx context.Context, o *media.Object) (*objectContent, error) {
	f := &objectContent{tensor: o.Tensor, limits: &c.limits, release: func() {}}
	if !o.Tensor.IsZero() {
		if err := pixel.Check(o.Kind, &f.tensor); err != nil {
			return nil, objectError(o, "%v", err)
		}
		if f.tensor.Data != nil || c.fetchTensor(ctx, o, &f.tensor) {
			return f, nil
		}
	}
	f.tensor = media.Tensor{}
	return f, c.loadSource(ctx, o, f)
}

// fetchTensor fetches the elements of a tensor from the process which lends them, if it does.
func (c *mediaContent) fetchTensor(ctx context.Context, o *media.Object, t *media.Tensor) bool {
	if c.fetch == nil || t.Place == "" {
		return false
	}
	size := 1
	for _, n := range t.Shape {
		size *= n
	}
	if o.Kind == media.Audio {
		size *= 4
	}
	if size > c.limits.MaxTensor(o.Kind) { // no process decodes so many: the shape is wrong
		return false
	}
	var err error
	if t.Data, err = c.fetch(ctx, t.Place, size); err != nil {
		return false // the process cannot be reached, or the request is over; the source remains
	}
	return len(t.Data) == size && matchesKey(o, t)
}

// matchesKey reports whether a tensor is the one its object's key was computed from. A key made from a URL or
// from a client's name cannot be checked.
func matchesKey(o *media.Object, t *media.Tensor) bool {
	return o.Identity != media.ByPixels || pixel.ContentKey(o.Kind, t) == o.Key
}

// loadSource loads the file that an object's source names.
func (c *mediaContent) loadSource(ctx context.Context, o *media.Object, f *objectContent) (err error) {
	if o.Source == "" || c.files == nil {
		missing := objectError(o, "the engine cannot have what it shows: it did not come with the request, and this worker fetches nothing")
		missing.Err = errUnreachable
		return missing
	}
	if f.file, f.release, err = c.loadFile(ctx, o); err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	message := "its file cannot be had"
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		message = refused.Message
	}
	named := objectError(o, "%s", message)
	named.Err = errors.Join(errUnreachable, err)
	return named
}

// decodeTensor returns the object decoded. The content of a URL can change between the request's arrival,
// when its key was computed, and now. Another picture under that key would leave its K and V there, for later
// requests with the first picture.
func (f *objectContent) decodeTensor(o *media.Object) (media.Tensor, error) {
	if !f.tensor.IsZero() {
		return f.tensor, nil
	}
	const changed = "what its URL shows differs from when the request came; send it again"
	if o.Identity == media.ByBytes && media.BytesKey(f.file) != o.Key {
		return media.Tensor{}, objectError(o, changed)
	}
	t, _, err := pixel.DecodeObject(o.Kind, f.file, *f.limits)
	switch {
	case err != nil:
		return media.Tensor{}, objectError(o, "%v", err)
	case !matchesKey(o, &t):
		return media.Tensor{}, objectError(o, changed)
	}
	return t, nil
}

func (c *mediaContent) loadFile(ctx context.Context, o *media.Object) (file []byte, release func(), err error) {
	if frames, ok := pixel.ParseFramesURI(o.Source); ok && o.Kind == media.Video {
		return []byte(frames), func() {}, nil
	}
	if len(o.Source) >= 5 && strings.EqualFold(o.Source[:5], "data:") {
		file, err = c.files.ParseData(o.Source)
		return file, func() {}, err
	}
	return c.files.FetchFile(ctx, o.Source)
}
