package engine

import (
	"encoding/binary"

	"penstock/core/kv"
	"penstock/core/media"
)

// The fields of a handoff. Numbers are never reused.
const (
	handoffOpaque = iota + 1
	handoffBlocks
)

// The fields of a block handoff. Numbers are never reused.
const (
	blocksWorker = iota + 1
	blocksRank
	blocksEpoch
	blocksStart
	blocksEnd
	blocksBlockSize
	blocksBlockBytes
	blocksType
	blocksNumerics
	blocksDescriptor
)

// appendHandoff appends a field with h, unless h is nil.
func appendHandoff(dst []byte, field uint64, h *Handoff) []byte {
	if h == nil {
		return dst
	}
	var blocks []byte
	if h.Blocks != nil {
		blocks = appendMessage(nil, handoffBlocks, appendBlockHandoff(nil, h.Blocks))
	}
	dst = appendKey(dst, field, kindBytes)
	dst = binary.AppendUvarint(dst, uint64(bytesFieldLen(handoffOpaque, len(h.Opaque))+len(blocks)))
	return append(appendBytes(dst, handoffOpaque, h.Opaque), blocks...)
}

// appendMessage appends a field which is a message of its own, even if it is empty.
func appendMessage(dst []byte, field uint64, message []byte) []byte {
	dst = binary.AppendUvarint(appendKey(dst, field, kindBytes), uint64(len(message)))
	return append(dst, message...)
}

func appendBlockHandoff(dst []byte, b *BlockHandoff) []byte {
	dst = appendUint(dst, blocksWorker, uint64(b.Worker.ID))
	dst = appendUint(dst, blocksRank, uint64(b.Worker.Rank))
	dst = appendFixed(dst, blocksEpoch, b.Epoch)
	dst = appendInt(dst, blocksStart, b.Start)
	dst = appendInt(dst, blocksEnd, b.End)
	dst = appendInt(dst, blocksBlockSize, b.Layout.BlockSize)
	dst = appendInt(dst, blocksBlockBytes, b.Layout.BlockBytes)
	dst = appendUint(dst, blocksType, uint64(b.Layout.Type))
	dst = appendString(dst, blocksNumerics, b.Layout.Numerics)
	return appendBytes(dst, blocksDescriptor, b.Descriptor)
}

// readHandoff reads a handoff.
func (r *wireReader) readHandoff() *Handoff {
	s := r.openMessage()
	h := new(Handoff)
	for s.nextField() {
		switch s.field {
		case handoffOpaque:
			h.Opaque = s.readBytesUpTo(MaxOpaque)
		case handoffBlocks:
			h.Blocks = new(BlockHandoff)
			s.readBlockHandoff(h.Blocks)
		default:
			s.skipField()
		}
	}
	r.closeField(&s)
	return h
}

// readBlockHandoff reads a field with a block handoff into b.
func (r *wireReader) readBlockHandoff(b *BlockHandoff) {
	s := r.openMessage()
	for s.nextField() {
		switch s.field {
		case blocksWorker:
			b.Worker.ID = kv.WorkerID(s.readUintUpTo(uint64(kv.MaxWorkerID)))
		case blocksRank:
			b.Worker.Rank = s.readUint32()
		case blocksEpoch:
			b.Epoch = s.readFixed()
		case blocksStart:
			b.Start = s.readInt()
		case blocksEnd:
			b.End = s.readInt()
		case blocksBlockSize:
			b.Layout.BlockSize = s.readInt()
		case blocksBlockBytes:
			b.Layout.BlockBytes = s.readInt()
		case blocksType:
			b.Layout.Type = media.ElementType(s.readUint8())
		case blocksNumerics:
			if b.Layout.Numerics = s.readString(""); len(b.Layout.Numerics) > maxNumerics {
				s.fail()
			}
		case blocksDescriptor:
			b.Descriptor = s.readBytesUpTo(MaxDescriptor)
		default:
			s.skipField()
		}
	}
	r.closeField(&s)
}
