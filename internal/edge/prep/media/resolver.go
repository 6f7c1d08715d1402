// Package media identifies and measures the media of a conversation, by one of the identities of core/media:
// by URL only the beginning of a file is fetched, by bytes the whole file, and by pixels the file is also
// decoded.
//
// Concurrent fetches, the bytes being decoded and the time of a request are bounded. All media of a
// conversation are resolved or none.
package media

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/bounded"
	"penstock/internal/edge/prep"
	"penstock/internal/media/pixel"
)

// FileInfo is what the header of a file says.
type FileInfo struct {
	Kind media.Kind
	Size media.Size
	// Oriented reports that the orientation of an image is known.
	Oriented bool
}

// Source provides media files. Errors are *fault.Error or come from the context. Implementations are safe for
// concurrent use.
type Source interface {
	// FetchSize returns the header of the file at an http or https URL.
	FetchSize(ctx context.Context, url string) (FileInfo, error)
	// FetchFile returns the whole file, which must not be modified. release frees it.
	FetchFile(ctx context.Context, url string) (file []byte, release func(), err error)
	// ParseData returns the contents of a data: URI.
	ParseData(uri string) ([]byte, error)
	// ReadHeader returns what the header of a file says.
	ReadHeader(file []byte) (FileInfo, error)
}

// Lender gives other processes decoded media which they fetch.
type Lender interface {
	// Lend returns the place of data, which must not change until release is called.
	Lend(data []byte) (place string, release func(), err error)
}

// Transfer says how decoded media reach an engine.
type Transfer string

// The transfer modes. With TransferOff an engine fetches media from the client's URL. Otherwise it fetches the
// decoded media from this process: in shared memory alone, or in any way. Without a Lender TransferNetwork sends
// them with the request.
const (
	TransferOff     Transfer = "off"
	TransferShared  Transfer = "shm"
	TransferNetwork Transfer = "network"
)

// Config bounds the work of a Resolver. Zero fields take the defaults of EnsureDefaults.
type Config struct {
	// Identity identifies objects where the model does not say how. Default media.ByURL.
	Identity media.Identity
	// URLTTL is how long the content of a URL counts as unchanged. 0 is for ever.
	URLTTL time.Duration
	// MaxObjects bounds the media of a request. Default 32.
	MaxObjects int
	// Timeout bounds the time for resolving the media of a request. Default 10 s.
	Timeout time.Duration
	// Parallel bounds the objects of one request which are resolved at once. Eight times that bounds the
	// loaded files of all requests which are being read. Default 8.
	Parallel int
	// Memory bounds the bytes of decoded media and of the files in data: URIs: half of it for each. Default 1
	// GiB.
	Memory int64
	// Limits bound one object.
	Limits pixel.Limits
	// Now returns the time; nil is time.Now.
	Now func() time.Time
}

// EnsureDefaults sets unset fields.
func (c *Config) EnsureDefaults() {
	c.Identity = cmp.Or(c.Identity, media.ByURL)
	c.MaxObjects = cmp.Or(c.MaxObjects, 32)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Parallel = cmp.Or(c.Parallel, 8)
	c.Memory = cmp.Or(c.Memory, 1<<30)
	c.Limits.EnsureDefaults()
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Resolver resolves media for models, each with its options ([Resolver.ResolverFor]). It is safe for concurrent
// use.
type Resolver struct {
	cfg    Config
	source Source
	lender Lender // nil if nothing can be lent
	slots  chan struct{}
	// files is the memory of data: URIs being read, memory that of decoded media. A holder of files may wait
	// for memory, never the other way round.
	files, memory *bounded.MemoryBudget
	contents      *contentCache
}

// New returns a Resolver. lender may be nil.
func New(cfg Config, source Source, lender Lender) (*Resolver, error) {
	cfg.EnsureDefaults()
	switch {
	case cfg.Identity != media.ByURL && cfg.Identity != media.ByBytes && cfg.Identity != media.ByPixels:
		return nil, fmt.Errorf("media config: Identity must be %s, %s or %s, not %.100q", media.ByURL, media.ByBytes, media.ByPixels, cfg.Identity)
	case cfg.URLTTL < 0 || cfg.MaxObjects < 0 || cfg.Timeout < 0 || cfg.Parallel < 0 || cfg.Memory < 0:
		return nil, errors.New("media config: bounds must not be negative")
	case source == nil:
		return nil, errors.New("media: a source is missing")
	}
	return &Resolver{
		cfg: cfg, source: source, lender: lender,
		slots: make(chan struct{}, 8*cfg.Parallel), files: bounded.NewMemoryBudget(cfg.Memory / 2), memory: bounded.NewMemoryBudget(cfg.Memory / 2), contents: newContentCache(maxCachedContents),
	}, nil
}

// ModelOptions say how the media of one model are resolved.
type ModelOptions struct {
	// Identity identifies the model's media; "" takes the Resolver's configuration.
	Identity media.Identity
	// Transfer says how decoded media reach the model's engines; anything but TransferOff needs the identity
	// by pixels.
	Transfer Transfer
	// FetchWhole fetches the whole file where its host sends no ranges, for models whose requests cannot be
	// served without sizes. For other models that would cost too much.
	FetchWhole bool
}

// ResolverFor returns the resolver of a model's media.
func (r *Resolver) ResolverFor(way ModelOptions) prep.Resolver {
	way.Identity = cmp.Or(way.Identity, r.cfg.Identity)
	if way.Identity != media.ByPixels || way.Transfer == "" {
		way.Transfer = TransferOff
	}
	if way.Transfer == TransferShared && r.lender == nil {
		way.Transfer = TransferOff // the engine fetches from the URLs
	}
	return modelResolver{r, way}
}

// modelResolver is a Resolver with the options of one model.
type modelResolver struct {
	*Resolver
	options ModelOptions
}

var _ prep.Resolver = modelResolver{}

// Resolve implements prep.Resolver.
func (m modelResolver) Resolve(ctx context.Context, c *prep.Chat, f *family.Family) ([]media.Object, func(), error) {
	if err := m.checkObjectCount(c); err != nil {
		return nil, nil, err
	}
	inner, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	objects := make([]media.Object, len(c.Media))
	held := &releaseList{}
	err := bounded.ForEach(inner, len(objects), m.cfg.Parallel, func(ctx context.Context, i int) (err error) {
		objects[i], err = m.resolveObject(ctx, c, f, &c.Media[i], held)
		return err
	})
	if err == nil {
		return objects, held.releaseAll, nil
	}
	held.releaseAll()
	var u *prep.UnresolvedError
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, nil, ctx.Err()
	case errors.As(err, &u): // with a reason of its own, possibly a slow host
		return nil, nil, err
	case errors.Is(err, context.DeadlineExceeded): // this deadline or the caller's
		part := c.Media[slices.IndexFunc(objects, func(o media.Object) bool { return o.Kind == 0 })].Param // the first unresolved one
		late := prep.NewUnresolvedError(media.DimensionsUnknown, part, "'%s' could not be looked at within the time that there is for all media of a request, at most %v: send a smaller file, or a data: URI", part, m.cfg.Timeout)
		late.Kind = encode.DeadlinePassed
		return nil, nil, late
	}
	return nil, nil, err
}

