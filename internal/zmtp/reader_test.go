package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/iotest"
)

// event is a message or a command of a stream.
type event struct {
	frames  []string
	command string
}

// naive reads a stream frame by frame: what the reader must find, in that order,
// and whether the stream ends well.
func naive(r io.Reader, limit int64, maxFrames int) (found []event, err error) {
	var frames []string
	var size int64
	for {
		var flags, short [1]byte
		if _, err := io.ReadFull(r, flags[:]); err != nil {
			return found, err
		}
		var n uint64
		if flags[0]&2 != 0 {
			var long [8]byte
			if _, err := io.ReadFull(r, long[:]); err != nil {
				return found, err
			}
			n = binary.BigEndian.Uint64(long[:])
		} else {
			if _, err := io.ReadFull(r, short[:]); err != nil {
				return found, err
			}
			n = uint64(short[0])
		}
		command := flags[0]&4 != 0
		switch {
		case flags[0] > 7 || command && flags[0]&1 != 0:
			return found, ErrProtocol
		case command && n > maxCommand, !command && n > uint64(limit-size), !command && len(frames) == maxFrames:
			return found, ErrTooLarge
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return found, err
		}
		if command {
			found = append(found, event{command: string(body)})
			continue
		}
		frames = append(frames, string(body))
		size += int64(n)
		if flags[0]&1 == 0 {
			found = append(found, event{frames: frames})
			frames, size = nil, 0
		}
	}
}

// read is what the reader finds.
func read(src io.Reader, limit int64, maxFrames int) (found []event, err error) {
	rd := frameReader{src: src, maxMessage: limit, maxFrames: maxFrames}
	for {
		kind, body, err := rd.nextToken()
		switch {
		case err != nil:
			return found, err
		case kind == tokenCommand:
			found = append(found, event{command: string(body)})
		case kind == tokenMessage:
			var e event
			for _, f := range rd.frames {
				e.frames = append(e.frames, string(f))
			}
			found = append(found, e)
		default:
			if err := rd.fillBuffer(); err != nil {
				return found, err
			}
		}
	}
}

// randomStream is messages and commands of many sizes, commands between frames too.
func randomStream(rng *rand.Rand, events int) []byte {
	var b []byte
	body := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		return p
	}
	size := func() int {
		return []int{0, 1, 8, 255, 256, 2000, 20_000, 300_000}[rng.IntN(8)] + rng.IntN(3)
	}
	for range events {
		n := 1 + rng.IntN(4)
		for i := range n {
			if rng.IntN(6) == 0 {
				b = appendCommand(b, "PING", string(body(2+rng.IntN(16))))
			}
			flags := byte(flagMore)
			if i == n-1 {
				flags = 0
			}
			p := body(size())
			b = append(appendHeader(b, flags, len(p)), p...)
		}
	}
	return b
}

// dribble returns what it has in pieces of random sizes.
type dribble struct {
	b   []byte
	rng *rand.Rand
	max int
}

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.b[:min(len(d.b), 1+d.rng.IntN(d.max))])
	d.b = d.b[n:]
	return n, nil
}

func TestReaderFindsWhatANaiveOneDoes(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		stream := randomStream(rng, 25)
		stream = stream[:len(stream)-rng.IntN(5)] // some end inside a message
		want, wantErr := naive(bytes.NewReader(stream), 64<<20, 256)
		got, err := read(&dribble{stream, rng, []int{1 + 40*rng.IntN(2), 3000, 1 << 20}[rng.IntN(3)]}, 64<<20, 256)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %d events, the naive reader finds %d", seed, len(got), len(want))
		}
		if !errors.Is(err, io.EOF) || !errors.Is(wantErr, io.EOF) && !errors.Is(wantErr, io.ErrUnexpectedEOF) {
			t.Fatalf("seed %d: ends with %v, the naive reader with %v", seed, err, wantErr)
		}
	}
}

