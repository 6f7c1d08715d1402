package embcache

import (
	"crypto/sha256"
	"encoding/binary"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// eventDomain is hashed before the parts, so that an event key equals no other digest.
const eventDomain = "penstock embedding\x00"

// EventKey returns the key by which events name the rows that an encoder makes of an object for requests of a cache
// salt: the SHA-256 of a domain, encoder and salt, each after its length as little-endian u64, and the object's
// digest. So neither the salt nor the digest of what its requests showed can be read in an event. Kind, element type
// and reduction are left out: a process which asks for the rows names them.
//
// It allocates nothing if encoder and salt together have no more than 128 bytes.
func EventKey(encoder, salt string, object kv.Digest) kv.Digest {
	var room [len(eventDomain) + 8 + 8 + len(object) + 128]byte
	b := append(room[:0], eventDomain...)
	b = appendCounted(b, encoder)
	b = appendCounted(b, salt)
	return sha256.Sum256(append(b, object[:]...))
}

func appendCounted(dst []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(s))), s...)
}

// PlaceHash returns the number by which package rendezvous chooses a worker for the entry, the same in every process. hash
// is that of an object without a digest.
func (k *RowKey) PlaceHash(hash uint64) uint64 {
	if k.Digest != (kv.Digest{}) {
		hash = binary.LittleEndian.Uint64(k.Digest[:8])
	}
	return splitmix.Mix(hash^kv.ContentHash(0, []byte(k.Salt))) + uint64(k.Kind)
}

// EventKey returns the key by which events name the entry.
func (k *RowKey) EventKey() kv.Digest { return EventKey(k.Encoder, k.Salt, k.Digest) }
