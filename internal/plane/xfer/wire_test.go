package xfer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// exampleFrames returns one frame of every type, as docs/format/xfer.md describes them.
func exampleFrames() map[string][]byte {
	return map[string][]byte{
		"BEGIN":   appendBegin(nil, beginHeader{epoch: 3, id: transferID{1, 2}, size: 500, generation: 7}),
		"CHUNK":   appendChunk(nil, chunkHeader{offset: 1 << 33, size: ChunkSize, slot: 5, digest: 0x1122334455667788}),
		"END":     appendEnd(nil, 9, []byte("note")),
		"ABORT":   appendVerdict(nil, frameAbort, newFailure(Aborted, "why")),
		"REGION":  appendRegion(nil, regionHeader{size: regionSize, slots: regionSlots, generation: 1}),
		"TAKEN":   appendTaken(nil, 2),
		"OUTCOME": appendVerdict(nil, frameOutcome, nil),
		"RETIRE":  appendRetire(nil),
		"JOIN":    appendJoin(nil, joinHeader{stream: 0x1122334455667788, address: []byte("worker")}),
		"WHOLE": appendWhole(nil, wholeHeader{
			epoch: 3, id: transferID{1, 2}, size: 500, at: 3 * pieceUnit, generation: 7, digest: 0x1122334455667788,
		}, []byte("note")),
	}
}

func TestFrames(t *testing.T) {
	for name, b := range exampleFrames() {
		f := frameReader{r: iotestOneByte{bytes.NewReader(append(bytes.Clone(b), "tail"...))}}
		_, payload, err := f.next()
		if err != nil || len(payload) != len(b)-frameHead-frameSum {
			t.Errorf("%s: %d bytes, %v", name, len(payload), err)
		}
		tail := make([]byte, 4)
		if _, err := f.readFull(tail); err != nil || string(tail) != "tail" {
			t.Errorf("%s: %q follows, %v", name, tail, err)
		}
		for i := range b {
			damaged := bytes.Clone(b)
			damaged[i] ^= 0x40
			f := frameReader{r: bytes.NewReader(damaged)}
			if _, _, err := f.next(); err == nil {
				t.Errorf("%s: damage of byte %d is not noticed", name, i)
			}
		}
		for n := range b {
			f := frameReader{r: bytes.NewReader(b[:n])}
			if _, _, err := f.next(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: of %d bytes: %v", name, n, err)
			}
		}
	}
	long := appendEnd(nil, 1, make([]byte, MaxNote))
	f := frameReader{r: bytes.NewReader(append(long, appendTaken(nil, 1)...))}
	if _, payload, err := f.next(); err != nil || len(payload) != 8+MaxNote {
		t.Error(len(payload), err)
	}
	if typ, _, err := f.next(); err != nil || typ != frameTaken {
		t.Error(typ, err)
	}
	huge := appendEnd(nil, 1, make([]byte, MaxNote+1))
	f = frameReader{r: bytes.NewReader(huge)}
	if _, _, err := f.next(); err == nil {
		t.Error("a frame which is too long was read")
	}
}

// iotestOneByte reads one byte at a time.
type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 1)]) }

func TestPeers(t *testing.T) {
	for _, c := range []struct {
		sent string
		want error
	}{
		{"\x16\x03\x01", errSpeaksTLS},
		{"\x15\x03\x01", errSpeaksTLS},
		{"penstock", errNotPenstock},
		{"GET / HTTP/1.1\r\n", errNotPenstock},
		{"pensx", io.EOF},
	} {
		f := frameReader{r: iotestOneByte{bytes.NewReader([]byte(c.sent))}}
		if _, err := f.readHello(); !errors.Is(err, c.want) {
			t.Errorf("%q: %v", c.sent, err)
		}
	}
	f := frameReader{r: bytes.NewReader(appendVerdict([]byte(magic), frameOutcome, newFailure(Invalid, "no")))}
	if _, err := f.readHello(); OutcomeOf(err) != Invalid {
		t.Errorf("a refusal reads as %v", err)
	}
	b := append(appendHello(nil, hello{least: 1, most: 3, token: "t"}), "more"...)
	f = frameReader{r: bytes.NewReader(b)}
	if h, err := f.readHello(); err != nil || h.token != "t" || !h.speaksOurVersion() {
		t.Errorf("%+v %v", h, err)
	}
}

func exampleDescriptor() Descriptor {
	return Descriptor{
		epoch: 5, id: transferID{9, 8, 7}, Size: 1000, Lease: 30 * time.Second,
		Endpoints: []OwnerAddress{{Shm, "host/penstock-xfer-1"}, {TCP, "127.0.0.1:7000"}},
	}
}

func TestDescriptor(t *testing.T) {
	d := exampleDescriptor()
	b, err := d.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeDescriptor(append(bytes.Clone(b), "added later"...))
	if err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v %v", got, err)
	}
	for n := range b {
		if _, err := DecodeDescriptor(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are a descriptor", n, len(b))
		}
	}
	b[0] = 2
	if _, err := DecodeDescriptor(b); err == nil {
		t.Error("a later version was read")
	}
	d.Endpoints = make([]OwnerAddress, maxEndpoints+1)
	if _, err := d.AppendBinary(nil); err == nil {
		t.Error("too many addresses were encoded")
	}
}

