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

// Files is where the engine has the files of media from that do not travel with their
// requests. It is called from several goroutines.
type Files interface {
	// File returns the file behind a URL, which may be used until release is called; it must
	// not be changed. Errors should be *fault.Error.
	File(ctx context.Context, url string) (file []byte, release func(), err error)
	// Data returns the file in a data: URI.
	Data(uri string) ([]byte, error)
}

// SegmentFunc opens the first size bytes of a shared-memory segment of this host, which may be read
// until release is called.
type SegmentFunc func(name string, size int) (data []byte, release func(), err error)

// content is where an engine has objects from.
type content struct {
	files   Files       // nil: only what travels with requests
	segment SegmentFunc // nil: no segments
	limits  pixel.Limits
}

// tensor returns an object decoded: as it came with the request, or from shared memory,
// or from the file that its source names, in that order.
func (c *content) tensor(ctx context.Context, o *media.Object) (media.Tensor, error) {
	t := o.Tensor
	if !t.IsZero() {
		if err := pixel.Check(o.Kind, &t); err != nil {
			return media.Tensor{}, about(o, "%v", err)
		}
		if t.Data != nil {
			return t, nil
		}
		if c.lent(o, &t) {
			return t, nil
		}
	}
	t, err := c.decoded(ctx, o)
	if err != nil {
		return media.Tensor{}, err
	}
	if !o.Tensor.IsZero() && !isOf(o, &t) {
		return media.Tensor{}, about(o, "what its URL shows is another one than when the request came; send it again")
	}
	return t, nil
}

// lent reads the elements of a tensor from shared memory, if they are there. They are copied
// before they are checked: the memory is others' to write.
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
		return false // of another host, or its lease has ended; there is the source
	}
	t.Data = bytes.Clone(data[:min(len(data), size)])
	release()
	return len(t.Data) == size && isOf(o, t)
}

// isOf reports whether a tensor is that of its object, which was decoded where the
// request came from, so that its key is that of what was decoded. A key by a name that
// the client gave says nothing of it.
func isOf(o *media.Object, t *media.Tensor) bool {
	return o.Name != "" || pixel.Key(o.Kind, t) == o.Key
}

// decoded fetches and decodes the file that an object's source names.
func (c *content) decoded(ctx context.Context, o *media.Object) (media.Tensor, error) {
	if o.Source == "" || c.files == nil {
		return media.Tensor{}, about(o, "the engine cannot have what it shows: it did not come with the request, and this worker fetches nothing")
	}
	file, release, err := c.file(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return media.Tensor{}, ctx.Err()
		}
		var refused *fault.Error
		if errors.As(err, &refused) {
			return media.Tensor{}, &fault.Error{Code: fault.Invalid, Param: o.Part, Message: about(o, "%s", refused.Message).Message, Err: err}
		}
		return media.Tensor{}, &fault.Error{Code: fault.Invalid, Param: o.Part, Message: about(o, "its file cannot be had").Message, Err: err}
	}
	defer release()
	t, _, err := pixel.Object(o.Kind, file, c.limits)
	if err != nil {
		return media.Tensor{}, about(o, "%v", err)
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
