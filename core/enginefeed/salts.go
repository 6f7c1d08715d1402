package enginefeed

import "penstock/core/kv"

// opaqueSalt is the salt id of blocks which cannot be hashed. They are remembered so that the blocks which
// follow them are not taken for orphans. They are never announced.
const opaque = 1<<16 - 1

// saltTable assigns ids to the pairs of adapter and namespace in use by blocks.
type salts struct {
	size  int // tokens in a Penstock block
	uses  []saltUse
	free  []uint16
	known map[kv.Salt]uint16
}

type saltUse struct {
	salt   kv.Salt
	hasher kv.Hasher
	blocks int
}

// assignID returns the id of a salt. ok is false if there are too many salts. The caller must call
// dropIfUnused after it.
func (s *salts) of(salt kv.Salt) (id uint16, ok bool) {
	if id, ok := s.known[salt]; ok {
		return id, true
	}
	h, err := kv.NewHasher(s.size, salt)
	if err != nil {
		return 0, false // the size was checked before
	}
	use := saltUse{salt: salt, hasher: h}
	switch k := len(s.free); {
	case k > 0:
		id, s.free = s.free[k-1], s.free[:k-1]
		s.uses[id] = use
	case len(s.uses) == opaque:
		return 0, false
	default:
		id = uint16(len(s.uses))
		s.uses = append(s.uses, use)
	}
	if s.known == nil {
		s.known = make(map[kv.Salt]uint16)
	}
	s.known[salt] = id
	return id, true
}

// retain counts one more block under a salt; release counts one less.
func (s *salts) take(id uint16) {
	if id != opaque {
		s.uses[id].blocks++
	}
}

func (s *salts) give(id uint16) {
	if id != opaque {
		s.uses[id].blocks--
		s.settle(id)
	}
}

// dropIfUnused drops a salt without blocks.
func (s *salts) settle(id uint16) {
	if id == opaque || s.uses[id].blocks > 0 {
		return
	}
	delete(s.known, s.uses[id].salt)
	s.uses[id] = saltUse{}
	s.free = append(s.free, id)
}

func (s *salts) clear() { *s = salts{size: s.size} }

func (s *salts) bytes() int { return len(s.uses) * 160 }