// CheckURLs refuses a conversation whose URLs may not be fetched, for media which this process does not resolve
// and an engine fetches. The error is a *prep.RefusedError.
func (r *Resolver) CheckURLs(c *prep.Chat) error {
	source, ok := r.source.(urlChecker)
	if !ok {
		return nil
	}
	for i := range c.Media {
		p := &c.Media[i]
		if isDataURI(p.URL) {
			continue
		}
		var refused *fault.Error
		if err := source.Check(p.URL); err != nil && errors.As(nameObjectError(p, err), &refused) {
			return &prep.RefusedError{Err: refused}
		}
	}
	return nil
}

// checkObjectCount refuses more media than allowed.
func (m modelResolver) checkObjectCount(c *prep.Chat) error {
	if n := len(c.Media); n > m.cfg.MaxObjects {
		part := c.Media[m.cfg.MaxObjects].Part
		return fault.InvalidParam(part, "'%s' is one media object too many: a request may have %d, and this one has %d", part, m.cfg.MaxObjects, n)
	}
	return nil
}

// withSlot calls do while it holds one of the slots shared by all requests. Fetches run outside a slot, so
// that a slow server delays its own requests only.
func (m modelResolver) withSlot(ctx context.Context, do func() error) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// releaseList has the release functions of one request's objects.
type releaseList struct {
	mu struct {
		sync.Mutex
		all []func()
	}
}

func (l *releaseList) addRelease(release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.all = append(l.mu.all, release)
}

// releaseAll calls the release functions. It may be called again.
func (l *releaseList) releaseAll() {
	l.mu.Lock()
	all := l.mu.all
	l.mu.all = nil
	l.mu.Unlock()
	for _, release := range all {
		release()
	}
}

// maxCachedContents bounds the cache; an entry has a hundred bytes.
const maxCachedContents = 1 << 16

// contentCache is an LRU cache of what files show, by their contents: decoding is the expensive part.
type contentCache struct {
	mu struct {
		sync.Mutex
		shown *bounded.Cache[kv.Digest, shownContent]
	}
}

// shownContent is what a file shows.
type shownContent struct {
	key  media.Key
	size media.Size
}

func newContentCache(limit int) *contentCache {
	s := &contentCache{}
	s.mu.shown = bounded.NewCache[kv.Digest](limit, bounded.CountEntries[shownContent])
	return s
}

func (s *contentCache) lookupContent(content media.Key, kind media.Kind) (media.Key, media.Size, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.mu.shown.Get(contentCacheKey(content, kind))
	return v.key, v.size, ok
}

func (s *contentCache) addContent(content media.Key, kind media.Kind, key media.Key, size media.Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := contentCacheKey(content, kind)
	if _, known := s.mu.shown.Get(d); !known {
		s.mu.shown.Put(d, shownContent{key, size})
	}
}
