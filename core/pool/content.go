package pool

import (
	"crypto/sha256"
	"encoding/binary"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Content is what decides the K and V of a block, beside its name. Its slices belong to the caller.
type Content struct {
	// Name is the SeqHash of the prefix which the block ends. It can be forged, so it is only where to look.
	Name kv.SeqHash
	// Parent names the block before it, and ParentIdentity is that block's identity; zero for the first block.
	Parent         kv.SeqHash
	ParentIdentity kv.Digest
	Hash           kv.BlockHash
	Index          uint32    // of the block in its sequence
	Salt           kv.Digest // see DigestSalt
	Tokens         []kv.Token
	// Media are the objects which overlap the block, in order. Their Start and End are positions in the sequence.
	Media []kv.Media
}

// MaxMedia is how many media objects may overlap a block of a pool.
const MaxMedia = 8

// Sizes and places in a record, in bytes.
const (
	recordHead = 136
	mediaSize  = 48
)

// recordDomain is hashed before a record.
const recordDomain = "penstock pool block\x00"

// maxRecord returns the size of the largest record of a block with so many tokens, a multiple of 8.
func maxRecord(tokens uint64) uint64 { return roundUp(recordHead+4*tokens+MaxMedia*mediaSize, 8) }

// DigestSalt returns the digest of a salt: SHA-256, so that the memory of a pool shows no salt.
func DigestSalt(s kv.Salt) kv.Digest {
	return digestTexts("penstock pool salt\x00", s.LoRA, s.Namespace)
}

// digestTexts returns SHA-256 of a domain and texts, each after its length.
func digestTexts(domain string, texts ...string) kv.Digest {
	b := []byte(domain)
	for _, s := range texts {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	return sha256.Sum256(b)
}

// Identifier computes identities of blocks without a pool. It is not safe for concurrent use.
type Identifier struct{ recorder }

// NewIdentifier returns an Identifier for the blocks of pools with a Config.
func NewIdentifier(cfg Config) (*Identifier, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Identifier{newRecorder(cfg.digestIdentity(), cfg.BlockTokens)}, nil
}

// recorder makes records of contents.
type recorder struct {
	identity kv.Digest // of the Config
	tokens   int       // of a block
	want     []byte    // scratch
}

func newRecorder(identity kv.Digest, tokens int) recorder {
	return recorder{identity, tokens, make([]byte, 0, len(recordDomain)+int(maxRecord(uint64(tokens))))}
}

// checkContent returns what is wrong with a content as *fault.Error of code Invalid; nil if nothing is.
func (p *recorder) checkContent(c *Content) error {
	if len(c.Tokens) != p.tokens {
		return fault.New(fault.Invalid, "pool: a block of %d tokens; blocks of this pool have %d", len(c.Tokens), p.tokens)
	}
	if len(c.Media) > MaxMedia {
		return fault.New(fault.Invalid, "pool: %d media overlap a block; at most %d may", len(c.Media), MaxMedia)
	}
	for i := range c.Media {
		// A hash of 64 bits can be forged, and would show one picture in place of another.
		if m := &c.Media[i]; m.Digest == (kv.Digest{}) || m.Start < 0 || m.End < 0 || uint64(m.Start|m.End) > 1<<32-1 {
			return fault.New(fault.Invalid, "pool: object %d of a block has no digest, or no place in the prompt", i)
		}
	}
	return nil
}

// prepareRecord writes the record of a content to p.want, and returns its identity.
func (p *recorder) prepareRecord(c *Content) kv.Digest {
	b := append(p.want[:0], recordDomain...)
	b = append(b, p.identity[:]...)
	b = append(b, c.Salt[:]...)
	b = append(b, c.ParentIdentity[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Name))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Parent))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.Hash))
	b = binary.LittleEndian.AppendUint32(b, c.Index)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Tokens)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(c.Media)))
	for _, t := range c.Tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	if len(c.Tokens)%2 != 0 {
		b = binary.LittleEndian.AppendUint32(b, 0)
	}
	for i := range c.Media {
		m := &c.Media[i]
		b = binary.LittleEndian.AppendUint64(b, m.Hash)
		b = append(b, m.Digest[:]...)
		b = binary.LittleEndian.AppendUint32(b, uint32(m.Start))
		b = binary.LittleEndian.AppendUint32(b, uint32(m.End))
	}
	p.want = b
	return sha256.Sum256(b)
}

// wantedRecord returns the record which prepareRecord has written.
func (p *recorder) wantedRecord() []byte { return p.want[len(recordDomain):] }

// Identify returns the identity of a content: SHA-256 of its record, which has the identity of the block before it. So
// equal identities mean equal prefixes, of equal models.
func (p *recorder) Identify(c *Content) (kv.Digest, error) {
	if err := p.checkContent(c); err != nil {
		return kv.Digest{}, err
	}
	return p.prepareRecord(c), nil
}
