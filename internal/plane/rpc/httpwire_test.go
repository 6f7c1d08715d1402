package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"penstock/core/fault"
)

// golden returns the messages in a file of testdata, by name. A line is a name
// and bytes in hex, which may be of an older version; each must be readable for
// ever.
func golden(t testing.TB, file string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = b
	}
	return all
}

// read returns what a caller makes of the bytes of an answer.
func read(b []byte) (string, error) {
	var got []string
	err := receiveHTTP(context.Background(), iotest.OneByteReader(bytes.NewReader(b)), "a", "m", func(f []byte) error {
		got = append(got, string(f))
		return nil
	})
	return strings.Join(got, ","), err
}

func TestHTTPAnswersOnTheWire(t *testing.T) {
	for name, want := range map[string]string{
		"frames": "hello, nil",
		"fault":  "hello overloaded: queue full, 1.5s",
		"grease": "a,b nil",
		"cut":    "hello unavailable: call m: the connection to a broke: EOF, 0s",
		"short":  " unavailable: call m: the connection to a broke: unexpected EOF, 0s",
	} {
		frames, err := read(golden(t, "http-v1.txt")[name])
		got := frames + " nil"
		var f *fault.Error
		if errors.As(err, &f) {
			got = fmt.Sprintf("%s %v: %s, %v", frames, f.Code, f.Message, f.RetryAfter)
		}
		if got != want {
			t.Errorf("%s reads as %q, want %q", name, got, want)
		}
	}
}

// What this version writes is what is recorded.
func TestHTTPAnswersAsRecorded(t *testing.T) {
	frames := append(appendRecordHead(nil, recordFrame, 5), "hello"...)
	ok := appendEndRecord(appendRecordHead(bytes.Clone(frames), recordFrame, 0), nil)
	failed := appendEndRecord(bytes.Clone(frames), &fault.Error{Code: fault.Overloaded, Message: "queue full", Param: "p", RetryAfter: 1500 * time.Millisecond})
	g := golden(t, "http-v1.txt")
	if !bytes.Equal(ok, g["frames"]) || !bytes.Equal(failed, g["fault"]) {
		t.Errorf("written:\nframes %x\nfault %x", ok, failed)
	}
	for range 1000 {
		b := appendEndRecord(append(appendGreaseRecord(nil), frames...), nil)
		if got, err := read(b); got != "hello" || err != nil {
			t.Fatalf("%x reads as %q, %v", b, got, err)
		}
	}
}

// Memory follows what has come, not what was announced.
func TestHTTPRecordsGrowAsTheyCome(t *testing.T) {
	r := recordReader{r: bufio.NewReader(bytes.NewReader(append(appendRecordHead(nil, recordFrame, MaxFrame), 1, 2, 3)))}
	if _, _, err := r.readRecord(); err == nil || r.buf.Cap() > 64<<10 {
		t.Errorf("%d bytes are held for 3: %v", r.buf.Cap(), err)
	}
	if _, err := read(appendRecordHead(nil, recordFrame, MaxFrame+1)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a record beyond the limit: %v", err)
	}
}

// The transport may hold a body for longer than its call; it cannot read it then.
func TestHTTPBodyIsTheCallersAgain(t *testing.T) {
	src := &bodySource{}
	src.mu.b = []byte("body")
	r, err := src.newReader()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	if n, err := r.Read(b); n != 2 || err != nil || string(b) != "bo" {
		t.Errorf("%q, %v", b[:n], err)
	}
	src.closeReaders()
	if n, err := r.Read(b); n != 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the call: %d bytes, %v", n, err)
	}
}

func TestHTTPRecordsDoNotAllocate(t *testing.T) {
	one := append(appendRecordHead(nil, recordFrame, 40), make([]byte, 40)...)
	r := recordReader{r: bufio.NewReader(bytes.NewReader(bytes.Repeat(one, 2000)))}
	if n := testing.AllocsPerRun(1000, func() {
		if f, _, _, err := r.nextFrame(); err != nil || len(f) != 40 {
			t.Fatalf("%d bytes, %v", len(f), err)
		}
	}); n != 0 {
		t.Errorf("reading a frame allocates %v times", n)
	}
}

