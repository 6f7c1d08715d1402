package prefix

// pageSet is the set of the pages of one worker or pool, so that removing the holder takes time proportional
// to its pages. It takes 4 bytes and some room for each page. It is a table with open addressing which grows
// and shrinks; 0 is no page.
type pageSet struct {
	slots []uint32
	count int
}

const minIDSlots = 4

func (s *pageSet) homeSlot(id uint32) int {
	return int(id*0x9E3779B1>>8) & (len(s.slots) - 1)
}

func (s *pageSet) addPage(id uint32) {
	if 4*(s.count+1) > 3*len(s.slots) {
		s.resizeTable(max(minIDSlots, 2*len(s.slots)))
	}
	at := s.homeSlot(id)
	for ; s.slots[at] != 0; at = (at + 1) & (len(s.slots) - 1) {
		if s.slots[at] == id {
			return
		}
	}
	s.slots[at] = id
	s.count++
}

func (s *pageSet) hasPage(id uint32) bool {
	if s.count == 0 {
		return false
	}
	at := s.homeSlot(id)
	for ; s.slots[at] != 0; at = (at + 1) & (len(s.slots) - 1) {
		if s.slots[at] == id {
			return true
		}
	}
	return false
}

// removePage removes id and moves up the entries which it displaced, so that no tombstones are left.
func (s *pageSet) removePage(id uint32) {
	if !s.hasPage(id) {
		return
	}
	mask := len(s.slots) - 1
	at := s.homeSlot(id)
	for s.slots[at] != id {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; s.slots[next] != 0; next = (next + 1) & mask {
		// An entry may move to at if at lies between its home and its slot.
		if (next-s.homeSlot(s.slots[next]))&mask >= (next-at)&mask {
			s.slots[at] = s.slots[next]
			at = next
		}
	}
	s.slots[at] = 0
	s.count--
	switch {
	case s.count == 0:
		s.slots = nil
	case 8*s.count < len(s.slots) && len(s.slots) > minIDSlots:
		s.resizeTable(len(s.slots) / 2)
	}
}

func (s *pageSet) resizeTable(slots int) {
	old := s.slots
	s.slots, s.count = make([]uint32, slots), 0
	for _, id := range old {
		if id != 0 {
			s.addPage(id)
		}
	}
}

// takeAll empties s and returns its pages, among zeros.
func (s *pageSet) takeAll() []uint32 {
	ids := s.slots
	*s = pageSet{}
	return ids
}

func (s *pageSet) memoryBytes() int { return allocBytes(4 * len(s.slots)) }
