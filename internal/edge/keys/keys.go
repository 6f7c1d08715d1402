// Package keys implements API keys: which clients may use the server, for which models, within which limits. The
// keys come from a file which may change while the process runs.
//
// Keys are compared by their SHA-256 and are not stored. Logs and metrics identify a key by its name.
package keys

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/limit"
	"penstock/internal/reload"
)

// Key is the file's entry of a client.
type Key struct {
	Name string
	// Admin permits administrative requests: the router API, the configuration, metrics.
	Admin bool
	// Models are the permitted models; nil permits all.
	Models []string
	Limits limit.Limits

	digests []digest // of its secrets; two during a rotation
}

// digest is the SHA-256 of a secret.
type digest [sha256.Size]byte

// AllowsModel reports whether the client may use a model with any of the names.
func (k *Key) AllowsModel(names ...string) bool {
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

// Keyring holds the current keys. It is safe for concurrent use.
type Keyring struct {
	files *reload.Files
	start time.Time
	// salt hashes a digest to the key of its map entry, so that the time of a look-up reveals nothing about
	// the stored digests.
	salt [sha256.Size]byte
	mu   struct {
		sync.RWMutex
		clients map[string]*KeyClient // by name
		places  map[digest]ringEntry
	}
}

type ringEntry struct {
	digest digest
	client *KeyClient
}

// Open reads the key file at path. Run watches it for changes.
func Open(path string) (*Keyring, error) {
	r := &Keyring{start: time.Now()}
	_, _ = rand.Read(r.salt[:]) // rand.Read never fails
	var err error
	r.files, err = reload.Open("API keys", func(contents [][]byte) error { return r.applyFile(contents[0]) }, path)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Run applies changes of the file until ctx ends. An invalid file changes nothing and is logged.
func (r *Keyring) Run(ctx context.Context, log *slog.Logger) error { return r.files.Run(ctx, log) }

// applyFile replaces the keys by the keys of a file. A client which existed before keeps its account.
func (r *Keyring) applyFile(data []byte) error {
	all, err := ParseFile(data)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	clients := make(map[string]*KeyClient, len(all))
	places := make(map[digest]ringEntry, len(all))
	for i := range all {
		k := &all[i]
		c := r.mu.clients[k.Name]
		if c == nil {
			c = &KeyClient{ring: r}
			c.mu.account = limit.New(r.monotonicNow(), k.Limits)
		}
		c.setKey(k)
		clients[k.Name] = c
		for _, d := range k.digests {
			places[r.blindDigest(d)] = ringEntry{d, c}
		}
	}
	r.mu.clients, r.mu.places = clients, places
	return nil
}

// FindClient returns the client with the given key; nil if there is none.
func (r *Keyring) FindClient(secret string) *KeyClient {
	if len(secret) > maxSecret {
		return nil
	}
	d := digest(sha256.Sum256([]byte(secret)))
	at := r.blindDigest(d)
	r.mu.RLock()
	defer r.mu.RUnlock()
	p := r.mu.places[at]
	if p.client == nil || subtle.ConstantTimeCompare(p.digest[:], d[:]) != 1 {
		return nil
	}
	return p.client
}

func (r *Keyring) blindDigest(d digest) digest {
	var b [2 * sha256.Size]byte
	copy(b[:], r.salt[:])
	copy(b[sha256.Size:], d[:])
	return sha256.Sum256(b[:])
}

func (r *Keyring) monotonicNow() kv.Mono { return kv.Mono(time.Since(r.start)) }

// EachUsage calls f with the usage of every current key, in no particular order. It holds the read lock
// during the calls.
func (r *Keyring) EachUsage(f func(name string, u Usage)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for name, c := range r.mu.clients {
		f(name, c.currentUsage())
	}
}

// KeyClient is the owner of a key. It is safe for concurrent use, and stays usable after its key was removed.
type KeyClient struct {
	ring *Keyring
	key  atomic.Pointer[Key]
	mu   struct {
		sync.Mutex
		account *limit.Account
		usage   Usage
	}
}

// Usage is a client's usage since the process started.
type Usage struct {
	Requests       uint64                     // admitted
	Refused        [limit.Inflight + 1]uint64 // by limit
	Prompt, Output uint64                     // tokens
	Inflight       int
}

// Add adds another client's usage.
func (u *Usage) Add(o Usage) {
	u.Requests += o.Requests
	for i := range u.Refused {
		u.Refused[i] += o.Refused[i]
	}
	u.Prompt += o.Prompt
	u.Output += o.Output
	u.Inflight += o.Inflight
}

func (c *KeyClient) setKey(k *Key) {
	c.key.Store(k)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.SetLimits(c.ring.monotonicNow(), k.Limits)
}

// Key returns the file's entry of the client, which must not be changed.
func (c *KeyClient) Key() *Key { return c.key.Load() }

// AdmitRequest admits a request, or returns the limit which refuses it. FinishRequest must follow an admitted
// request.
func (c *KeyClient) AdmitRequest() limit.Admission {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.mu.account.Admit(c.ring.monotonicNow())
	if v.Exceeded == limit.None {
		c.mu.usage.Requests++
	} else {
		c.mu.usage.Refused[v.Exceeded]++
	}
	return v
}

// FinishRequest ends an admitted request.
func (c *KeyClient) FinishRequest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.Release()
}

// SpendTokens counts tokens of a request.
func (c *KeyClient) SpendTokens(prompt, output int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.account.SpendTokens(c.ring.monotonicNow(), prompt+output)
	c.mu.usage.Prompt += uint64(prompt)
	c.mu.usage.Output += uint64(output)
}

func (c *KeyClient) currentUsage() Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.mu.usage
	u.Inflight = c.mu.account.Inflight()
	return u
}

// IdentifyClient returns the client whose key the request has, in the header of OpenAI's or of Anthropic's
// clients. One valid key is enough. The error is Unauthorized.
func (r *Keyring) IdentifyClient(h http.Header) (*KeyClient, error) {
	scheme, bearer, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		bearer = ""
	}
	other := h.Get("X-Api-Key")
	for _, secret := range [...]string{strings.TrimSpace(bearer), other} {
		if secret == "" {
			continue
		}
		if c := r.FindClient(secret); c != nil {
			return c, nil
		}
	}
	if bearer == "" && other == "" {
		return nil, fault.New(fault.Unauthorized, "this server asks for an API key: send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'")
	}
	return nil, fault.New(fault.Unauthorized, "the API key is not one of this server's: check it, or ask the operator for one")
}

// IdentifyAdmin is IdentifyClient for administrative requests. A valid key without admin rights is Forbidden;
// its client is returned with the error.
func (r *Keyring) IdentifyAdmin(h http.Header) (*KeyClient, error) {
	c, err := r.IdentifyClient(h)
	if err == nil && !c.Key().Admin {
		err = fault.New(fault.Forbidden, "the key %s may not do this: it takes one with admin: true in the key file", c.Key().Name)
	}
	return c, err
}

// SetChallenge sets the header of a response to a request without a valid key.
func SetChallenge(h http.Header) { h.Set("WWW-Authenticate", `Bearer realm="penstock"`) }
