package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"penstock/core/kv"
	"penstock/core/slots"
)

// The fixed parts of the format; see docs/format/slots.md.
const (
	magic      = 0xEC
	version    = 1
	headerSize = 1 + 1 + 1 + 1 + 8 + 8 // magic, version, kind, zero, router, epoch
	countAt    = headerSize + 8        // of the number of changes, behind that of the first

	maxChanges = 256
	batchBytes = 64 << 10
	maxListed  = 1024
	pageBytes  = 64 << 10

	// maxChain is the longest chain, in blocks, that is told. What is behind it counts
	// as shared with nobody: 64k tokens of 16 in a block are known by 32 KiB.
	maxChain = 4096
	// Larger numbers are a defect, or somebody else's message. The blocks of so many
	// tokens, of all reservations that are remembered, can be summed up by their weights.
	maxTokens    = 1 << 23
	maxBlockSize = 1 << 20
	maxPrefill   = 24 * time.Hour
	maxNumber    = 1 << 62
)

type kind byte

const (
	kindChanges kind = 1 + iota
	kindDigest
	kindWant
	kindPage
	kindLeave
)

type op byte

const (
	opAdd op = 1 + iota
	opPrefilled
	opGrow
	opFree
)

// backSize is the most that a change takes which is not the making of a reservation,
// and has no further field.
const backSize = 1 + binary.MaxVarintLen64

// ErrVersion is in the chain of Accept's error when a message is of a version that
// this build cannot read.
var ErrVersion = errors.New("unknown version")

var errShort = errors.New("cut short")

// message is a message that was read. Its slices are reused.
type message struct {
	kind          kind
	router, epoch uint64

	first   uint64
	changes []change
	digest  digestOf
	want    want
	page    pageOf
	listed  []listed
	hashes  []kv.SeqHash // of all chains
}

// change is one change. back is the distance to the number of its reservation.
type change struct {
	op        op
	back      uint64
	output    int
	blockSize int
	v         slots.Reservation
}

// digestOf is what a router has, all changes up to through included.
type digestOf struct{ through, count, sum uint64 }

// want asks a router for its changes from from to to, or, if that is 0, for a list.
type want struct{ router, epoch, from, to uint64 }

// pageOf says which reservations a page speaks of, and as of which change.
type pageOf struct{ list, asOf, from, to uint64 }

// listed is a reservation of a page.
type listed struct {
	number    uint64
	blockSize int
	v         slots.Reservation
}

func appendHeader(dst []byte, k kind, router, epoch uint64) []byte {
	dst = append(dst, magic, version, byte(k), 0)
	dst = binary.LittleEndian.AppendUint64(dst, router)
	return binary.LittleEndian.AppendUint64(dst, epoch)
}

// appendChanges begins the changes of a batch; setCount says in the end how many they
// are.
func appendChanges(dst []byte, first uint64) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, first), 0, 0)
}

func setCount(data []byte, n int) { binary.LittleEndian.PutUint16(data[countAt:], uint16(n)) }

func appendBack(dst []byte, o op, back uint64) []byte {
	return binary.AppendUvarint(append(dst, byte(o)), back)
}

// addSize is the most that the making of a reservation takes.
func addSize(v *slots.Reservation) int {
	return 1 + 10*binary.MaxVarintLen64 + 8*min(len(v.Chain), maxChain)
}

func appendAdd(dst []byte, v *slots.Reservation, blockSize int) []byte {
	chain := v.Chain[:min(len(v.Chain), maxChain)]
	dst = append(dst, byte(opAdd))
	for _, n := range [...]uint64{
		uint64(v.Worker.ID), uint64(v.Worker.Rank), uint64(blockSize), uint64(tokens(v.PromptTokens)), uint64(tokens(v.PrefillTokens)),
		uint64(tokens(v.ExpectedOutput)), uint64(min(v.ExpectedPrefill, maxPrefill) / time.Microsecond), uint64(len(chain)),
	} {
		dst = binary.AppendUvarint(dst, n)
	}
	for _, seq := range chain {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(seq))
	}
	return dst
}

func tokens(n int) int { return min(n, maxTokens) }

