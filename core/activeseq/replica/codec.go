package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// The fixed parts of the format; see docs/format/slots.md.
const (
	magic      = 0xEC
	version    = 1
	headerSize = 1 + 1 + 1 + 1 + 8 + 8 // magic, version, kind, zero, router, epoch
	countAt    = headerSize + 8        // of the number of changes, after that of the first

	maxChanges = 256
	batchBytes = 64 << 10
	maxListed  = 1024
	pageBytes  = 64 << 10

	// maxChain is the longest chain, in blocks, which is published. Later blocks count as shared with no
	// other request: 64k tokens in blocks of 16 take 32 KiB.
	maxChain = 4096
	// Larger numbers indicate a defect or a foreign message. The bounds also keep the sum of block weights
	// over all remembered reservations from overflowing.
	maxTokens    = 1 << 23
	maxBlockSize = 1 << 20
	maxPrefill   = 24 * time.Hour
	maxNumber    = 1 << 62
)

type messageKind byte

const (
	kindChanges messageKind = 1 + iota
	kindDigest
	kindRequest
	kindPage
	kindLeave
)

type changeKind byte

const (
	opAdded changeKind = 1 + iota
	opPrefilled
	opGrown
	opFreed
)

// maxChangeSize is the maximum size of a change which has no fields but its distance and is not opAdded.
const maxChangeSize = 1 + binary.MaxVarintLen64

// ErrVersion is in the chain of HandleMessage's error when a message is of a version which this build cannot
// read.
var ErrVersion = errors.New("unknown version")

var errTruncated = errors.New("cut short")

// message is a decoded message. Its slices are reused.
type message struct {
	kind          messageKind
	router, epoch uint64

	first        uint64
	changes      []change
	digest       digestBody
	request      rangeRequest
	page         pageHeader
	reservations []listedReservation
	chainHashes  []kv.SeqHash // of all chains
}

// change is one change. distance is its number less the number of its reservation.
type change struct {
	op          changeKind
	distance    uint64
	output      int
	blockSize   int
	reservation activeseq.Reservation
}

// digestBody sums up a router's reservations after all changes up to and including through.
type digestBody struct{ through, count, sum uint64 }

// rangeRequest asks a router for its changes from from to to, or for a list if from and to are 0.
type rangeRequest struct{ router, epoch, from, to uint64 }

// pageHeader says which reservations a page covers, and as of which change.
type pageHeader struct{ listSeq, asOf, from, to uint64 }

// listedReservation is a reservation in a page.
type listedReservation struct {
	number      uint64
	blockSize   int
	reservation activeseq.Reservation
}

func appendHeader(dst []byte, k messageKind, router, epoch uint64) []byte {
	dst = append(dst, magic, version, byte(k), 0)
	dst = binary.LittleEndian.AppendUint64(dst, router)
	return binary.LittleEndian.AppendUint64(dst, epoch)
}

// appendChanges starts the changes of a batch; setCount sets their number when the batch is closed.
func appendChanges(dst []byte, first uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, first), 0, 0)
}

func setCount(data []byte, n int) { binary.LittleEndian.PutUint16(data[countAt:], uint16(n)) }

func appendChange(dst []byte, o changeKind, back uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(o)), back)
}

// maxAddSize is the maximum size of an opAdded change.
func maxAddSize(v *activeseq.Reservation) int {
	return 1 + 10*binary.MaxVarintLen64 + 8*min(len(v.Chain), maxChain)
}

func appendReservation(dst []byte, v *activeseq.Reservation, blockSize int) []byte {
	chain := v.Chain[:min(len(v.Chain), maxChain)]
	dst = append(dst, byte(opAdded))
	for _, n := range [...]uint64{
		uint64(v.Worker.ID), uint64(v.Worker.Rank), uint64(blockSize), uint64(capTokens(v.PromptTokens)), uint64(capTokens(v.PrefillTokens)),
		uint64(capTokens(v.ExpectedOutput)), uint64(min(v.ExpectedPrefill, maxPrefill) / time.Microsecond), uint64(len(chain)),
	} {
		dst = binary.AppendUvarint(dst, n)
	}
	for _, seq := range chain {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(seq))
	}
	return dst
}

func capTokens(n int) int { return min(n, maxTokens) }

