package media

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/media/fetch"
	"penstock/internal/media/pixel"
	"penstock/internal/media/probe"
)

// resolveObject resolves one object. It adds to held what outlives the call.
func (m modelResolver) resolveObject(ctx context.Context, c *prep.Chat, f *family.Family, p *prep.Media, held *releaseList) (media.Object, error) {
	o := media.Object{Kind: p.Kind, Part: p.Part, Source: p.URL, Name: p.Name}
	var err error
	switch {
	case p.Halvings > 0:
		o.Identity, o.Source, o.Name = media.ByPixels, "", ""
		err = m.resolveHalved(ctx, f, p, &o, held)
	case m.options.Identity == media.ByPixels:
		o.Identity = media.ByPixels
		err = m.resolveByPixels(ctx, p, &o, held)
	case m.options.Identity == media.ByBytes || isDataURI(p.URL):
		o.Identity = media.ByBytes
		err = m.resolveByBytes(ctx, f, p, &o)
	default:
		o.Identity = media.ByURL
		err = m.resolveByURL(ctx, f, p, &o)
	}
	if err != nil {
		return media.Object{}, nameObjectError(p, err)
	}
	if p.Name != "" && c.Namespace != "" && p.Halvings == 0 { // otherwise a client could change what others see under a name
		o.Key, o.Identity = media.NameKey(c.Namespace, p.Name), ""
	}
	return o, nil
}

// nameObjectError converts an error of an object into one which names its part.
func nameObjectError(p *prep.Media, err error) error {
	var u *prep.UnresolvedError
	var refused *fault.Error
	switch {
	case errors.As(err, &u):
		return err
	case errors.Is(err, pixel.ErrTooLarge):
		return fault.InvalidParam(p.Param, "'%s' is larger than is taken: %v", p.Param, err)
	case errors.Is(err, pixel.ErrMalformed), errors.Is(err, pixel.ErrUnsupported):
		return corruptError(prep.NewUnresolvedError(media.DimensionsUnknown, p.Param, "'%s' cannot be read: %v", p.Param, err))
	case !errors.As(err, &refused): // the deadline of the request, or its client disconnected
		return err
	}
	named := *refused
	named.Param = p.Param
	named.Message = "'" + p.Param + "': " + refused.Message
	if refused.Code == fault.Forbidden || refused.Code == fault.TooLarge {
		named.Code = fault.Invalid // what a client may let others fetch, and how much, is decided here
		return &named
	}
	kind := encode.NotFailed
	if !refused.Code.Class().Retryable { // a server without room for the file may have room later
		named.Code, kind = fault.Invalid, encode.Unreachable
	}
	if _, malformed := errors.AsType[*probe.Error](err); malformed {
		kind = encode.Corrupt
	}
	return &prep.UnresolvedError{Reason: media.DimensionsUnknown, Kind: kind, Err: &named}
}

// corruptError says that the object itself is the reason of an error.
func corruptError(u *prep.UnresolvedError) *prep.UnresolvedError {
	u.Kind = encode.Corrupt
	return u
}

func isDataURI(url string) bool { return len(url) >= 5 && strings.EqualFold(url[:5], "data:") }

// resolveByURL identifies an object by its URL and reads no more of it than its size.
func (m modelResolver) resolveByURL(ctx context.Context, f *family.Family, p *prep.Media, o *media.Object) error {
	period, _ := media.URLPeriod(p.URL, m.cfg.Now().UnixNano(), m.cfg.URLTTL)
	o.Key = media.URLKey(p.URL, period)
	size := m.source.FetchSize
	if g, ok := m.source.(unorientedSizer); ok && !f.NeedsOrientation() {
		size = g.FetchUnorientedSize
	}
	found, err := size(ctx, p.URL)
	if m.options.FetchWhole && fetch.IsUnranged(err) {
		found, err = m.readWholeFile(ctx, p.URL)
	}
	if err != nil {
		return err
	}
	if o.Kind == media.Video && found.Kind == media.Image { // a video of images, whose frames must be counted
		file, release, err := m.source.FetchFile(ctx, p.URL)
		if err != nil {
			return err
		}
		defer release()
		return m.withSlot(ctx, func() error { return m.measureObject(ctx, f, p, file, o) })
	}
	return setObjectSize(f, p, found, o)
}

