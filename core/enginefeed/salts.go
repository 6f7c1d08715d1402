package enginefeed

import "penstock/core/kv"

// opaque is the number of the salt of blocks that have no name of ours: they are remembered so
// that those behind them are not taken for orphans, and never told of.
const opaque = 1<<16 - 1

// salts gives numbers to the pairs of adapter and namespace that blocks are under, as long as there are such blocks.
type salts struct {
	size  int // tokens in a block of ours
	uses  []saltUse
	free  []uint16
	known map[kv.Salt]uint16
}

type saltUse struct {
	salt   kv.Salt
	hasher kv.Hasher
	blocks int
}

// of returns the number of a salt; ok is false if there are too many. Who has taken it calls settle.
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

// take says that a further block is under a salt, give that one is no more.
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

// settle forgets a salt that no block is under.
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
