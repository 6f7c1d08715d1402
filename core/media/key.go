package media

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"penstock/core/kv"
)

// Identity says what a media object's key is made of.
type Identity string

// The identities. By pixels, one image behind two URLs is one object. By URL, nothing needs to be fetched.
const (
	ByURL    Identity = "url"    // the URL as sent; for data: URIs the decoded bytes
	ByBytes  Identity = "bytes"  // the encoded file
	ByPixels Identity = "pixels" // the decoded RGB
)

// Key identifies a media object. Hash is sent to other processes and enters block hashes. Digest is the
// full-width digest of the same: it is compared too where it decides what a request gets.
// docs/format/media.md describes both in bytes.
type Key struct {
	Hash   uint64
	Digest kv.Digest
}

// IsZero reports whether the object is not identified.
func (k Key) IsZero() bool { return k == Key{} }

// Hex returns Hash as 16 hexadecimal digits, the form in which frontends send it to workers.
func (k Key) Hex() string { return fmt.Sprintf("%016x", k.Hash) }

// UUID returns the object's name for engines: Hex, padded with zeros on the right to the 64 digits of a
// full digest. Routers read the first 16 digits back (kv.MediaHash).
func (k Key) UUID() string {
	const zeros = "000000000000000000000000000000000000000000000000"
	return k.Hex() + zeros
}

// UUIDIn returns the object's name for engines in the namespace of a cache salt: what an engine keeps by it serves no
// other namespace. Without a namespace it is UUID. Otherwise the digits after the first 16 are a digest of the namespace
// and of the object's own digest.
func (k Key) UUIDIn(namespace string) string {
	if namespace == "" {
		return k.UUID()
	}
	d := computeDigest(domainSalted, k.Digest[:], []byte(namespace))
	return k.Hex() + hex.EncodeToString(d[:24])
}

// The domains of digests are hashed before the content, so that the key of a URL never equals that of a
// file whose bytes are that URL.
const (
	domainURL    = "penstock media url\x00"
	domainBytes  = "penstock media bytes\x00"
	domainPixels = "penstock media pixels\x00"
	domainName   = "penstock media name\x00"
	domainSalted = "penstock media salted\x00"
)

// URLKey returns the key of a URL for a period of time: the content of a URL can change, so period, a
// number which grows with time, is part of the key. With period 0 Hash is XXH3-64 with seed 0 over the URL,
// as in other frontends. Otherwise period is the seed.
func URLKey(url string, period uint64) Key {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], period)
	return Key{Hash: kv.ContentHash(period, []byte(url)), Digest: computeDigest(domainURL, seed[:], []byte(url))}
}

// URLPeriod returns the period of a URL's key at a time, if the URL counts as showing the same for ttl, and
// when the period ends. Times are in nanoseconds since 1970. All processes agree on it, and the periods of
// different URLs end at different times. Without a ttl the period is 0 and does not end: end is 0.
func URLPeriod(url string, now int64, ttl time.Duration) (period uint64, end int64) {
	if ttl <= 0 {
		return 0, 0
	}
	offset := kv.ContentHash(0, []byte(url)) % uint64(ttl)
	period = 1 + (uint64(now)+offset)/uint64(ttl)
	return period, int64(period*uint64(ttl) - offset)
}

// BytesKey returns the key of a file by its bytes: Hash is XXH3-64 with seed 0 over them.
func BytesKey(file []byte) Key {
	return Key{Hash: kv.ContentHash(0, file), Digest: computeDigest(domainBytes, file)}
}

// PixelsKey returns the key of a decoded object by its shape and elements: XXH3-64 with seed 0 over the
// number of dimensions and each dimension as little-endian u64, a byte for the element type (0: unsigned
// bytes, 1: float32) and the elements.
func PixelsKey(shape []int, elements byte, data []byte) Key {
	head := make([]byte, 0, 8*(len(shape)+1)+1)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(shape)))
	for _, n := range shape {
		head = binary.LittleEndian.AppendUint64(head, uint64(n))
	}
	head = append(head, elements)
	return Key{Hash: kv.ContentHash(0, head, data), Digest: computeDigest(domainPixels, head, data)}
}

// NameKey returns the key of an object named by its client (uuid), in the namespace of the request's cache
// salt and API key: clients of other namespaces cannot reach it. Hash is XXH3-64 with seed 1 over the
// length of namespace as little-endian u64, namespace and name.
func NameKey(namespace, name string) Key {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(namespace)))
	return Key{
		Hash:   kv.ContentHash(1, n[:], []byte(namespace), []byte(name)),
		Digest: computeDigest(domainName, n[:], []byte(namespace), []byte(name)),
	}
}

func computeDigest(domain string, parts ...[]byte) (d kv.Digest) {
	h := sha256.New()
	_, _ = h.Write([]byte(domain)) // never fails
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	h.Sum(d[:0])
	return d
}
