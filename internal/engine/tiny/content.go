package tiny

import (
	"bytes"
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
	// File returns the file at a URL, which may be used until release is called, and must not be changed.
	// Errors should be *fault.Error.
	File(ctx context.Context, url string) (file []byte, release func(), err error)
	// Data returns the file in a data: URI.
	Data(uri string) ([]byte, error)
}

// SegmentFunc opens the first size bytes of a shared-memory segment of this host, which may be read
// until release is called.
type SegmentFunc func(name string, size int) (data []byte, release func(), err error)

// mediaContent is the source of an engine's media objects.
type content struct {
	files   Files       // nil: only content that travels with requests
	segment SegmentFunc // nil: no segments
	limits  pixel.Limits
}

// objectContent is the content of an object: decoded, or a file.
type found struct {
	tensor  media.Tensor
	file    []byte
	limits  *pixel.Limits
	release func()
}

// findContent finds an object's content: in the request, or in shared memory, or in the file that its source
// names, in that order.
func (c *content) find(ctx context.Context, o *media.Object) (*found, error) {
	f := &found{tensor: o.Tensor, limits: &c.limits, release: func() {}}
	if !o.Tensor.IsZero() {
		if err := pixel.Check(o.Kind, &f.tensor); err != nil {
			return nil, about(o, "%v", err)
		}
		if f.tensor.Data != nil || c.lent(o, &f.tensor) {
			return f, nil
		}
	}
	f.tensor = media.Tensor{}
	return f, c.fetch(ctx, o, f)
}

// readSegment reads the elements of a tensor from shared memory, if they are there. It copies them before it
// checks them, because other processes may write the memory.
func (c *content) lent(o *media.Object, t *media.Tensor) bool {
	if c.segment == nil || t.Segment == "" {
		return false
	}
	size := 1
	for _, n := range t.Shape {
		size *= n
	}
	if o.Kind == media.Audio {
		size *= 4
	}
	data, release, err := c.segment(t.Segment, size)
	if err != nil {
		return false // the segment is on another host, or its lease has ended; the source remains
	}
	t.Data = bytes.Clone(data[:min(len(data), size)])
	release()
	return len(t.Data) == size && isOf(o, t)
}

// matchesKey reports whether a tensor is the one its object's key was computed from. A key made from a URL or
// from a client's name cannot be checked.
func isOf(o *media.Object, t *media.Tensor) bool {
	return o.Identity != media.ByPixels || pixel.Key(o.Kind, t) == o.Key
}

// loadSource loads the file that an object's source names.
func (c *content) fetch(ctx context.Context, o *media.Object, f *found) (err error) {
	if o.Source == "" || c.files == nil {
		return about(o, "the engine cannot have what it shows: it did not come with the request, and this worker fetches nothing")
	}
	if f.file, f.release, err = c.file(ctx, o); err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	message := "its file cannot be had"
	var refused *fault.Error
	if errors.As(err, &refused) {
		message = refused.Message
	}
	named := about(o, "%s", message)
	named.Err = err
	return named
}

// decodeTensor returns the object decoded. The content of a URL can change between the request's arrival,
// when its key was computed, and now. Another picture under that key would leave its K and V there, for later
// requests with the first picture.
func (f *found) decode(o *media.Object) (media.Tensor, error) {
	if !f.tensor.IsZero() {
		return f.tensor, nil
	}
	const changed = "what its URL shows is another one than when the request came; send it again"
	if o.Identity == media.ByBytes && media.BytesKey(f.file) != o.Key {
		return media.Tensor{}, about(o, changed)
	}
	t, _, err := pixel.Object(o.Kind, f.file, *f.limits)
	switch {
	case err != nil:
		return media.Tensor{}, about(o, "%v", err)
	case !isOf(o, &t):
		return media.Tensor{}, about(o, changed)
	}
	return t, nil
}

func (c *content) file(ctx context.Context, o *media.Object) (file []byte, release func(), err error) {
	if frames, ok := pixel.FramesURI(o.Source); ok && o.Kind == media.Video {
		return []byte(frames), func() {}, nil
	}
	if len(o.Source) >= 5 && strings.EqualFold(o.Source[:5], "data:") {
		file, err = c.files.Data(o.Source)
		return file, func() {}, err
	}
	return c.files.File(ctx, o.Source)
}
