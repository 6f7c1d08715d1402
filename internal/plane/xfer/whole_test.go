package xfer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestAbortInTheMiddle: over TCP an owner aborts small transfers whose bytes have not all come. They are over at once,
// and one behind them on the connection comes as ever.
func TestAbortInTheMiddle(t *testing.T) {
	p, ctx := runTCP(t, TCPConfig{}), t.Context()
	claimed := make(chan struct{})
	var aborted [2]*Transfer
	for i := range aborted {
		var err error
		if aborted[i], err = p.Expect(Incoming{Into: [][]byte{make([]byte, 100)}}); err != nil {
			t.Fatal(err)
		}
	}
	into := make([]byte, 10)
	last, err := p.Expect(Incoming{Into: [][]byte{into}, OnProgress: func(int64) { close(claimed) }})
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := last.desc.endpoint(TCP)
	l, err := p.dialLane(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	src := bytes.Repeat([]byte{7}, 100)
	whole := func(tr *Transfer, b []byte) []byte {
		h := wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: uint32(len(b)), digest: digestBytes(b)}
		return append(appendWhole(nil, h, nil), b...)
	}
	var rest []byte
	for _, tr := range aborted {
		stream := append(rest, whole(tr, src)...)
		cut := len(stream) - 50
		if _, err := l.conn.Write(stream[:cut]); err != nil {
			t.Fatal(err)
		}
		for tr.usedTransport() == 0 { // until the owner reads its bytes
			runtime.Gosched()
		}
		tr.Abort(errors.New("not needed"))
		rest = bytes.Clone(stream[cut:])
	}
	if _, err := l.conn.Write(append(rest, whole(last, src[:10])...)); err != nil {
		t.Fatal(err)
	}
	<-claimed
	if _, err := last.Wait(ctx); err != nil || !bytes.Equal(into, src[:10]) {
		t.Error(err)
	}
	var got []string
	for len(got) < 4 {
		typ, payload, err := l.in.next()
		if err != nil {
			t.Fatal(got, err)
		}
		if typ != frameOutcome {
			got = append(got, fmt.Sprint("frame ", typ))
			continue
		}
		verdict, err := decodeVerdict(payload)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, OutcomeOf(verdict).String())
	}
	if want := "[aborted frame 9 aborted ok]"; fmt.Sprint(got) != want {
		t.Errorf("the owner answers %v, not %s", got, want)
	}
}

// TestHostileWhole: whatever comes as a small transfer, the owner announces only what has the writer's digest, tells
// the writer the same, and asks it to close the connection after a failure and where others wait.
func TestHostileWhole(t *testing.T) {
	src := []byte("0123456789")
	torn := bytes.Clone(src)
	torn[9] ^= 1
	for name, c := range map[string]struct {
		bytes  []byte
		digest Digest
		want   TransferOutcome
		waits  bool // another connection, for room
	}{
		"good":         {src, digestBytes(src), OK, false},
		"another":      {src, digestBytes(src), OK, true},
		"torn":         {torn, digestBytes(src), Corrupt, false},
		"other digest": {src, digestBytes(src) + 1, Corrupt, false},
		"cut off":      {src[:9], digestBytes(src), Lost, false},
	} {
		tr, l, sent := newBytesLane(t, make([]byte, 10))
		sent.Write(c.bytes)
		if c.waits {
			l.owner.waiting.Add(1)
		}
		whole := appendWhole(nil, wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: 10, digest: c.digest}, nil)
		served := l.serveWhole(whole[frameHead : len(whole)-frameSum])
		if _, err := tr.Wait(t.Context()); OutcomeOf(err) != c.want {
			t.Errorf("%s: the owner got %v, not %v", name, err, c.want)
		}
		if c.want == Lost {
			if served == nil {
				t.Errorf("%s: the connection goes on", name)
			}
			continue
		}
		told := frameReader{r: bytes.NewReader(l.out)}
		typ, payload, err := told.next()
		if err != nil || typ != frameOutcome {
			t.Fatalf("%s: %d %v", name, typ, err)
		}
		if verdict, err := decodeVerdict(payload); err != nil || OutcomeOf(verdict) != c.want || served != nil {
			t.Errorf("%s: the writer is told %v, not %v; %v %v", name, verdict, c.want, err, served)
		}
		if typ, _, err := told.next(); (err == nil && typ == frameRetire) != (c.want != OK || c.waits) {
			t.Errorf("%s: a frame of type %d follows, %v", name, typ, err)
		}
	}
}

// TestPieces: findPiece finds the first free run of any length, and none where there is none.
func TestPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	for range 1000 {
		free := rng.Uint64() | rng.Uint64()
		for count := 1; count <= regionUnits/4; count++ {
			want, found := piece{}, false
			for at := 0; at+count <= regionUnits && !found; at++ {
				p := piece{at, count}
				if free&p.mask() == p.mask() {
					want, found = p, true
				}
			}
			if got, ok := findPiece(free, count); ok != found || got != want {
				t.Fatalf("%d of %x: %v %v, want %v %v", count, free, got, ok, want, found)
			}
		}
	}
	if p, ok := findPiece(1<<regionUnits-1, regionUnits); !ok || p.mask() != 1<<64-1 {
		t.Errorf("the whole region: %v %v", p, ok)
	}
}

// FuzzWhole: an owner survives any bytes on a connection for small transfers, and announces only its own.
func FuzzWhole(f *testing.F) {
	src := []byte("0123456789")
	f.Add([]byte("note"), append(bytes.Clone(src), appendRetire(nil)...), uint64(digestBytes(src)), uint32(10))
	f.Add([]byte{}, src[:5], uint64(1), uint32(5))
	f.Fuzz(func(t *testing.T, note, rest []byte, digest uint64, size uint32) {
		into := make([]byte, 12)
		tr, l, sent := newBytesLane(t, into[:10:10])
		sent.Write(appendWhole(nil, wholeHeader{epoch: tr.desc.epoch, id: tr.desc.id, size: size, digest: Digest(digest)}, note))
		sent.Write(rest)
		var served error
		for served == nil {
			typ, payload, err := l.in.next()
			if err != nil {
				served = err
			} else if typ == frameWhole {
				served = l.serveWhole(payload)
			}
		}
		tr.abortWith(served)
		receipt, err := tr.Wait(t.Context())
		if err == nil && (receipt.Digest != DigestOf(into[:10]) || !bytes.Equal(receipt.Note, note)) {
			t.Fatalf("%+v for %q", receipt, into)
		}
		if into[10] != 0 || into[11] != 0 {
			t.Fatal("bytes beyond the memory were written")
		}
	})
}
