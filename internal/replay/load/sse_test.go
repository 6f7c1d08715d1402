package load

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// read gives the events of text, read in pieces of the given size.
func readEvents(text string, size int) ([]string, error) {
	var e sseDecoder
	var out []string
	for len(text) > 0 {
		n := min(size, len(text))
		err := e.decodePiece([]byte(text[:n]), func(data []byte, isError bool) error {
			out = append(out, fmt.Sprint(string(data), " ", isError))
			return nil
		})
		if err != nil {
			return out, err
		}
		text = text[n:]
	}
	return out, nil
}

// naiveEvents is the standard, word for word, over a whole text.
func naiveEvents(text string) []string {
	lines := regexp.MustCompile("\r\n|\r|\n").Split(text, -1)
	lines = lines[:len(lines)-1] // the last has no end
	var out, data []string
	event := ""
	for i, line := range lines {
		if i == 0 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				out = append(out, fmt.Sprint(strings.Join(data, "\n"), " ", event == "error"))
			}
			data, event = nil, ""
		case name == "data":
			data = append(data, value)
		case name == "event":
			event = value
		}
	}
	return out
}

func TestEvents(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"two", "data: a\n\ndata: b\n\n", []string{"a false", "b false"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a false", "b false"}},
		{"CR", "data: a\r\rdata: b\r\r", []string{"a false", "b false"}},
		{"lines", "data: a\ndata:b\ndata\n\n", []string{"a\nb\n false"}},
		{"comments", ": keep-alive\n\n:\n\ndata: a\n: x\n\n", []string{"a false"}},
		{"others", "id: 7\nretry: 9\nname\n\ndata: a\nid: 8\n\n", []string{"a false"}},
		{"errors", "event: error\ndata: a\n\nevent: message\ndata: b\n\n", []string{"a true", "b false"}},
		{"an error without data", "event: error\n\ndata: b\n\n", []string{"b false"}},
		{"spaces", "data:  a\n\n data: b\n\n", []string{" a false"}},
		{"mark", "\ufeffdata: a\n\n\ufeffdata: b\n\n", []string{"a false"}},
		{"cut off", "data: a\n\ndata: b\n", []string{"a false"}},
	} {
		for size := 1; size < 8; size++ {
			got, err := readEvents(tt.text, size)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s in pieces of %d: %q, %v; want %q", tt.name, size, got, err, tt.want)
			}
		}
		if got := naiveEvents(tt.text); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: the twin has %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestEventsAreBounded(t *testing.T) {
	long := strings.Repeat("x", maxEvent/2)
	for name, text := range map[string]string{
		"line": "data: " + long + long + long,
		"data": "data: " + long + "\ndata: " + long + "\ndata: " + long + "\n",
	} {
		if _, err := readEvents(text, 1<<16); !errors.Is(err, errEvent) {
			t.Errorf("endless %s: %v", name, err)
		}
	}
}

// FuzzEvents: in whatever pieces a stream comes, its events are those of the twin.
func FuzzEvents(f *testing.F) {
	f.Add("data: a\r\n\r\nevent: error\ndata: b\r\rdata\n\n: c\n\n", uint8(3))
	f.Add("\ufeffdata: a\n\n", uint8(0))
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		want := naiveEvents(text)
		for _, n := range []int{1, int(size) + 1, len(text) + 1} {
			got, err := readEvents(text, n)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q in pieces of %d: %q, %v; want %q", text, n, got, err, want)
			}
		}
	})
}