// FuzzDescriptor: what decodes encodes to the same bytes, up to additions.
func FuzzDescriptor(f *testing.F) {
	b, err := exampleDescriptor().AppendBinary(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:descriptorHead])
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeDescriptor(b)
		if err != nil {
			return
		}
		again, err := d.AppendBinary(nil)
		if err != nil || !bytes.HasPrefix(b, again) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
	})
}

// FuzzFrames: a stream of any bytes is read without a panic, and with bounded memory.
func FuzzFrames(f *testing.F) {
	for _, b := range exampleFrames() {
		f.Add(b)
	}
	f.Add(appendHello(nil, hello{least: 1, most: 1, token: "token"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		hello := frameReader{r: bytes.NewReader(b)}
		_, _ = hello.readHello() // must not panic
		r := frameReader{r: iotestOneByte{bytes.NewReader(b)}}
		for {
			typ, payload, err := r.next()
			if err != nil {
				break
			}
			decodeAny(t, typ, payload)
		}
		if len(r.buf) > 4*maxPayload {
			t.Fatalf("the buffer has %d bytes", len(r.buf))
		}
	})
}

// decodeAny decodes the payload of a frame. What decodes must be within its bounds.
func decodeAny(t *testing.T, typ frameType, payload []byte) {
	switch typ {
	case frameHello:
		if h, err := decodeHello(payload); err == nil && (len(h.token) > maxToken || h.least > h.most) {
			t.Fatalf("%+v", h)
		}
	case frameBegin:
		if h, err := decodeBegin(payload); err == nil && !bytes.HasPrefix(payload, appendBegin(nil, h)[frameHead:][:40]) {
			t.Fatalf("%+v", h)
		}
	case frameChunk:
		if h, err := decodeChunk(payload); err == nil && !bytes.HasPrefix(payload, appendChunk(nil, h)[frameHead:][:24]) {
			t.Fatalf("%+v", h)
		}
	case frameEnd:
		if _, note, err := decodeEnd(payload); err == nil && len(note) > MaxNote {
			t.Fatalf("a note of %d bytes", len(note))
		}
	case frameAbort, frameOutcome:
		if verdict, err := decodeVerdict(payload); err == nil && verdict != nil && len(verdict.Error()) > maxReason {
			t.Fatalf("a reason of %d bytes", len(verdict.Error()))
		}
	case frameRegion:
		if h, err := decodeRegion(payload); err == nil && (h.slots == 0 || h.size != h.slots*ChunkSize) {
			t.Fatalf("%+v", h)
		}
	case frameWhole:
		h, note, err := decodeWhole(payload)
		if err == nil && (h.size == 0 || h.size > ChunkSize || h.at+h.size > regionSize || len(note) > maxWholeNote) {
			t.Fatalf("%+v and a note of %d bytes", h, len(note))
		}
	case frameJoin:
		h, err := decodeJoin(payload)
		if err == nil && (len(h.address) > maxWorkerAddress || !bytes.HasPrefix(payload, appendJoin(nil, h)[frameHead:][:10+len(h.address)])) {
			t.Fatalf("%+v", h)
		}
	case frameTaken:
		_, _ = decodeTaken(payload) // any number is possible
	}
}

// FuzzOwner: an owner survives any bytes of a writer which is allowed to connect.
func FuzzOwner(f *testing.F) {
	for _, b := range exampleFrames() {
		f.Add(b)
	}
	src := []byte("0123456789")
	whole := appendChunk(nil, chunkHeader{size: 10, digest: digestBytes(src)})
	whole = append(whole, src...)
	f.Add(appendEnd(whole, DigestOf(src), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		into := make([]byte, 12)
		tr, l, sent := newBytesLane(t, into[:10:10])
		sent.Write(appendBegin(nil, beginHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 10}))
		sent.Write(b)
		_, begin, err := l.in.next()
		if err != nil {
			t.Fatal(err)
		}
		served := l.serveTransfer(begin)
		receipt, err := tr.Wait(t.Context())
		if err == nil && (receipt.Digest != DigestOf(into[:10]) || served != nil) {
			t.Fatalf("%+v for %q, %v", receipt, into, served)
		}
		if into[10] != 0 || into[11] != 0 {
			t.Fatal("bytes beyond the memory were written")
		}
	})
}

// TestStoredMessages: the messages of version 1 read as ever, and are written with the same bytes.
func TestStoredMessages(t *testing.T) {
	stored, err := os.ReadFile("testdata/messages-v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours := exampleFrames()
	ours["HELLO"] = appendHello(nil, hello{least: 1, most: 1, token: "token"})
	if ours["DESCRIPTOR"], err = exampleDescriptor().AppendBinary(nil); err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(stored)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		found++
		if got := hex.EncodeToString(ours[name]); got != text {
			t.Errorf("%s was %s and is %s", name, text, got)
		}
	}
	if found != len(ours) {
		t.Errorf("%d messages are stored, there are %d", found, len(ours))
	}
}

// TestOrderOfTransports: a descriptor names the fastest transport first.
func TestOrderOfTransports(t *testing.T) {
	want := []Transport{Mem, Shm, UCX, TCP}
	r := newRegistry(1, discardObserver{})
	for _, i := range []int{3, 2, 0, 1} {
		r.addEndpoint(OwnerAddress{want[i], "test"})
	}
	for i, e := range r.mu.endpoints {
		if e.Transport != want[i] {
			t.Errorf("%v is at place %d of %v", e.Transport, i, r.mu.endpoints)
		}
	}
}