func appendDigest(dst []byte, d digestBody) []byte {
	for _, n := range [...]uint64{d.through, d.count, d.sum} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

func appendRequest(dst []byte, w rangeRequest) []byte {
	for _, n := range [...]uint64{w.router, w.epoch, w.from, w.to} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

func appendPage(dst []byte, p pageHeader, n int) []byte {
	for _, n := range [...]uint64{p.listSeq, p.asOf, p.from, p.to} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return binary.LittleEndian.AppendUint16(dst, uint16(n))
}

// decodeFrom reads data into m; after an error the content of m is undefined. It ignores trailing bytes,
// which a later build may add.
func (m *message) decodeFrom(data []byte) error {
	d := messageDecoder{rest: data}
	if err := m.readMessage(&d); err != nil {
		return fmt.Errorf("replica: decode message of %d bytes: %w", len(data), err)
	}
	return nil
}

func (m *message) readMessage(d *messageDecoder) error {
	head := d.takeBytes(4)
	if d.err != nil {
		return d.err
	}
	switch {
	case head[0] != magic:
		return fmt.Errorf("first byte is %#x, not %#x", head[0], magic)
	case head[1] != version:
		return fmt.Errorf("%w %d", ErrVersion, head[1])
	}
	m.kind, m.router, m.epoch = messageKind(head[2]), d.readUint64(), d.readUint64()
	m.changes, m.reservations, m.chainHashes = m.changes[:0], m.reservations[:0], m.chainHashes[:0]
	switch m.kind {
	case kindChanges:
		m.readChanges(d)
	case kindDigest:
		m.digest = digestBody{d.readSeq(0), d.readUint64(), d.readUint64()}
	case kindRequest:
		m.request = rangeRequest{d.readUint64(), d.readUint64(), d.readSeq(0), d.readSeq(0)}
	case kindPage:
		m.readPage(d)
	case kindLeave:
	default:
		d.setError(fmt.Errorf("unknown kind %d", m.kind))
	}
	if d.err == nil && m.router == 0 {
		d.setError(errors.New("router 0"))
	}
	return d.err
}

func (m *message) readChanges(d *messageDecoder) {
	m.first = d.readSeq(1)
	n := d.readUint16()
	if n > maxChanges {
		d.setError(fmt.Errorf("%d changes, more than %d", n, maxChanges))
	}
	for i := uint64(0); i < uint64(n) && d.err == nil; i++ {
		c := change{}
		b := d.takeBytes(1)
		if d.err != nil {
			return
		}
		switch c.op = changeKind(b[0]); c.op {
		case opAdded:
			m.readReservation(d, &c.reservation, &c.blockSize)
		case opPrefilled, opFreed:
			c.distance = d.readVarint(1, m.first+i-1)
		case opGrown:
			c.distance = d.readVarint(1, m.first+i-1)
			c.output = int(d.readVarint(0, maxTokens))
		default:
			d.setError(fmt.Errorf("unknown change %d", b[0]))
		}
		m.changes = append(m.changes, c)
	}
}

// readReservation reads an opAdded change after its first byte.
func (m *message) readReservation(d *messageDecoder, v *activeseq.Reservation, blockSize *int) {
	v.Worker.ID = kv.WorkerID(d.readVarint(1, uint64(kv.MaxWorkerID)))
	v.Worker.Rank = uint32(d.readVarint(0, math.MaxUint32))
	*blockSize = int(d.readVarint(1, maxBlockSize))
	v.PromptTokens = int(d.readVarint(0, maxTokens))
	v.PrefillTokens = int(d.readVarint(0, uint64(v.PromptTokens)))
	v.ExpectedOutput = int(d.readVarint(0, maxTokens))
	v.ExpectedPrefill = time.Duration(d.readVarint(0, uint64(maxPrefill/time.Microsecond))) * time.Microsecond
	if d.err != nil {
		return
	}
	n := int(d.readVarint(0, min(maxChain, uint64(v.PromptTokens / *blockSize))))
	list := d.takeBytes(8 * n)
	if d.err != nil {
		return
	}
	from := len(m.chainHashes)
	for ; len(list) > 0; list = list[8:] {
		m.chainHashes = append(m.chainHashes, kv.SeqHash(binary.LittleEndian.Uint64(list)))
	}
	v.Chain = m.chainHashes[from:len(m.chainHashes):len(m.chainHashes)]
}

func (m *message) readPage(d *messageDecoder) {
	p := &m.page
	p.listSeq, p.asOf, p.from, p.to = d.readSeq(0), d.readSeq(0), d.readSeq(1), d.readSeq(0)
	n := d.readUint16()
	switch {
	case d.err != nil:
		return
	case p.listSeq > p.asOf || p.to > p.asOf || p.from > p.to+1 || n > maxListed:
		d.setError(fmt.Errorf("a page of %d reservations from %d to %d, as of %d, of the list of %d", n, p.from, p.to, p.asOf, p.listSeq))
	}
	at := p.from
	for i := 0; i < n && d.err == nil; i++ {
		l := listedReservation{number: p.from + d.readVarint(0, p.to-p.from)}
		if b := d.takeBytes(1); d.err == nil && changeKind(b[0]) != opAdded {
			d.setError(fmt.Errorf("change %d in a page", b[0]))
		}
		if d.err == nil && (p.to < p.from || l.number < at) {
			d.setError(fmt.Errorf("reservation %d is out of order", l.number))
		}
		at = l.number + 1
		if d.err == nil {
			m.readReservation(d, &l.reservation, &l.blockSize)
		}
		l.reservation.OutputTokens = int(d.readVarint(0, maxTokens))
		m.reservations = append(m.reservations, l)
	}
}

// messageDecoder reads values from bytes. After an error every value is 0.
type messageDecoder struct {
	rest []byte
	err  error
}

func (d *messageDecoder) setError(err error) {
	if d.err == nil {
		d.err = err
	}
}

// takeBytes returns the next n bytes, nil after an error.
func (d *messageDecoder) takeBytes(n int) []byte {
	if d.err == nil && n > len(d.rest) {
		d.err = errTruncated
	}
	if d.err != nil {
		return nil
	}
	out := d.rest[:n]
	d.rest = d.rest[n:]
	return out
}

func (d *messageDecoder) readUint16() int {
	if b := d.takeBytes(2); b != nil {
		return int(binary.LittleEndian.Uint16(b))
	}
	return 0
}

func (d *messageDecoder) readUint64() uint64 {
	if b := d.takeBytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// readSeq reads the number of a change, at least the given one.
func (d *messageDecoder) readSeq(least uint64) uint64 {
	n := d.readUint64()
	if n < least || n > maxNumber {
		d.setError(fmt.Errorf("number %d is out of range", n))
		return 0
	}
	return n
}

// readVarint reads a number from least to most.
func (d *messageDecoder) readVarint(least, most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	n, size := binary.Uvarint(d.rest)
	switch {
	case size == 0:
		d.err = errTruncated
	case size < 0 || n < least || n > most:
		d.err = fmt.Errorf("%d is not between %d and %d", n, least, most)
	default:
		d.rest = d.rest[size:]
		return n
	}
	return 0
}
