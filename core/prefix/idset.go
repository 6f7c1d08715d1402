package prefix

// pageSet is the set of the pages of one worker or pool, so that removing the holder takes time proportional
// to its pages. It takes 4 bytes and some room for each page. It is a table with open addressing which grows
// and shrinks; 0 is no page.
type idSet struct {
	slots []uint32
	n     int
}

const minIDSlots = 4

func (s *idSet) home(id uint32) int {
	return int(id*0x9E3779B1>>8) & (len(s.slots) - 1)
}

func (s *idSet) add(id uint32) {
	if 4*(s.n+1) > 3*len(s.slots) {
		s.resize(max(minIDSlots, 2*len(s.slots)))
	}
	at := s.home(id)
	for ; s.slots[at] != 0; at = (at + 1) & (len(s.slots) - 1) {
		if s.slots[at] == id {
			return
		}
	}
	s.slots[at] = id
	s.n++
}

func (s *idSet) has(id uint32) bool {
	if s.n == 0 {
		return false
	}
	at := s.home(id)
	for ; s.slots[at] != 0; at = (at + 1) & (len(s.slots) - 1) {
		if s.slots[at] == id {
			return true
		}
	}
	return false
}

// removePage removes id and moves up the entries which it displaced, so that no tombstones are left.
func (s *idSet) remove(id uint32) {
	if !s.has(id) {
		return
	}
	mask := len(s.slots) - 1
	at := s.home(id)
	for s.slots[at] != id {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; s.slots[next] != 0; next = (next + 1) & mask {
		// An entry may move to at if at lies between its home and its slot.
		if (next-s.home(s.slots[next]))&mask >= (next-at)&mask {
			s.slots[at] = s.slots[next]
			at = next
		}
	}
	s.slots[at] = 0
	s.n--
	switch {
	case s.n == 0:
		s.slots = nil
	case 8*s.n < len(s.slots) && len(s.slots) > minIDSlots:
		s.resize(len(s.slots) / 2)
	}
}

func (s *idSet) resize(slots int) {
	old := s.slots
	s.slots, s.n = make([]uint32, slots), 0
	for _, id := range old {
		if id != 0 {
			s.add(id)
		}
	}
}

// takeAll empties s and returns its pages, among zeros.
func (s *idSet) take() []uint32 {
	ids := s.slots
	*s = idSet{}
	return ids
}

func (s *idSet) bytes() int { return alloc(4 * len(s.slots)) }