func appendDigest(dst []byte, d digestOf) []byte {
	for _, n := range [...]uint64{d.through, d.count, d.sum} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

func appendWant(dst []byte, w want) []byte {
	for _, n := range [...]uint64{w.router, w.epoch, w.from, w.to} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return dst
}

func appendPage(dst []byte, p pageOf, n int) []byte {
	for _, n := range [...]uint64{p.list, p.asOf, p.from, p.to} {
		dst = binary.LittleEndian.AppendUint64(dst, n)
	}
	return binary.LittleEndian.AppendUint16(dst, uint16(n))
}

// decode reads data into m, of which nothing is of use after an error. Bytes behind what
// is described, which a later build may add, are left out.
func (m *message) decode(data []byte) error {
	d := decoder{rest: data}
	if err := m.read(&d); err != nil {
		return fmt.Errorf("replica: decode message of %d bytes: %w", len(data), err)
	}
	return nil
}

func (m *message) read(d *decoder) error {
	head := d.take(4)
	if d.err != nil {
		return d.err
	}
	switch {
	case head[0] != magic:
		return fmt.Errorf("first byte is %#x, not %#x", head[0], magic)
	case head[1] != version:
		return fmt.Errorf("%w %d", ErrVersion, head[1])
	}
	m.kind, m.router, m.epoch = kind(head[2]), d.word(), d.word()
	m.changes, m.listed, m.hashes = m.changes[:0], m.listed[:0], m.hashes[:0]
	switch m.kind {
	case kindChanges:
		m.readChanges(d)
	case kindDigest:
		m.digest = digestOf{d.number(0), d.word(), d.word()}
	case kindWant:
		m.want = want{d.word(), d.word(), d.number(0), d.number(0)}
	case kindPage:
		m.readPage(d)
	case kindLeave:
	default:
		d.fail(fmt.Errorf("unknown kind %d", m.kind))
	}
	if d.err == nil && m.router == 0 {
		d.fail(errors.New("router 0"))
	}
	return d.err
}

func (m *message) readChanges(d *decoder) {
	m.first = d.number(1)
	n := d.short()
	if n > maxChanges {
		d.fail(fmt.Errorf("%d changes, more than %d", n, maxChanges))
	}
	for i := uint64(0); i < uint64(n) && d.err == nil; i++ {
		c := change{}
		b := d.take(1)
		if d.err != nil {
			return
		}
		switch c.op = op(b[0]); c.op {
		case opAdd:
			m.readAdd(d, &c.v, &c.blockSize)
		case opPrefilled, opFree:
			c.back = d.varint(1, m.first+i-1)
		case opGrow:
			c.back = d.varint(1, m.first+i-1)
			c.output = int(d.varint(0, maxTokens))
		default:
			d.fail(fmt.Errorf("unknown change %d", b[0]))
		}
		m.changes = append(m.changes, c)
	}
}

// readAdd reads the making of a reservation, behind its first byte.
func (m *message) readAdd(d *decoder, v *slots.Reservation, blockSize *int) {
	v.Worker.ID = kv.WorkerID(d.varint(1, uint64(kv.MaxWorkerID)))
	v.Worker.Rank = uint32(d.varint(0, math.MaxUint32))
	*blockSize = int(d.varint(1, maxBlockSize))
	v.PromptTokens = int(d.varint(0, maxTokens))
	v.PrefillTokens = int(d.varint(0, uint64(v.PromptTokens)))
	v.ExpectedOutput = int(d.varint(0, maxTokens))
	v.ExpectedPrefill = time.Duration(d.varint(0, uint64(maxPrefill/time.Microsecond))) * time.Microsecond
	if d.err != nil {
		return
	}
	n := int(d.varint(0, min(maxChain, uint64(v.PromptTokens / *blockSize))))
	list := d.take(8 * n)
	if d.err != nil {
		return
	}
	from := len(m.hashes)
	for ; len(list) > 0; list = list[8:] {
		m.hashes = append(m.hashes, kv.SeqHash(binary.LittleEndian.Uint64(list)))
	}
	v.Chain = m.hashes[from:len(m.hashes):len(m.hashes)]
}

func (m *message) readPage(d *decoder) {
	p := &m.page
	p.list, p.asOf, p.from, p.to = d.number(0), d.number(0), d.number(1), d.number(0)
	n := d.short()
	switch {
	case d.err != nil:
		return
	case p.list > p.asOf || p.to > p.asOf || p.from > p.to+1 || n > maxListed:
		d.fail(fmt.Errorf("a page of %d reservations from %d to %d, as of %d, of the list of %d", n, p.from, p.to, p.asOf, p.list))
	}
	at := p.from
	for i := 0; i < n && d.err == nil; i++ {
		l := listed{number: p.from + d.varint(0, p.to-p.from)}
		if b := d.take(1); d.err == nil && op(b[0]) != opAdd {
			d.fail(fmt.Errorf("change %d in a page", b[0]))
		}
		if d.err == nil && (p.to < p.from || l.number < at) {
			d.fail(fmt.Errorf("reservation %d is out of order", l.number))
		}
		at = l.number + 1
		if d.err == nil {
			m.readAdd(d, &l.v, &l.blockSize)
		}
		l.v.OutputTokens = int(d.varint(0, maxTokens))
		m.listed = append(m.listed, l)
	}
}

// decoder cuts values off bytes. After an error every value is 0.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// take returns the next n bytes, nil after an error.
func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.rest) {
		d.err = errShort
	}
	if d.err != nil {
		return nil
	}
	out := d.rest[:n]
	d.rest = d.rest[n:]
	return out
}

func (d *decoder) short() int {
	if b := d.take(2); b != nil {
		return int(binary.LittleEndian.Uint16(b))
	}
	return 0
}

func (d *decoder) word() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// number reads a word that is a change's number, or one that least allows.
func (d *decoder) number(least uint64) uint64 {
	n := d.word()
	if n < least || n > maxNumber {
		d.fail(fmt.Errorf("number %d is out of range", n))
		return 0
	}
	return n
}

// varint reads a number from least to most.
func (d *decoder) varint(least, most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	n, size := binary.Uvarint(d.rest)
	switch {
	case size == 0:
		d.err = errShort
	case size < 0 || n < least || n > most:
		d.err = fmt.Errorf("%d is not between %d and %d", n, least, most)
	default:
		d.rest = d.rest[size:]
		return n
	}
	return 0
}
