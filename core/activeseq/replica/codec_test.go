package replica

import (
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// samples returns the encoding of a message of each kind.
func samples() map[string]string {
	v := activeseq.Reservation{
		Worker: kv.Worker{ID: 300, Rank: 2}, Chain: []kv.SeqHash{0x0102030405060708, 9}, PromptTokens: 35, PrefillTokens: 19,
		ExpectedOutput: 128, ExpectedPrefill: 2 * time.Millisecond,
	}
	changes := appendChanges(appendHeader(nil, kindChanges, 7, 8), 6)
	changes = appendChange(appendChange(appendReservation(changes, &v, 16), opPrefilled, 1), opFreed, 200>>6)
	changes = append(appendChange(changes, opGrown, 3), 20)
	setCount(changes, 4)
	page := appendPage(appendHeader(nil, kindPage, 7, 8), pageHeader{listSeq: 9, asOf: 10, from: 4, to: 10}, 1)
	page = append(appendReservation(append(page, 2), &v, 16), 20)
	return map[string]string{
		"changes": string(changes),
		"digest":  string(appendDigest(appendHeader(nil, kindDigest, 7, 8), digestBody{9, 1, 1 << 63})),
		"want":    string(appendRequest(appendHeader(nil, kindRequest, 7, 8), rangeRequest{1, 2, 3, 4})),
		"page":    string(page),
		"leave":   string(appendHeader(nil, kindLeave, 7, 8)),
	}
}

// TestBytes checks the format: messages are still written as version 1 always wrote them, and can be read.
func TestBytes(t *testing.T) {
	file, err := os.ReadFile("testdata/messages-v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(file)) {
		name, want, found := strings.Cut(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), ":")
		if !found {
			continue
		}
		n++
		if got := hex.EncodeToString([]byte(samples()[name])); got != want {
			t.Errorf("%s:\n%s, want\n%s", name, got, want)
		}
		var m message
		data, err := hex.DecodeString(want)
		if err == nil {
			err = m.decodeFrom(data)
		}
		if err != nil || string(encode(&m)) != string(data) {
			t.Errorf("%s: %v, or written otherwise", name, err)
		}
	}
	if n != len(samples()) {
		t.Errorf("%d messages, not %d", n, len(samples()))
	}
}

// encode is the inverse of decode.
func encode(m *message) []byte {
	dst := appendHeader(nil, m.kind, m.router, m.epoch)
	switch m.kind {
	case kindChanges:
		dst = appendChanges(dst, m.first)
		for i := range m.changes {
			switch c := &m.changes[i]; c.op {
			case opAdded:
				dst = appendReservation(dst, &c.reservation, c.blockSize)
			case opGrown:
				dst = appendVarint(appendChange(dst, c.op, c.distance), c.output)
			default:
				dst = appendChange(dst, c.op, c.distance)
			}
		}
		setCount(dst, len(m.changes))
	case kindDigest:
		dst = appendDigest(dst, m.digest)
	case kindRequest:
		dst = appendRequest(dst, m.request)
	case kindPage:
		dst = appendPage(dst, m.page, len(m.reservations))
		for i := range m.reservations {
			l := &m.reservations[i]
			dst = appendReservation(appendVarint(dst, int(l.number-m.page.from)), &l.reservation, l.blockSize)
			dst = appendVarint(dst, l.reservation.OutputTokens)
		}
	}
	return dst
}

func appendVarint(dst []byte, n int) []byte {
	for ; n >= 0x80; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n))
}

func TestCutShortIsRefused(t *testing.T) {
	for name, data := range samples() {
		var m message
		if err := m.decodeFrom([]byte(data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := m.decodeFrom([]byte(data + "more")); err != nil {
			t.Errorf("%s with more behind it: %v", name, err)
		}
		for n := range len(data) {
			if err := m.decodeFrom([]byte(data[:n])); err == nil {
				t.Fatalf("%s of %d bytes is accepted at %d", name, len(data), n)
			}
		}
	}
	var m message
	if err := m.decodeFrom([]byte("\xec\x02\x01\x00")); !errors.Is(err, ErrVersion) {
		t.Errorf("another version: %v", err)
	}
}

// FuzzDecode: any input is refused or means the same after encoding and decoding, and leaves every replica
// which receives it in a valid state.
func FuzzDecode(f *testing.F) {
	for _, data := range samples() {
		f.Add([]byte(data), []byte(data))
	}
	f.Fuzz(func(t *testing.T, data, more []byte) {
		var m, again message
		if m.decodeFrom(data) == nil {
			if err := again.decodeFrom(encode(&m)); err != nil {
				t.Fatalf("what was read cannot be read again: %v", err)
			}
			m.chainHashes, again.chainHashes = nil, nil
			stale(&m)
			stale(&again)
			if !reflect.DeepEqual(m, again) {
				t.Fatalf("%+v\n%+v", m, again)
			}
		}
		n := newNode(t, 1, 1, 400)
		for i, b := range [][]byte{data, more, data} {
			_ = n.replica.HandleMessage(kv.Mono(i)*ms, b)
			n.replica.Tick(kv.Mono(i)*ms, nil)
			if err := n.replica.Check(); err != nil {
				t.Fatal(err)
			}
		}
		for _, table := range n.tables {
			if err := table.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// stale clears the fields which a message does not use.
func stale(m *message) {
	if len(m.changes) == 0 {
		m.changes = nil
	}
	if len(m.reservations) == 0 {
		m.reservations = nil
	}
	for i := range m.changes {
		if len(m.changes[i].reservation.Chain) == 0 {
			m.changes[i].reservation.Chain = nil
		}
	}
	for i := range m.reservations {
		if len(m.reservations[i].reservation.Chain) == 0 {
			m.reservations[i].reservation.Chain = nil
		}
	}
}

func TestSpans(t *testing.T) {
	var s seqRanges
	for _, add := range [][2]uint64{{5, 6}, {9, 9}, {20, 30}, {7, 7}, {8, 12}, {1, 2}, {3, 25}} {
		s.addRange(add[0], add[1])
	}
	if !reflect.DeepEqual(s, seqRanges{{1, 30}}) {
		t.Errorf("%v", s)
	}
	s.addRange(40, 41)
	for n, want := range map[uint64]bool{0: false, 1: true, 30: true, 31: false, 40: true, 42: false} {
		if s.contains(n) != want {
			t.Errorf("%d: %t", n, !want)
		}
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{PeerTimeout: time.Millisecond}, nil); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not every problem is reported: %v", err)
	}
}
