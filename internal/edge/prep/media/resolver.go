// Package media finds out who the media of a conversation are and how large, by one
// of the identities of core/media: by URL nothing but the beginning of a file is fetched,
// by bytes the file, and by pixels it is decoded besides.
//
// What it does is bounded: fetches at once, the bytes of what is being decoded, and the time
// of a request. All of a conversation's media are resolved or none is.
package media

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/bounded"
	"penstock/internal/edge/prep"
	"penstock/internal/media/pixel"
)

// Found is what the beginning of a file says.
type Found struct {
	Kind media.Kind
	Size media.Size
	// Oriented says that it is known which way up a picture is.
	Oriented bool
}

// Source is where media come from. Errors are *fault.Error or those of the context.
// Implementations are safe for concurrent use.
type Source interface {
	// Size returns what the beginning of the file behind an http or https URL says.
	Size(ctx context.Context, url string) (Found, error)
	// File returns the whole file, which is not changed. release says that it is not used any more.
	File(ctx context.Context, url string) (file []byte, release func(), err error)
	// Data returns what a data: URI has.
	Data(uri string) ([]byte, error)
	// Header returns what the beginning of a file says.
	Header(file []byte) (Found, error)
}

// Lender puts what was decoded where engines of the same host find it.
type Lender interface {
	// Lend returns the name of a segment with a copy of data; release takes it back.
	Lend(data []byte) (segment string, release func(), err error)
}

// Transfer says how what was decoded reaches an engine.
type Transfer string

// The ways. With TransferOff an engine has what it needs from where the client said that it is.
const (
	TransferOff     Transfer = "off"
	TransferShared  Transfer = "shm"
	TransferNetwork Transfer = "network"
)

// Config bounds what a Resolver does. Zero fields take the defaults of EnsureDefaults.
type Config struct {
	// Identity is what objects are known by where the model does not say. Default media.ByURL.
	Identity media.Identity
	// URLTTL is how long what a URL showed counts as what it shows. 0 is for ever.
	URLTTL time.Duration
	// MaxObjects bounds the media of a request. Default 32.
	MaxObjects int
	// Timeout bounds the time of a request in which its media are resolved. Default 10 s.
	Timeout time.Duration
	// Parallel bounds the objects of one request that are at work at once and, eight times that, those
	// of all requests whose files are there and are being read. Default 8.
	Parallel int
	// Memory bounds the bytes of what is decoded and being decoded at once, and those of the files in
	// data: URIs meanwhile: half of it is for either. Default 1 GiB.
	Memory int64
	// Limits bound one object.
	Limits pixel.Limits
	// Now is the time; nil is time.Now.
	Now func() time.Time
}

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	if c.Identity == "" {
		c.Identity = media.ByURL
	}
	if c.MaxObjects == 0 {
		c.MaxObjects = 32
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Parallel == 0 {
		c.Parallel = 8
	}
	if c.Memory == 0 {
		c.Memory = 1 << 30
	}
	c.Limits.EnsureDefaults()
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Resolver resolves media for models, each in its way ([Resolver.For]). It is safe for
// concurrent use.
type Resolver struct {
	cfg    Config
	source Source
	lender Lender // nil if nothing can be lent
	slots  chan struct{}
	// files is the memory of data: URIs that are being read, memory that of what is decoded. Who has of the
	// one waits for the other, and never the other way round.
	files, memory *bounded.Memory
	seen          *seen
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
		slots: make(chan struct{}, 8*cfg.Parallel), files: bounded.NewMemory(cfg.Memory / 2), memory: bounded.NewMemory(cfg.Memory / 2), seen: newSeen(maxSeen),
	}, nil
}

// Way is how the media of one model are resolved.
type Way struct {
	// Identity is what they are known by; "" leaves it to the Resolver's configuration.
	Identity media.Identity
	// Transfer is how what was decoded reaches the model's engines; anything but TransferOff needs
	// the identity by pixels.
	Transfer Transfer
	// Whole has a file fetched whose host sends no parts of it, for models whose requests cannot be
	// served without sizes. Where they can, that would be much for little.
	Whole bool
}

// For returns what resolves the media of a model.
func (r *Resolver) For(way Way) prep.Resolver {
	if way.Identity == "" {
		way.Identity = r.cfg.Identity
	}
	if way.Identity != media.ByPixels || way.Transfer == "" {
		way.Transfer = TransferOff
	}
	if way.Transfer == TransferShared && r.lender == nil {
		way.Transfer = TransferOff // it has them from their URLs
	}
	return model{r, way}
}

// model is a Resolver's way with one model.
type model struct {
	*Resolver
	way Way
}

var _ prep.Resolver = model{}

// Resolve implements prep.Resolver.
func (m model) Resolve(ctx context.Context, c *prep.Chat, f *family.Family) ([]media.Object, func(), error) {
	if err := m.count(c); err != nil {
		return nil, nil, err
	}
	inner, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	objects := make([]media.Object, len(c.Media))
	held := &leases{}
	err := bounded.Each(inner, len(objects), m.cfg.Parallel, func(ctx context.Context, i int) (err error) {
		objects[i], err = m.object(ctx, c, f, &c.Media[i], held)
		return err
	})
	if err == nil {
		return objects, held.release, nil
	}
	held.release()
	var u *prep.Unresolved
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, nil, ctx.Err()
	case errors.As(err, &u): // with a reason of its own, though that may be a host that was too slow
		return nil, nil, err
	case errors.Is(err, context.DeadlineExceeded): // this one, or that of who asks
		part := c.Media[slices.IndexFunc(objects, func(o media.Object) bool { return o.Kind == 0 })].Param // the first that is not resolved
		return nil, nil, prep.Undecided(media.DimensionsUnknown, part, "'%s' could not be looked at within the time that there is for all media of a request, at most %v: send a smaller file, or a data: URI", part, m.cfg.Timeout)
	}
	return nil, nil, err
}

// Check refuses a conversation that shows what may not be fetched, as far as its URLs tell: for those
// whose media nobody here looks at, and an engine fetches. The error is a *prep.Refused.
func (r *Resolver) Check(c *prep.Chat) error {
	source, ok := r.source.(checker)
	if !ok {
		return nil
	}
	for i := range c.Media {
		p := &c.Media[i]
		if isData(p.URL) {
			continue
		}
		var refused *fault.Error
		if err := source.Check(p.URL); err != nil && errors.As(about(p, err), &refused) {
			return &prep.Refused{Err: refused}
		}
	}
	return nil
}

// count refuses more media than are allowed.
func (m model) count(c *prep.Chat) error {
	if n := len(c.Media); n > m.cfg.MaxObjects {
		part := c.Media[m.cfg.MaxObjects].Part
		return fault.Param(part, "'%s' is one media object too many: a request may have %d, and this one has %d", part, m.cfg.MaxObjects, n)
	}
	return nil
}

// slot calls do while it holds one of the slots of all requests. Nothing is fetched in one: servers that are
// slow, or that somebody made slow, hold up who waits for them and nobody else.
func (m model) slot(ctx context.Context, do func() error) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leases are what the objects of one request hold.
type leases struct {
	mu struct {
		sync.Mutex
		all []func()
	}
}

func (l *leases) add(release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.all = append(l.mu.all, release)
}

// release gives all of it back. It may be called again.
func (l *leases) release() {
	l.mu.Lock()
	all := l.mu.all
	l.mu.all = nil
	l.mu.Unlock()
	for _, release := range all {
		release()
	}
}