func TestReaderBounds(t *testing.T) {
	long := binary.BigEndian.AppendUint64
	for _, c := range []struct {
		name   string
		stream []byte
		want   error
	}{
		{"a frame over the limit", long([]byte{2}, 1001), ErrTooLarge},
		{"a frame of 2^63 bytes", long([]byte{2}, 1<<63), ErrTooLarge},
		{"a frame of 2^64-1 bytes", long([]byte{2}, 1<<64-1), ErrTooLarge},
		{"frames over the limit together", append(appendMessage(nil, [][]byte{make([]byte, 600), make([]byte, 500)}), 0, 0), ErrTooLarge},
		{"frames up to the limit", appendMessage(nil, [][]byte{make([]byte, 600), make([]byte, 400)}), io.EOF},
		{"too many frames", bytes.Repeat([]byte{1, 0}, 5), ErrTooLarge},
		{"as many frames as may be", append(bytes.Repeat([]byte{1, 0}, 3), 0, 0), io.EOF},
		{"a command over the limit", long([]byte{6}, maxCommand+1), ErrTooLarge},
		{"a command with more to come", []byte{5, 0}, ErrProtocol},
		{"reserved flags", []byte{8, 0}, ErrProtocol},
		{"commands without end inside a message", append([]byte{1, 0}, bytes.Repeat(appendCommand(nil, "PING", "\x00\x00"), 1<<15)...), ErrTooLarge},
	} {
		if _, err := read(iotest.OneByteReader(bytes.NewReader(c.stream)), 1000, 4); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestReaderMemory holds that memory follows what came, not what was announced, and
// is given back.
func TestReaderMemory(t *testing.T) {
	head := appendHeader(nil, 0, 60<<20)
	rd := frameReader{src: bytes.NewReader(append(head, make([]byte, 300_000)...)), maxMessage: 64 << 20, maxFrames: 4}
	for {
		if _, _, err := rd.nextToken(); err != nil {
			t.Fatal(err)
		}
		if rd.fillBuffer() != nil {
			break
		}
	}
	if len(rd.buf) > 2*fullBuffer {
		t.Errorf("300 kB of a message of 60 MiB take a buffer of %d bytes", len(rd.buf))
	}

	stream := appendMessage(nil, [][]byte{make([]byte, 10<<20)})
	small := appendMessage(nil, strs("a", "b"))
	for range 2000 {
		stream = append(stream, small...)
	}
	rd = frameReader{src: &dribble{stream, rand.New(rand.NewPCG(1, 1)), 64 << 10}, maxMessage: 64 << 20, maxFrames: 4}
	rd.src = io.MultiReader(bytes.NewReader(stream[:len(stream)-1000*len(small)]), iotest.OneByteReader(bytes.NewReader(stream[len(stream)-1000*len(small):])))
	largest, messages := 0, 0
	for {
		kind, _, err := rd.nextToken()
		if err != nil {
			t.Fatal(err)
		}
		if kind == tokenMessage {
			messages++
			continue
		}
		largest = max(largest, len(rd.buf))
		if rd.fillBuffer() != nil {
			break
		}
	}
	if messages != 2001 || largest < 10<<20 || len(rd.buf) > fullBuffer {
		t.Errorf("%d messages; the buffer had %d bytes for a message of 10 MiB, and %d at the end", messages, largest, len(rd.buf))
	}
}

// loop repeats a stream for ever.
type loop struct {
	b  []byte
	at int
}

func (l *loop) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], l.b[l.at:])
		n, l.at = n+c, (l.at+c)%len(l.b)
	}
	return n, nil
}

func TestReaderDoesNotAllocate(t *testing.T) {
	for _, size := range []int{200, 2000, 20_000} {
		stream := appendMessage(nil, [][]byte{[]byte("kv@pod"), make([]byte, 8), make([]byte, size)})
		l := &peerConn{opts: new(Options{}.withDefaults()), rd: frameReader{src: &loop{b: stream}, maxMessage: 64 << 20, maxFrames: 256}}
		message := func() {
			if frames, _, err := l.nextMessage(); err != nil || len(frames) != 3 {
				t.Fatal(len(frames), err)
			}
		}
		for range 20_000 {
			message()
		}
		if n := testing.AllocsPerRun(10_000, message); n != 0 {
			t.Errorf("a message of %d bytes costs %v allocations", size, n)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 0}, uint8(1))
	f.Add(appendMessage(nil, strs("topic", "12345678", "payload")), uint8(7))
	f.Add(append([]byte{1, 0}, append(appendCommand(nil, "PING", "\x00\x00abc"), 0, 1, 'x')...), uint8(3))
	f.Add(appendHeader(nil, 0, 300), uint8(200))
	f.Fuzz(func(t *testing.T, stream []byte, step uint8) {
		const limit, maxFrames = 2000, 5
		want, wantErr := naive(bytes.NewReader(stream), limit, maxFrames)
		got, err := read(&dribble{stream, rand.New(rand.NewPCG(uint64(step), 2)), 1 + int(step)}, limit, maxFrames)
		if errors.Is(err, ErrTooLarge) && !errors.Is(wantErr, ErrTooLarge) {
			return // commands inside a message, which the naive reader does not hold
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("found %v, want %v", got, want)
		}
		// The naive reader wants a whole header before it judges the flags.
		if errors.Is(err, ErrProtocol) != errors.Is(wantErr, ErrProtocol) && !errors.Is(wantErr, io.ErrUnexpectedEOF) {
			t.Fatalf("ended with %v, want %v", err, wantErr)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	for _, size := range []int{200, 2000, 20_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			stream := appendMessage(nil, [][]byte{[]byte("kv@pod"), make([]byte, 8), make([]byte, size)})
			l := &peerConn{opts: new(Options{}.withDefaults()), rd: frameReader{src: &loop{b: stream}, maxMessage: 64 << 20, maxFrames: 256}}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := l.nextMessage(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
