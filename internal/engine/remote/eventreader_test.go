package remote

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// naiveEvents reads a whole stream in the simplest way: "name|data" of each event.
func naiveEvents(stream string) (got []string) {
	name, data, has := "", []string(nil), false
	flush := func() {
		if data != nil || name != "" {
			got = append(got, name+"|"+strings.Join(data, "\n"))
		}
		name, data, has = "", nil, false
	}
	lines := strings.Split(stream, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	for _, line := range lines {
		line = strings.TrimSuffix(line, "\r")
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			flush()
		case key == "data":
			data, has = append(data, value), true
		case key == "event":
			name = value
		}
	}
	_ = has
	flush()
	return got
}

func readEvents(src io.Reader) (got []string, raw []byte, err error) {
	e := NewEventReader(src)
	defer e.Release()
	for {
		data, err := e.Next()
		if err != nil {
			return got, raw, err
		}
		got = append(got, string(e.name)+"|"+string(data))
		raw = append(raw, e.RawEvent()...)
	}
}

var streams = []string{
	"",
	"data: {\"a\":1}\n\ndata: [DONE]\n\n",
	"data: a\r\n\r\n: ping\r\n\r\ndata: b\r\n\r\n",
	": comment\n\ndata: x\n: inside\ndata: y\n\n",
	"event: response.created\ndata: {}\n\n",
	"event: message_stop\n\n",
	"id: 7\n\ndata:no space\n\ndata:  two spaces\n\n",
	"\n\n\ndata: after blanks\n\n",
	"data: unterminated",
	"data: line ended only\n",
	"data\n\ndata:\n\n",
	"retry: 100\ndata: " + strings.Repeat("long", 20_000) + "\n\ndata: next\n\n",
	":" + strings.Repeat("c", 40_000) + "\ndata: z\n\n",
}

func TestEventsAgreeWithNaive(t *testing.T) {
	for i, stream := range streams {
		want := naiveEvents(stream)
		for name, src := range map[string]io.Reader{
			"whole": strings.NewReader(stream), "bytes": iotest.OneByteReader(strings.NewReader(stream)),
			"halves": iotest.HalfReader(strings.NewReader(stream)), "eof with data": iotest.DataErrReader(strings.NewReader(stream)),
		} {
			got, raw, err := readEvents(src)
			if err != io.EOF || !slices.Equal(got, want) {
				t.Errorf("stream %d by %s: %.200q, %v; want %.200q", i, name, got, err, want)
			}
			if again, _, _ := readEvents(bytes.NewReader(raw)); !slices.Equal(again, want) || bytes.Contains(raw, []byte("ping")) {
				t.Errorf("stream %d by %s: its raw events read as %.200q", i, name, again)
			}
		}
	}
}

func TestEventsThatBreakOff(t *testing.T) {
	broken := errors.New("reset")
	got, _, err := readEvents(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || !slices.Equal(got, []string{"|a"}) {
		t.Errorf("%q, %v; want the first event and the error", got, err)
	}
	if _, _, err := readEvents(io.MultiReader(strings.NewReader("data: "), endless{})); !errors.Is(err, errLong) {
		t.Errorf("an event without end: %v", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestEventsDoNotAllocate(t *testing.T) {
	e := NewEventReader(&repeated{text: []byte("data: {\"choices\":[{\"index\":0,\"token_ids\":[17]}]}\n\n: ping\n\ndata: a\ndata: b\n\n")})
	for range 1000 {
		if _, err := e.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := e.Next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
}

// repeated is an endless repetition of a text.
type repeated struct {
	text []byte
	at   int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

func FuzzEvents(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, stream []byte, chunk int) {
		want := naiveEvents(string(stream))
		got, raw, err := readEvents(&chunked{stream, 1 + chunk&31})
		if err != io.EOF || !slices.Equal(got, want) {
			t.Fatalf("%q: %q, %v; want %q", stream, got, err, want)
		}
		if again, _, _ := readEvents(bytes.NewReader(raw)); !slices.Equal(again, want) {
			t.Fatalf("%q: its raw events %q read as %q", stream, raw, again)
		}
	})
}

// chunked returns a text in pieces.
type chunked struct {
	text []byte
	size int
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.text)
	c.text = c.text[n:]
	return n, nil
}
