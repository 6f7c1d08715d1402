package replica

import (
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/slots"
)

// samples returns the encoding of a message of each kind.
func samples() map[string]string {
	v := slots.Reservation{
		Worker: kv.Worker{ID: 300, Rank: 2}, Chain: []kv.SeqHash{0x0102030405060708, 9}, PromptTokens: 35, PrefillTokens: 19,
		ExpectedOutput: 128, ExpectedPrefill: 2 * time.Millisecond,
	}
	changes := appendChanges(appendHeader(nil, kindChanges, 7, 8), 6)
	changes = appendBack(appendBack(appendAdd(changes, &v, 16), opPrefilled, 1), opFree, 200>>6)
	changes = append(appendBack(changes, opGrow, 3), 20)
	setCount(changes, 4)
	page := appendPage(appendHeader(nil, kindPage, 7, 8), pageOf{list: 9, asOf: 10, from: 4, to: 10}, 1)
	page = append(appendAdd(append(page, 2), &v, 16), 20)
	return map[string]string{
		"changes": string(changes),
		"digest":  string(appendDigest(appendHeader(nil, kindDigest, 7, 8), digestOf{9, 1, 1 << 63})),
		"want":    string(appendWant(appendHeader(nil, kindWant, 7, 8), want{1, 2, 3, 4})),
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
			err = m.decode(data)
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
			case opAdd:
				dst = appendAdd(dst, &c.v, c.blockSize)
			case opGrow:
				dst = appendVarint(appendBack(dst, c.op, c.back), c.output)
			default:
				dst = appendBack(dst, c.op, c.back)
			}
		}
		setCount(dst, len(m.changes))
	case kindDigest:
		dst = appendDigest(dst, m.digest)
	case kindWant:
		dst = appendWant(dst, m.want)
	case kindPage:
		dst = appendPage(dst, m.page, len(m.listed))
		for i := range m.listed {
			l := &m.listed[i]
			dst = appendAdd(appendVarint(dst, int(l.number-m.page.from)), &l.v, l.blockSize)
			dst = appendVarint(dst, l.v.OutputTokens)
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
		if err := m.decode([]byte(data)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := m.decode([]byte(data + "more")); err != nil {
			t.Errorf("%s with more behind it: %v", name, err)
		}
		for n := range len(data) {
			if err := m.decode([]byte(data[:n])); err == nil {
				t.Fatalf("%s of %d bytes is accepted at %d", name, len(data), n)
			}
		}
	}
	var m message
	if err := m.decode([]byte("\xec\x02\x01\x00")); !errors.Is(err, ErrVersion) {
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
		if m.decode(data) == nil {
			if err := again.decode(encode(&m)); err != nil {
				t.Fatalf("what was read cannot be read again: %v", err)
			}
			m.hashes, again.hashes = nil, nil
			stale(&m)
			stale(&again)
			if !reflect.DeepEqual(m, again) {
				t.Fatalf("%+v\n%+v", m, again)
			}
		}
		n := newNode(t, 1, 1, 400)
		for i, b := range [][]byte{data, more, data} {
			_ = n.replica.Accept(kv.Mono(i)*ms, b)
			n.replica.Step(kv.Mono(i)*ms, nil)
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
	if len(m.listed) == 0 {
		m.listed = nil
	}
	for i := range m.changes {
		if len(m.changes[i].v.Chain) == 0 {
			m.changes[i].v.Chain = nil
		}
	}
	for i := range m.listed {
		if len(m.listed[i].v.Chain) == 0 {
			m.listed[i].v.Chain = nil
		}
	}
}

func TestSpans(t *testing.T) {
	var s spans
	for _, add := range [][2]uint64{{5, 6}, {9, 9}, {20, 30}, {7, 7}, {8, 12}, {1, 2}, {3, 25}} {
		s.add(add[0], add[1])
	}
	if !reflect.DeepEqual(s, spans{{1, 30}}) {
		t.Errorf("%v", s)
	}
	s.add(40, 41)
	for n, want := range map[uint64]bool{0: false, 1: true, 30: true, 31: false, 40: true, 42: false} {
		if s.has(n) != want {
			t.Errorf("%d: %t", n, !want)
		}
	}
}

func TestValidate(t *testing.T) {
	if _, err := New(Config{Silence: time.Millisecond}, nil); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not every problem is reported: %v", err)
	}
}