// readWholeFile returns the header of a file which is not available in ranges.
func (m modelResolver) readWholeFile(ctx context.Context, url string) (FileInfo, error) {
	file, release, err := m.source.FetchFile(ctx, url)
	if err != nil {
		return FileInfo{}, err
	}
	defer release()
	return m.source.ReadHeader(file)
}

// setObjectSize sets the size from the header.
func setObjectSize(f *family.Family, p *prep.Media, found FileInfo, o *media.Object) error {
	switch {
	case found.Kind != o.Kind:
		return corruptError(prep.NewUnresolvedError(media.DimensionsUnknown, p.Param, "'%s' shows media of kind %v and not %v", p.Param, found.Kind, o.Kind))
	case !found.Oriented && f.NeedsOrientation():
		return prep.NewUnresolvedError(media.OrientationUnknown, p.Param, "'%s' does not tell where its size is which way up it is: send it in another format", p.Param)
	}
	o.Size = found.Size
	return nil
}

// resolveByBytes identifies an object by its file.
func (m modelResolver) resolveByBytes(ctx context.Context, f *family.Family, p *prep.Media, o *media.Object) error {
	file, release, err := m.loadFile(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return m.withSlot(ctx, func() error {
		o.Key = media.BytesKey(file)
		return m.measureObject(ctx, f, p, file, o)
	})
}

// loadFile returns the file of an object and reserves memory for it.
func (m modelResolver) loadFile(ctx context.Context, p *prep.Media) (file []byte, release func(), err error) {
	if !isDataURI(p.URL) {
		return m.source.FetchFile(ctx, p.URL)
	}
	limit := m.cfg.Limits.Bytes
	if len(p.URL)/4*3 > limit+limit/8 { // a longer URI can only hold a file over the limit
		return nil, nil, fault.New(fault.TooLarge, "the data: URI has %d bytes, and a file may have %d: send a smaller one", len(p.URL), limit)
	}
	n, err := m.files.Reserve(ctx, int64(len(p.URL)))
	if err != nil {
		return nil, nil, err
	}
	release = func() { m.files.Release(n) }
	if frames, ok := videoFramesPayload(p); ok {
		return []byte(frames), release, nil
	}
	file, err = m.source.ParseData(p.URL)
	var bad *fault.Error
	if errors.As(err, &bad) { // not readable by any engine
		err = &fault.Error{Code: fault.Forbidden, Message: bad.Message, Err: bad.Err}
	}
	if err == nil && len(file) > limit {
		err = fault.New(fault.TooLarge, "the data: URI has a file of %d bytes, and a file may have %d: send a smaller one", len(file), limit)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return file, release, nil
}

// videoFramesPayload returns the payload of a data: URI whose video is base64 frames.
func videoFramesPayload(p *prep.Media) (payload string, ok bool) {
	const scheme = "data:video/jpeg;base64,"
	if p.Kind != media.Video || len(p.URL) < len(scheme) || !strings.EqualFold(p.URL[:len(scheme)], scheme) {
		return "", false
	}
	return p.URL[len(scheme):], true
}

// measureObject sets the size of the object in a file.
func (m modelResolver) measureObject(ctx context.Context, f *family.Family, p *prep.Media, file []byte, o *media.Object) error {
	if o.Kind != media.Video {
		found, err := m.source.ReadHeader(file)
		if err == nil {
			err = m.checkPixelLimit(found)
		}
		if err != nil {
			return err
		}
		return setObjectSize(f, p, found, o)
	}
	// Only reading the frames tells their number.
	content := media.BytesKey(file)
	if _, size, known := m.contents.lookupContent(content, o.Kind); known {
		o.Size = size
		return nil
	}
	t, release, err := m.decodeTensor(ctx, file, o)
	if err != nil {
		return err
	}
	defer release()
	m.contents.addContent(content, o.Kind, pixel.ContentKey(o.Kind, &t), o.Size)
	return nil
}

// checkPixelLimit refuses an image with more pixels than the limit, whichever process would decode it.
func (m modelResolver) checkPixelLimit(found FileInfo) error {
	if w, h, most := found.Size.Width, found.Size.Height, m.cfg.Limits.Pixels; int64(w)*int64(h) > int64(most) {
		return fault.New(fault.TooLarge, "it has %d by %d pixels, and at most %d are taken: send a smaller one", w, h, most)
	}
	return nil
}

// resolveByPixels identifies an object by its decoded pixels.
func (m modelResolver) resolveByPixels(ctx context.Context, p *prep.Media, o *media.Object, held *releaseList) error {
	file, release, err := m.loadFile(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return m.withSlot(ctx, func() error { return m.decodeAndShare(ctx, file, o, held) })
}

// decodeAndShare decodes a file and lends the tensor to the engine if the model's transfer mode asks for it.
func (m modelResolver) decodeAndShare(ctx context.Context, file []byte, o *media.Object, held *releaseList) error {
	content := media.BytesKey(file)
	if m.options.Transfer == TransferOff {
		if key, size, ok := m.contents.lookupContent(content, o.Kind); ok {
			o.Key, o.Size = key, size
			return nil
		}
	}
	t, free, err := m.decodeTensor(ctx, file, o)
	if err != nil {
		return err
	}
	o.Key = pixel.ContentKey(o.Kind, &t)
	m.contents.addContent(content, o.Kind, o.Key, o.Size)
	if m.options.Transfer == TransferOff {
		free()
		return nil
	}
	sends := m.options.Transfer == TransferNetwork
	if (!sends || len(t.Data) > SentWithRequest) && m.lendTensor(&t, free, o, held) {
		return nil
	}
	if sends {
		held.addRelease(free)
		o.Tensor = t
		return nil
	}
	free() // the engine fetches it from the client's URL
	return nil
}

// lendTensor lends the tensor of an object, and reports whether it could. free frees its memory in the end.
func (m modelResolver) lendTensor(t *media.Tensor, free func(), o *media.Object, held *releaseList) bool {
	if m.lender == nil {
		return false
	}
	place, back, err := m.lender.Lend(t.Data)
	if err != nil {
		return false
	}
	held.addRelease(back)
	held.addRelease(free)
	o.Tensor = media.Tensor{Shape: t.Shape, Place: place}
	return true
}

// SentWithRequest is the size, in bytes, up to which a tensor, or the features of an engine's processor, are sent with
// each attempt of a request: fetching them costs more.
const SentWithRequest = 64 << 10

// decodeTensor decodes a file into a tensor and sets the object's size. The memory of the tensor stays
// reserved until release is called.
func (m modelResolver) decodeTensor(ctx context.Context, file []byte, o *media.Object) (t media.Tensor, release func(), err error) {
	if found, err := m.source.ReadHeader(file); err == nil && found.Kind == media.Image {
		if err := m.checkPixelLimit(found); err != nil {
			return t, nil, err
		}
	}
	n, err := m.memory.Reserve(ctx, pixel.DecodeMemory(o.Kind, file, m.cfg.Limits))
	if err != nil {
		return t, nil, err
	}
	t, size, err := pixel.DecodeObject(o.Kind, file, m.cfg.Limits)
	if err != nil {
		m.memory.Release(n)
		return t, nil, err
	}
	o.Size = size
	if rest := n - int64(len(t.Data)); rest > 0 {
		m.memory.Release(rest)
		n -= rest
	}
	return t, func() { m.memory.Release(n) }, nil
}

// contentCacheKey is the key of the content cache.
func contentCacheKey(content media.Key, kind media.Kind) (d kv.Digest) {
	d = content.Digest
	binary.LittleEndian.PutUint64(d[:], binary.LittleEndian.Uint64(d[:])^uint64(kind))
	return d
}
