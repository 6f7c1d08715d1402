package engineevents

import "penstock/core/kv"

// opaqueSalt is the salt id of blocks which cannot be hashed. They are remembered so that the blocks which
// follow them are not taken for orphans. They are never announced.
const opaqueSalt = 1<<16 - 1

// saltTable assigns ids to the pairs of adapter and namespace in use by blocks.
type saltTable struct {
	blockSize int // tokens in a Penstock block
	entries   []saltUse
	free      []uint16
	ids       map[kv.Salt]uint16
}

type saltUse struct {
	salt   kv.Salt
	hasher kv.Hasher
	blocks int
}

// assignID returns the id of a salt. ok is false if there are too many salts. The caller must call
// dropIfUnused after it.
func (s *saltTable) assignID(salt kv.Salt) (id uint16, ok bool) {
	if id, ok := s.ids[salt]; ok {
		return id, true
	}
	h, err := kv.NewHasher(s.blockSize, salt)
	if err != nil {
		return 0, false // the size was checked before
	}
	use := saltUse{salt: salt, hasher: h}
	switch k := len(s.free); {
	case k > 0:
		id, s.free = s.free[k-1], s.free[:k-1]
		s.entries[id] = use
	case len(s.entries) == opaqueSalt:
		return 0, false
	default:
		id = uint16(len(s.entries))
		s.entries = append(s.entries, use)
	}
	if s.ids == nil {
		s.ids = make(map[kv.Salt]uint16)
	}
	s.ids[salt] = id
	return id, true
}

// retain counts one more block under a salt; release counts one less.
func (s *saltTable) retain(id uint16) {
	if id != opaqueSalt {
		s.entries[id].blocks++
	}
}

func (s *saltTable) release(id uint16) {
	if id != opaqueSalt {
		s.entries[id].blocks--
		s.dropIfUnused(id)
	}
}

// dropIfUnused drops a salt without blocks.
func (s *saltTable) dropIfUnused(id uint16) {
	if id == opaqueSalt || s.entries[id].blocks > 0 {
		return
	}
	delete(s.ids, s.entries[id].salt)
	s.entries[id] = saltUse{}
	s.free = append(s.free, id)
}

func (s *saltTable) clearSalts() { *s = saltTable{blockSize: s.blockSize} }

func (s *saltTable) sizeBytes() int { return len(s.entries) * 160 }
