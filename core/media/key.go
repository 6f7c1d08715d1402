package media

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"penstock/core/kv"
)

// Identity says what a media object is known by.
type Identity string

// The identities. By pixels, one picture behind two URLs is one object; by URL,
// nothing needs to be fetched.
const (
	ByURL    Identity = "url"    // the URL as sent; of data: URIs the decoded bytes
	ByBytes  Identity = "bytes"  // the encoded file
	ByPixels Identity = "pixels" // the decoded RGB
)

// Key is who a media object is. Hash is what travels and what block hashes take,
// Digest the same in full width: where it decides what a request gets, it is
// compared too. docs/format/media.md has both in bytes.
type Key struct {
	Hash   uint64
	Digest kv.Digest
}

// IsZero reports whether nothing is known of who the object is.
func (k Key) IsZero() bool { return k == Key{} }

// Hex returns Hash as 16 hex digits, the form in which frontends hand it to workers.
func (k Key) Hex() string { return fmt.Sprintf("%016x", k.Hash) }

// UUID returns the name under which engines are told of the object: Hex, filled up
// with zeros on the right to the 64 digits of a full digest, of which routers read the
// first 16 back (kv.MediaHash).
func (k Key) UUID() string {
	const zeros = "000000000000000000000000000000000000000000000000"
	return k.Hex() + zeros
}

// The domains of digests: what is hashed before the content, so that the key of a
// URL is never that of a file whose bytes are that URL.
const (
	domainURL    = "penstock media url\x00"
	domainBytes  = "penstock media bytes\x00"
	domainPixels = "penstock media pixels\x00"
	domainName   = "penstock media name\x00"
)

// URLKey returns the key of what a URL shows, for a while: what it shows can change, so
// that period, a number that grows with time, takes part in the key. With period 0 Hash
// is XXH3-64 with seed 0 over the URL, as other frontends of the field have it; else
// period is the seed.
func URLKey(url string, period uint64) Key {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], period)
	return Key{Hash: kv.ContentHash(period, []byte(url)), Digest: digest(domainURL, seed[:], []byte(url))}
}

// BytesKey returns the key of a file by its bytes: Hash is XXH3-64 with seed 0 over them.
func BytesKey(file []byte) Key {
	return Key{Hash: kv.ContentHash(0, file), Digest: digest(domainBytes, file)}
}

// PixelsKey returns the key of a decoded object by its shape and elements: XXH3-64 with
// seed 0 over the number of dimensions and each dimension as little-endian u64, a byte
// for the type of elements (0: unsigned bytes, 1: float32) and the elements.
func PixelsKey(shape []int, elements byte, data []byte) Key {
	head := make([]byte, 0, 8*(len(shape)+1)+1)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(shape)))
	for _, n := range shape {
		head = binary.LittleEndian.AppendUint64(head, uint64(n))
	}
	head = append(head, elements)
	return Key{Hash: kv.ContentHash(0, head, data), Digest: digest(domainPixels, head, data)}
}

// NameKey returns the key of an object that its client named (uuid), in the namespace of
// the request's cache salt and key: clients of different namespaces cannot reach what
// another one named. Hash is XXH3-64 with seed 1 over the length of namespace as
// little-endian u64, namespace and name.
func NameKey(namespace, name string) Key {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(namespace)))
	return Key{
		Hash:   kv.ContentHash(1, n[:], []byte(namespace), []byte(name)),
		Digest: digest(domainName, n[:], []byte(namespace), []byte(name)),
	}
}

func digest(domain string, parts ...[]byte) (d kv.Digest) {
	h := sha256.New()
	_, _ = h.Write([]byte(domain)) // never fails
	for _, p := range parts {
		_, _ = h.Write(p) // likewise
	}
	h.Sum(d[:0])
	return d
}
