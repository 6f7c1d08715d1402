package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock/internal/replay"
)

// The files of the benchmarks: made up, of the shape of the published ones.

func mooncakeRows(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	name := 0
	for i := range n {
		blocks := 1 + rng.IntN(60)
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [`, i*250, 512*blocks-rng.IntN(512), 1+rng.IntN(400))
		for j := range blocks {
			if j > 0 {
				b.WriteString(", ")
			}
			name++
			fmt.Fprint(&b, name)
		}
		b.WriteString("]}\n")
	}
	return b.String()
}

func azureRows(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	at := time.Date(2024, 5, 10, 0, 0, 0, 0, time.UTC)
	var b strings.Builder
	b.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for range n {
		at = at.Add(time.Duration(1+rng.IntN(1e8)) * time.Microsecond)
		fmt.Fprintf(&b, "%s,%d,%d\n", at.Format("2006-01-02 15:04:05.000000-07:00"), 1+rng.IntN(8000), 1+rng.IntN(500))
	}
	return b.String()
}

func burstRows(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
	for i := range n {
		fmt.Fprintf(&b, "%d,ChatGPT,%d,%d,0,Conversation log\n", i, 1+rng.IntN(8000), 1+rng.IntN(500))
	}
	return b.String()
}

func conversationText(n int) string {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("the quick brown fox jumps over a lazy dog, and \\\"why\\\" nobody knows.\\n")
	var b strings.Builder
	say := func(from string) {
		fmt.Fprintf(&b, `{"from": %q, "value": "`, from)
		for range 1 + rng.IntN(200) {
			b.WriteString(words[rng.IntN(len(words))])
			b.WriteByte(' ')
		}
		b.WriteString(`"}`)
	}
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, `{"id": "c%d", "conversations": [`, i)
		for range 1 + rng.IntN(5) {
			say("human")
			b.WriteByte(',')
			say("gpt")
			b.WriteByte(',')
		}
		say("human")
		b.WriteString("]}")
	}
	b.WriteByte(']')
	return b.String()
}

// BenchmarkRead reads a file of each format, and one of Mooncake rows by
// encoding/json beside it.
func BenchmarkRead(b *testing.B) {
	for _, tc := range []struct {
		format Format
		text   string
	}{
		{Mooncake, mooncakeRows(5000)},
		{Azure, azureRows(50_000)},
		{BurstGPT, burstRows(50_000)},
		{ShareGPT, conversationText(1000)},
	} {
		b.Run(string(tc.format), func(b *testing.B) {
			w, err := Open(write(b, "trace", tc.text), Options{})
			if err != nil {
				b.Fatal(err)
			}
			if w.Format() != tc.format {
				b.Fatal(w.Format())
			}
			b.SetBytes(int64(len(tc.text)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := run(w); n == 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
	b.Run("mooncake-by-encoding-json", func(b *testing.B) {
		text := mooncakeRows(5000)
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			if n := readByJSON(text); n != 5000 {
				b.Fatal(n)
			}
		}
	})
}

// run runs through w and returns the number of requests.
func run(w replay.Workload) (n int, err error) {
	s, err := w.Open()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var r replay.Request
	for {
		switch err := s.Next(&r); err {
		case nil:
			n++
		case io.EOF:
			return n, nil
		default:
			return n, err
		}
	}
}

// readByJSON is how one reads such a file with what Go has.
func readByJSON(text string) (n int) {
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, maxLine)
	var row struct {
		Timestamp float64 `json:"timestamp"`
		Input     int     `json:"input_length"`
		Output    int     `json:"output_length"`
		Blocks    []int64 `json:"hash_ids"`
	}
	for lines.Scan() {
		row.Blocks = row.Blocks[:0]
		if json.Unmarshal(lines.Bytes(), &row) == nil {
			n++
		}
	}
	return n
}

// TestMemory: what is held while a file is read does not grow with the file, but
// for a row.
func TestMemory(t *testing.T) {
	for format, text := range map[Format]string{
		Mooncake: mooncakeRows(8000),
		Azure:    azureRows(30_000),
		BurstGPT: burstRows(30_000),
		ShareGPT: conversationText(2000),
	} {
		w, err := Open(write(t, "trace", text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.Open()
		if err != nil {
			t.Fatal(err)
		}
		var r replay.Request
		const slack = 512 << 10
		var begin uint64
		for i := 0; ; i++ {
			if err := s.Next(&r); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if i == 1000 {
				begin = live()
			}
		}
		end := live()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if end > begin+slack {
			t.Errorf("%s: %d bytes more after %d bytes of file", format, end-begin, len(text))
		}
	}
}

func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAllocations: a row costs few allocations, however many blocks it has.
func TestAllocations(t *testing.T) {
	text := mooncakeRows(2000)
	w, err := Open(write(t, "trace", text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	perRun := testing.AllocsPerRun(3, func() {
		if n, err := run(w); n != 2000 || err != nil {
			t.Fatal(n, err)
		}
	})
	if perRow := perRun / 2000; perRow > 20 {
		t.Errorf("%.1f allocations for a row", perRow)
	}
}

// TestAgainstJSON: the rows are what encoding/json makes of them.
func TestAgainstJSON(t *testing.T) {
	text := mooncakeRows(500)
	w, err := openText(text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rows := json.NewDecoder(bytes.NewReader([]byte(text)))
	var r replay.Request
	for i := range 500 {
		var want struct {
			Timestamp int64   `json:"timestamp"`
			Input     int     `json:"input_length"`
			Output    int     `json:"output_length"`
			Blocks    []int64 `json:"hash_ids"`
		}
		if err := rows.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if err := s.Next(&r); err != nil {
			t.Fatal(err)
		}
		if r.At != time.Duration(want.Timestamp)*time.Millisecond || r.Input != want.Input || r.Output != want.Output ||
			fmt.Sprint(r.Blocks) != fmt.Sprint(want.Blocks) || r.Line != i+1 {
			t.Fatalf("row %d: %+v, want %+v", i, r, want)
		}
	}
}
