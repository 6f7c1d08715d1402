package media

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
	"penstock/internal/media/fetch"
	"penstock/internal/media/pixel"
)

// resolveObject resolves one object. It adds to held what outlives the call.
func (m model) object(ctx context.Context, c *prep.Chat, f *family.Family, p *prep.Media, held *leases) (media.Object, error) {
	o := media.Object{Kind: p.Kind, Part: p.Part, Source: p.URL, Name: p.Name}
	var err error
	switch {
	case m.way.Identity == media.ByPixels:
		o.Identity = media.ByPixels
		err = m.byPixels(ctx, p, &o, held)
	case m.way.Identity == media.ByBytes || isData(p.URL):
		o.Identity = media.ByBytes
		err = m.byBytes(ctx, f, p, &o)
	default:
		o.Identity = media.ByURL
		err = m.byURL(ctx, f, p, &o)
	}
	if err != nil {
		return media.Object{}, about(p, err)
	}
	if p.Name != "" && c.Namespace != "" { // otherwise a client could change what others see under a name
		o.Key, o.Identity = media.NameKey(c.Namespace, p.Name), ""
	}
	return o, nil
}

// nameObjectError converts an error of an object into one which names its part.
func about(p *prep.Media, err error) error {
	var u *prep.Unresolved
	var refused *fault.Error
	switch {
	case errors.As(err, &u):
		return err
	case errors.Is(err, pixel.ErrTooLarge):
		return fault.Param(p.Param, "'%s' is larger than is taken: %v", p.Param, err)
	case errors.Is(err, pixel.ErrMalformed), errors.Is(err, pixel.ErrUnsupported):
		return prep.Undecided(media.DimensionsUnknown, p.Param, "'%s' cannot be read: %v", p.Param, err)
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
	if !refused.Code.Class().Retryable { // a server without room for the file may have room later
		named.Code = fault.Invalid
	}
	return &prep.Unresolved{Reason: media.DimensionsUnknown, Err: &named}
}

func isData(url string) bool { return len(url) >= 5 && strings.EqualFold(url[:5], "data:") }

// resolveByURL identifies an object by its URL and reads no more of it than its size.
func (m model) byURL(ctx context.Context, f *family.Family, p *prep.Media, o *media.Object) error {
	o.Key = media.URLKey(p.URL, period(p.URL, m.cfg.Now(), m.cfg.URLTTL))
	size := m.source.Size
	if g, ok := m.source.(glancer); ok && !f.Turned() {
		size = g.SizeEitherWay
	}
	found, err := size(ctx, p.URL)
	if m.way.Whole && fetch.Unranged(err) {
		found, err = m.whole(ctx, p.URL)
	}
	if err != nil {
		return err
	}
	if o.Kind == media.Video && found.Kind == media.Image { // a video of images, whose frames must be counted
		file, release, err := m.source.File(ctx, p.URL)
		if err != nil {
			return err
		}
		defer release()
		return m.slot(ctx, func() error { return m.measure(ctx, f, p, file, o) })
	}
	return take(f, p, found, o)
}

// readWholeFile returns the header of a file which is not available in ranges.
func (m model) whole(ctx context.Context, url string) (Found, error) {
	file, release, err := m.source.File(ctx, url)
	if err != nil {
		return Found{}, err
	}
	defer release()
	return m.source.Header(file)
}

// ttlPeriod returns the number of the TTL period during which a URL's content counts as unchanged. All
// replicas agree on it. The periods of different URLs end at different times.
func period(url string, now time.Time, ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	offset := kv.ContentHash(0, []byte(url)) % uint64(ttl)
	return 1 + (uint64(now.UnixNano())+offset)/uint64(ttl)
}

// setObjectSize sets the size from the header.
func take(f *family.Family, p *prep.Media, found Found, o *media.Object) error {
	switch {
	case found.Kind != o.Kind:
		return prep.Undecided(media.DimensionsUnknown, p.Param, "'%s' shows media of kind %v and not %v", p.Param, found.Kind, o.Kind)
	case !found.Oriented && f.Turned():
		return prep.Undecided(media.OrientationUnknown, p.Param, "'%s' does not tell where its size is which way up it is: send it in another format", p.Param)
	}
	o.Size = found.Size
	return nil
}

// resolveByBytes identifies an object by its file.
func (m model) byBytes(ctx context.Context, f *family.Family, p *prep.Media, o *media.Object) error {
	file, release, err := m.file(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return m.slot(ctx, func() error {
		o.Key = media.BytesKey(file)
		return m.measure(ctx, f, p, file, o)
	})
}

// loadFile returns the file of an object and reserves memory for it.
func (m model) file(ctx context.Context, p *prep.Media) (file []byte, release func(), err error) {
	if !isData(p.URL) {
		return m.source.File(ctx, p.URL)
	}
	limit := m.cfg.Limits.Bytes
	if len(p.URL)/4*3 > limit+limit/8 { // a longer URI can only hold a file over the limit
		return nil, nil, fault.New(fault.TooLarge, "the data: URI has %d bytes, and a file may have %d: send a smaller one", len(p.URL), limit)
	}
	n, err := m.files.Wait(ctx, int64(len(p.URL)))
	if err != nil {
		return nil, nil, err
	}
	release = func() { m.files.Give(n) }
	if frames, ok := framesOf(p); ok {
		return []byte(frames), release, nil
	}
	file, err = m.source.Data(p.URL)
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
func framesOf(p *prep.Media) (payload string, ok bool) {
	const scheme = "data:video/jpeg;base64,"
	if p.Kind != media.Video || len(p.URL) < len(scheme) || !strings.EqualFold(p.URL[:len(scheme)], scheme) {
		return "", false
	}
	return p.URL[len(scheme):], true
}

// measureObject sets the size of the object in a file.
func (m model) measure(ctx context.Context, f *family.Family, p *prep.Media, file []byte, o *media.Object) error {
	if o.Kind != media.Video {
		found, err := m.source.Header(file)
		if err == nil {
			err = m.within(found)
		}
		if err != nil {
			return err
		}
		return take(f, p, found, o)
	}
	// Only reading the frames tells their number.
	content := media.BytesKey(file)
	if _, size, known := m.seen.get(content, o.Kind); known {
		o.Size = size
		return nil
	}
	t, release, err := m.decode(ctx, file, o)
	if err != nil {
		return err
	}
	defer release()
	m.seen.put(content, o.Kind, pixel.Key(o.Kind, &t), o.Size)
	return nil
}

// checkPixelLimit refuses an image with more pixels than the limit, whichever process would decode it.
func (m model) within(found Found) error {
	if w, h, most := found.Size.Width, found.Size.Height, m.cfg.Limits.Pixels; int64(w)*int64(h) > int64(most) {
		return fault.New(fault.TooLarge, "it has %d by %d pixels, and at most %d are taken: send a smaller one", w, h, most)
	}
	return nil
}

// resolveByPixels identifies an object by its decoded pixels.
func (m model) byPixels(ctx context.Context, p *prep.Media, o *media.Object, held *leases) error {
	file, release, err := m.file(ctx, p)
	if err != nil {
		return err
	}
	defer release()
	return m.slot(ctx, func() error { return m.look(ctx, file, o, held) })
}

// decodeAndShare decodes a file and lends the tensor to the engine if the model's transfer mode asks for it.
func (m model) look(ctx context.Context, file []byte, o *media.Object, held *leases) error {
	content := media.BytesKey(file)
	if m.way.Transfer == TransferOff {
		if key, size, ok := m.seen.get(content, o.Kind); ok {
			o.Key, o.Size = key, size
			return nil
		}
	}
	t, free, err := m.decode(ctx, file, o)
	if err != nil {
		return err
	}
	o.Key = pixel.Key(o.Kind, &t)
	m.seen.put(content, o.Kind, o.Key, o.Size)
	switch m.way.Transfer {
	case TransferNetwork:
		held.add(free)
		o.Tensor = t
		return nil
	case TransferShared:
		segment, back, err := m.lender.Lend(t.Data)
		free()
		if err != nil {
			return nil // the engine fetches it from the client's URL
		}
		held.add(back)
		o.Tensor = media.Tensor{Shape: t.Shape, Segment: segment}
		return nil
	}
	free()
	return nil
}

// decodeTensor decodes a file into a tensor and sets the object's size. The memory of the tensor stays
// reserved until release is called.
func (m model) decode(ctx context.Context, file []byte, o *media.Object) (t media.Tensor, release func(), err error) {
	if found, err := m.source.Header(file); err == nil && found.Kind == media.Image {
		if err := m.within(found); err != nil {
			return t, nil, err
		}
	}
	n, err := m.memory.Wait(ctx, pixel.Memory(o.Kind, file, m.cfg.Limits))
	if err != nil {
		return t, nil, err
	}
	t, size, err := pixel.Object(o.Kind, file, m.cfg.Limits)
	if err != nil {
		m.memory.Give(n)
		return t, nil, err
	}
	o.Size = size
	if rest := n - int64(len(t.Data)); rest > 0 {
		m.memory.Give(rest)
		n -= rest
	}
	return t, func() { m.memory.Give(n) }, nil
}

// contentCacheKey is the key of the content cache.
func digestOf(content media.Key, kind media.Kind) (d kv.Digest) {
	d = content.Digest
	binary.LittleEndian.PutUint64(d[:], binary.LittleEndian.Uint64(d[:])^uint64(kind))
	return d
}
