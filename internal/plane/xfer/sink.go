package xfer

// sink moves verified chunks of one claimed transfer into the memory of its owner. One goroutine
// uses it.
type sink struct {
	transfer *Transfer
	into     scatter
	offset   uint64
	total    totalDigest
	pieces   [][]byte // of the current chunk; reused
}

// start makes s the sink of t.
func (s *sink) start(t *Transfer) {
	s.transfer, s.offset = t, 0
	s.into = scatter{slices: t.into, left: t.desc.Size}
	s.total.reset()
}

// forget drops the transfer, which is over, so that an idle connection does not keep its owner's memory.
func (s *sink) forget() {
	clear(s.pieces)
	s.transfer, s.into = nil, scatter{}
}

// chunkLength returns how many bytes the chunk which begins at offset has, in a transfer of size.
func chunkLength(offset, size uint64) int { return int(min(size-offset, ChunkSize)) }

// reserve returns the pieces of the owner's memory into which the chunk of h goes.
func (s *sink) reserve(h chunkHeader) ([][]byte, error) {
	size := uint64(s.transfer.desc.Size)
	if h.offset != s.offset || s.offset == size || int(h.size) != chunkLength(s.offset, size) {
		return nil, newFailure(Invalid, "transfer: a chunk of %d bytes at %d where that at %d of %d is due", h.size, h.offset, s.offset, size)
	}
	s.pieces = s.pieces[:0]
	for left := int(h.size); left > 0; {
		piece := s.into.next(left)
		s.pieces = append(s.pieces, piece)
		left -= len(piece)
	}
	return s.pieces, nil
}

// verify checks the chunk of h, which is in the pieces that reserve returned.
func (s *sink) verify(h chunkHeader) error {
	if digestSlices(s.pieces) != h.digest {
		return newFailure(Corrupt, "transfer: the digest of the chunk at %d is wrong", h.offset)
	}
	return s.acceptChunk(h)
}

// acceptChunk counts the chunk of h, whose digest is that of its bytes.
func (s *sink) acceptChunk(h chunkHeader) error {
	s.offset += uint64(h.size)
	s.total.addChunk(h.digest, int(h.size))
	return s.transfer.addVerified(int(h.size))
}

// copyIn copies the chunk of h from memory which others may change. The copy is to be verified.
func (s *sink) copyIn(h chunkHeader, from []byte) error {
	pieces, err := s.reserve(h)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		from = from[copy(p, from):]
	}
	return nil
}

// verifyWhole checks all bytes of a small transfer, which are in the pieces that reserve returned, and
// ends it well.
func (s *sink) verifyWhole(h chunkHeader, note []byte) error {
	if digestSlices(s.pieces) != h.digest {
		return newFailure(Corrupt, "transfer: the digest of the bytes is wrong")
	}
	s.offset = uint64(h.size)
	return s.transfer.completeWhole(int(h.size), totalOfOne(h.digest, int(h.size)), note)
}

// complete ends the transfer well, if all its bytes have come and the writer's digest is theirs.
func (s *sink) complete(d Digest, note []byte) error {
	if size := uint64(s.transfer.desc.Size); s.offset != size {
		return newFailure(Invalid, "transfer: it ended after %d of %d bytes", s.offset, size)
	}
	if s.total.sum() != d {
		return newFailure(Corrupt, "transfer: the digest of all chunks is wrong")
	}
	return s.transfer.complete(d, note)
}