func FuzzHTTPAnswer(f *testing.F) {
	for _, b := range golden(f, "http-v1.txt") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var frames [][]byte
		err := receiveHTTP(t.Context(), bytes.NewReader(b), "a", "m", func(f []byte) error {
			frames = append(frames, bytes.Clone(f))
			return nil
		})
		var typed *fault.Error
		if err != nil && !errors.As(err, &typed) {
			t.Fatalf("an error without a code: %v", err)
		}
		// Written again it reads the same, whatever the pieces.
		var again []byte
		for _, f := range frames {
			again = append(appendRecordHead(again, recordFrame, len(f)), f...)
		}
		if err == nil {
			again = appendEndRecord(again, nil)
		}
		n := 0
		err2 := receiveHTTP(t.Context(), iotest.HalfReader(bytes.NewReader(again)), "a", "m", func(f []byte) error {
			if n >= len(frames) || !bytes.Equal(f, frames[n]) {
				t.Errorf("frame %d differs", n)
			}
			n++
			return nil
		})
		if n != len(frames) || (err == nil) != (err2 == nil) {
			t.Errorf("%d frames and %v, then %d and %v", len(frames), err, n, err2)
		}
	})
}

// Calls which waited while an attempt failed do not make an attempt each.
func TestHTTPDialFailuresAreShared(t *testing.T) {
	d := newHTTPDialer(time.Second)
	dials := 0
	cause := errors.New("no route")
	d.dial = func(context.Context, string, string) (net.Conn, error) { dials++; return nil, cause }
	before := context.WithValue(t.Context(), callStartKey{}, time.Now())
	for range 3 {
		if _, err := d.dialContext(before, "tcp", "a"); err == nil {
			t.Fatal("no error")
		}
	}
	if dials != 1 {
		t.Errorf("%d attempts by calls which waited, want 1", dials)
	}
	after := context.WithValue(t.Context(), callStartKey{}, time.Now())
	if _, err := d.dialContext(after, "tcp", "b"); err == nil || dials != 2 {
		t.Errorf("another address: %v after %d attempts", err, dials)
	}
	cause = nil
	if _, err := d.dialContext(after, "tcp", "a"); err != nil || dials != 3 {
		t.Errorf("a call that came later: %v after %d attempts", err, dials)
	}
	cause = errors.New("no route")
	if _, err := d.dialContext(before, "tcp", "a"); err == nil || dials != 4 {
		t.Errorf("after a success: %v after %d attempts", err, dials)
	}
	for i := range 3 * maxFailed {
		_, _ = d.dialContext(after, "tcp", fmt.Sprint(i))
	}
	if n := len(d.mu.failed); n > maxFailed {
		t.Errorf("%d failures are kept", n)
	}
}

func FuzzHTTPEnvelope(f *testing.F) {
	f.Add("1500", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")
	f.Add("4294967296", "", "a=b")
	f.Add("-1", strings.Repeat("x", 600), "")
	f.Fuzz(func(t *testing.T, ms, parent, state string) {
		h := http.Header{}
		h.Set(httpTimeoutHeader, ms)
		h.Set(traceParent, parent)
		h.Set(traceState, state)
		e := readEnvelope(h)
		if e.budget < 0 || len(e.parent) > maxTrace || len(e.state) > maxTrace {
			t.Fatalf("%+v", e)
		}
		ctx, cancel := e.handlerContext(t.Context())
		cancel()
		<-ctx.Done()
		again := http.Header{}
		writeEnvelope(again, e)
		if got := readEnvelope(again); got != e {
			t.Errorf("%+v came back as %+v", e, got)
		}
	})
}
