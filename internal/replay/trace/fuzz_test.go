package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"penstock/internal/replay"
)

// wholeFile are the errors that are about no line.
var wholeFile = regexp.MustCompile(`: (is empty|has no request|unpack|is compressed|is a zip|is a Parquet|line \d+ fits no format)`)

// fuzzFormat runs files through one format, in order and sorted.
func fuzzFormat(f *testing.F, format Format, secret string) {
	seedScripts(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, sorted := range []bool{false, true} {
			w, err := openText(string(text), Options{Format: format, Sort: sorted, SortBytes: 4 << 10})
			if err == nil {
				err = checkRun(t, w)
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			checkError(t, err, text, secret)
		}
	})
}

// seedScripts adds the files of the scripts.
func seedScripts(f *testing.F) {
	paths, err := filepath.Glob("testdata/script/*")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	for _, path := range paths {
		script, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for part := range strings.SplitSeq(string(script), "\n\n") {
			_, file, ok := strings.Cut(part, "\n")
			if file, _, cut := strings.Cut(file, "\n----"); ok && cut {
				f.Add([]byte(file))
			}
		}
	}
}

// checkRun runs through w and holds what every request promises.
func checkRun(t *testing.T, w *Workload) error {
	s, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	var r replay.Request
	last, timed := time.Duration(0), false
	for i := 0; ; i++ {
		switch err := s.Next(&r); {
		case err == io.EOF && i == 0:
			t.Fatal("a file without requests has no fault")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if i == 0 {
			timed = r.At >= 0
		}
		prompts := 0
		for _, there := range []bool{r.Text != "", r.Messages != nil, r.Tokens != nil, r.Payload != nil} {
			if there {
				prompts++
			}
		}
		switch {
		case r.Index != i || r.Line < 1:
			t.Fatalf("request %d has index %d, line %d", i, r.Index, r.Line)
		case timed != (r.At >= 0), timed && r.At < last, i == 0 && r.At > 0:
			t.Fatalf("request %d at %v after %v", i, r.At, last)
		case r.Input < 1 || r.Input > max(maxTokens, maxLine), r.Output < 0 || r.Output > maxTokens:
			t.Fatalf("request %d: %d, %d tokens", i, r.Input, r.Output)
		case prompts > 1:
			t.Fatalf("request %d has %d prompts", i, prompts)
		case r.Delay < 0, r.Delay > 0 && r.Session == "":
			t.Fatalf("request %d waits %v in session %q", i, r.Delay, r.Session)
		case r.Blocks != nil && (r.BlockTokens < 1 || len(r.Blocks) > (r.Input+r.BlockTokens-1)/r.BlockTokens):
			t.Fatalf("request %d: %d blocks of %d for %d tokens", i, len(r.Blocks), r.BlockTokens, r.Input)
		}
		last = r.At
	}
}

// checkError holds that err says where it is, in characters that a terminal takes,
// and does not repeat secret.
func checkError(t *testing.T, err error, text []byte, secret string) {
	if err == nil {
		return
	}
	message := err.Error()
	if _, ok := errors.AsType[*rowError](err); !ok && !wholeFile.MatchString(message) {
		t.Fatalf("no line in %q", message)
	}
	if replaceUnprintable(message) != message || len(message) > 2000 {
		t.Fatalf("not printable: %q", message)
	}
	if secret != "" && bytes.Contains(text, []byte(secret)) && strings.Contains(message, secret) {
		t.Fatalf("repeats what the file says: %q", message)
	}
}

func FuzzMooncake(f *testing.F) { fuzzFormat(f, Mooncake, "") }

func FuzzBailian(f *testing.F) { fuzzFormat(f, Bailian, "") }

func FuzzAzure(f *testing.F) { fuzzFormat(f, Azure, "") }

func FuzzBurstGPT(f *testing.F) { fuzzFormat(f, BurstGPT, "") }

func FuzzShareGPT(f *testing.F) { fuzzFormat(f, ShareGPT, "") }

func FuzzDetect(f *testing.F) { fuzzFormat(f, "", "") }

// FuzzSecret puts a text where prompts are, whole or cut off, and looks for it in
// what is said of the file.
func FuzzSecret(f *testing.F) {
	f.Add(`{"text_input": "`, `"}`)
	f.Add(`{"messages": [{"role": "user", "content": "`, `"}], "x": 1}`)
	f.Add(`[{"conversations": [{"from": "`, `", "value": "x"}]}]`)
	f.Add(`[{"conversations": [{"from": "human", "value": "`, `]}`)
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,", ",7")
	f.Add("Timestamp,Request tokens,Response tokens\n", ",1,7")
	f.Add(`{"input_length": "`, `"}`)
	f.Add(`{"input_length": 512, "hash_ids": ["`, `"]}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		// Names of fields are told, up to 64 bytes of them: the secret is behind those.
		const secret = "what nobody may know is in this prompt, and it is no name: it is the swordfish"
		text := before + secret + after
		for _, format := range append(Formats(), "") {
			w, err := openText(text, Options{Format: format})
			if err == nil {
				err = checkRun(t, w)
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			checkError(t, err, []byte(text), "swordfish")
		}
	})
}

// FuzzIntegers holds the reading of lists against a naive one.
func FuzzIntegers(f *testing.F) {
	f.Add([]byte("[1, 22,333 , 0]"), uint64(math.MaxInt64))
	f.Add([]byte("[18446744073709551615,18446744073709551616]"), uint64(math.MaxUint64))
	f.Add([]byte("[1.0]"), uint64(9))
	f.Fuzz(func(t *testing.T, array []byte, limit uint64) {
		limit = min(limit, math.MaxInt64)
		want, wantWrong, ok := naiveIntegers(array, limit)
		if !ok {
			return
		}
		got, wrong := appendIntegers([]int64(nil), array, limit)
		if wrong != wantWrong || len(got) != len(want) {
			t.Fatalf("%s: %v, wrong %d; want %v, wrong %d", array, got, wrong, want, wantWrong)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: %v, want %v", array, got, want)
			}
		}
	})
}

// FuzzTime holds that times are never out of range and that the exact reading
// agrees with the one by floating point.
func FuzzTime(f *testing.F) {
	f.Add("61.114")
	f.Add("0.0000000019")
	f.Add("1e3")
	f.Add("2024-05-10 00:00:00.009930+00:00")
	f.Fuzz(func(t *testing.T, text string) {
		if at, err := new(timestampParser).parseTimestamp(text); err == nil && at < 0 {
			t.Fatalf("moment %q is %d", text, at)
		}
		for _, unit := range []time.Duration{time.Millisecond, time.Second} {
			at, err := parseTime(text, unit)
			if err == nil && (at < 0 || at > maxTime) {
				t.Fatalf("%q is %v", text, at)
			}
			if exact, ok := parseDecimal(text, unit); ok && exact != at {
				t.Fatalf("%q is %v and %v", text, exact, at)
			}
		}
		if n, err := parseCount(text, 1000); err == nil && (n < 0 || n > 1000) {
			t.Fatalf("%q is %d", text, n)
		}
	})
}

// FuzzStream holds the cutting of an array into its elements against
// encoding/json.
func FuzzStream(f *testing.F) {
	f.Add([]byte(`[{"a": "\" } \\"}, {"b": [{}, "]"]} , {}]`))
	f.Add([]byte(" [\n{}\n]\n"))
	f.Add([]byte(`{"a": 1} {"b": 2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want []json.RawMessage
		if json.Unmarshal(text, &want) != nil {
			return
		}
		for _, e := range want {
			if e[0] != '{' {
				return
			}
		}
		s := elementReader{from: bufio.NewReader(bytes.NewReader(text))}
		for i, e := range want {
			got, line, err := s.nextElement()
			if err != nil || !bytes.Equal(got, e) {
				t.Fatalf("%q: element %d is %q, %v; want %q", text, i, got, err, e)
			}
			if before := bytes.Count(text, []byte("\n")); line < 1 || line > before+1 {
				t.Fatalf("%q: element %d is on line %d", text, i, line)
			}
		}
		if got, _, err := s.nextElement(); err != io.EOF && len(want) > 0 {
			t.Fatalf("%q: then %q, %v", text, got, err)
		}
	})
}
