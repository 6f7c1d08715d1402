package prefix

import "math/bits"

// pageTable finds a page by its number, for the writer: a number takes 4 bytes where a pointer would take 8.
// It consists of chunks, which are freed when they are empty. No page has the number 0.
type pageTable struct {
	chunks []*pageChunk
	open   []uint32 // chunks with room, each once; an empty one is nil
	live   int
	bytes  int
}

type pageChunk struct {
	versions [chunkPages]*pageVersion
	spans    [chunkPages]*pageSpan
	taken    [chunkPages / 64]uint64
	live     int
}

const (
	chunkPages = 512
	chunkBytes = 16*chunkPages + chunkPages/8 + 8
)

func (p *pageTable) pageAt(id uint32) *pageVersion {
	return p.chunks[id/chunkPages].versions[id%chunkPages]
}

func (p *pageTable) setPage(id uint32, v *pageVersion) {
	p.chunks[id/chunkPages].versions[id%chunkPages] = v
}

// spanOf returns the span of a page, or nil.
func (p *pageTable) spanOf(id uint32) *pageSpan { return p.chunks[id/chunkPages].spans[id%chunkPages] }

func (p *pageTable) setSpan(id uint32, s *pageSpan) { p.chunks[id/chunkPages].spans[id%chunkPages] = s }

// reserveID returns a free number.
func (p *pageTable) reserveID() uint32 {
	if len(p.open) == 0 {
		p.open = append(p.open, uint32(len(p.chunks)))
		p.chunks = append(p.chunks, nil)
	}
	at := p.open[len(p.open)-1]
	c := p.chunks[at]
	if c == nil {
		c = &pageChunk{}
		if at == 0 {
			c.taken[0] = 1 // the number 0 is not used
		}
		p.chunks[at] = c
		p.bytes += allocPointerBytes(chunkBytes)
	}
	id := at*chunkPages + c.reserveSlot()
	if c.isFull() {
		p.open = p.open[:len(p.open)-1]
	}
	p.live++
	return id
}

// releaseID frees a number.
func (p *pageTable) releaseID(id uint32) {
	at := id / chunkPages
	c := p.chunks[at]
	if c.isFull() {
		p.open = append(p.open, at)
	}
	c.versions[id%chunkPages] = nil
	c.taken[id%chunkPages/64] &^= 1 << (id % 64)
	p.live--
	if c.live--; c.live == 0 {
		p.chunks[at] = nil
		p.bytes -= allocPointerBytes(chunkBytes)
	}
	if p.live == 0 {
		p.chunks, p.open = nil, nil
	}
}

func (c *pageChunk) reserveSlot() uint32 {
	for i, taken := range c.taken {
		if free := ^taken; free != 0 {
			c.taken[i] |= free & -free
			c.live++
			return uint32(i*64 + bits.TrailingZeros64(free))
		}
	}
	panic("prefix: a full chunk among those with room")
}

func (c *pageChunk) isFull() bool {
	for _, taken := range c.taken {
		if ^taken != 0 {
			return false
		}
	}
	return true
}
