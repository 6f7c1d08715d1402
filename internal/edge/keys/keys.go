// Package keys says who may ask, for which models and for how much: API keys, from
// a file that may change while the process runs.
//
// A key is compared by its SHA-256 and is not kept. What is said of a key anywhere
// goes by its name.
package keys

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/limit"
	"penstock/internal/reload"
)

// Key is what the file says of a client.
type Key struct {
	Name string
	// Admin lets the client see and change what is not for users: the router API,
	// the configuration, metrics.
	Admin bool
	// Models are those that the client may ask for; nil is all.
	Models []string
	Limits limit.Limits

	digests []digest // of its secrets, of which a rotation has two
}

// digest is the SHA-256 of a secret.
type digest [sha256.Size]byte

// Allows reports whether the client may ask for a model that goes by any of the names.
func (k *Key) Allows(names ...string) bool {
	if k.Models == nil {
		return true
	}
	for _, m := range k.Models {
		for _, n := range names {
			if m == n {
				return true
			}
		}
	}
	return false
}

// Ring is the keys in force. It is safe for concurrent use.
type Ring struct {
	files *reload.Files
	start time.Time
	// salt makes of a digest the place where it is looked up, so that the time of a
	// look-up says nothing about the digests that are there.
	salt [sha256.Size]byte
	mu   struct {
		sync.RWMutex
		clients map[string]*Client // by name
		places  map[digest]place
	}
}

type place struct {
	digest digest
	client *Client
}

// Open reads the key file at path. Run follows it.
func Open(path string) (*Ring, error) {
	r := &Ring{start: time.Now()}
	_, _ = rand.Read(r.salt[:]) // never fails
	var err error
	r.files, err = reload.Open("API keys", func(contents [][]byte) error { return r.use(contents[0]) }, path)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Run takes over changes of the file until ctx ends. A file that cannot be used
// leaves the keys as they are, and the log says so.
func (r *Ring) Run(ctx context.Context, log *slog.Logger) error { return r.files.Run(ctx, log) }

// use puts the keys of a file in force. Who was there before goes on with the account
// that it had.
func (r *Ring) use(data []byte) error {
	all, err := Parse(data)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clients := make(map[string]*Client, len(all))
	places := make(map[digest]place, len(all))
	for i := range all {
		k := &all[i]
		c := r.mu.clients[k.Name]
		if c == nil {
			c = &Client{ring: r}
			c.mu.account = limit.New(r.now(), k.Limits)
		}
		c.set(k)
		clients[k.Name] = c
		for _, d := range k.digests {
			places[r.blind(d)] = place{d, c}
		}
	}
	r.mu.clients, r.mu.places = clients, places
	return nil
}

// Find returns the client whose key it is; nil if there is none.
func (r *Ring) Find(secret string) *Client {
	if len(secret) > maxSecret {
		return nil
	}
	d := digest(sha256.Sum256([]byte(secret)))
	at := r.blind(d)
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.mu.places[at]
	if p.client == nil || subtle.ConstantTimeCompare(p.digest[:], d[:]) != 1 {
		return nil
	}
	return p.client
}

func (r *Ring) blind(d digest) digest {
	var b [2 * sha256.Size]byte
	copy(b[:], r.salt[:])
	copy(b[sha256.Size:], d[:])
	return sha256.Sum256(b[:])
}

func (r *Ring) now() kv.Mono { return kv.Mono(time.Since(r.start)) }

// Each calls f with the usage of every key in force, in no order.
func (r *Ring) Each(f func(name string, u Usage)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for name, c := range r.mu.clients {
		f(name, c.usage())
	}
}

// Client is who has a key. It is safe for concurrent use, and goes on to work when
// the key is gone.
type Client struct {
	ring *Ring
	key  atomic.Pointer[Key]
	mu   struct {
		sync.Mutex
		account *limit.Account
		usage   Usage
	}
}

// Usage is what a client has had since the process started.
type Usage struct {
	Requests       uint64                     // that were let in
	Refused        [limit.Inflight + 1]uint64 // by the limit that refused them
	Prompt, Output uint64                     // tokens
	Inflight       int
}

// Add adds what another client has had.
func (u *Usage) Add(o Usage) {
	u.Requests += o.Requests
	for i := range u.Refused {
		u.Refused[i] += o.Refused[i]
	}
	u.Prompt += o.Prompt
	u.Output += o.Output
	u.Inflight += o.Inflight
}

func (c *Client) set(k *Key) {
	c.key.Store(k)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.Set(c.ring.now(), k.Limits)
}

// Key returns what the file says of the client. It must not be changed.
func (c *Client) Key() *Key { return c.key.Load() }

// Enter lets a request in, until Leave, or says why not.
func (c *Client) Enter() limit.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.mu.account.Enter(c.ring.now())
	if v.Over == limit.None {
		c.mu.usage.Requests++
	} else {
		c.mu.usage.Refused[v.Over]++
	}
	return v
}

// Leave ends a request that was let in.
func (c *Client) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.Leave()
}

// Spend counts tokens of a request.
func (c *Client) Spend(prompt, output int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.Spend(c.ring.now(), prompt+output)
	c.mu.usage.Prompt += uint64(prompt)
	c.mu.usage.Output += uint64(output)
}

func (c *Client) usage() Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.usage
	u.Inflight = c.mu.account.Inflight()
	return u
}
