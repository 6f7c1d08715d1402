package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/replay"
)

const twoRows = `{"timestamp": 5, "input_length": 600, "hash_ids": [1, 2]}
{"timestamp": 9, "input_length": 8, "output_length": 3}
`

const twoRowsRead = `mooncake
0 line 1: at=0s in=600 blocks=[1 2] of 512
1 line 2: at=4ms in=8 out=3
`

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func pack(t testing.TB, texts ...string) string {
	t.Helper()
	var b bytes.Buffer
	for _, text := range texts {
		z := gzip.NewWriter(&b)
		if _, err := io.WriteString(z, text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestFiles: a file is the same however it is packed, and each time it is opened.
func TestFiles(t *testing.T) {
	for name, text := range map[string]string{
		"plain":                twoRows,
		"gzip":                 pack(t, twoRows),
		"gzip, two members":    pack(t, twoRows[:70], twoRows[70:]),
		"byte order mark":      "\ufeff" + twoRows,
		"the mark, packed":     pack(t, "\ufeff"+twoRows),
		"carriage returns":     strings.ReplaceAll(twoRows, "\n", "\r\n"),
		"no end of line":       strings.TrimSuffix(twoRows, "\n"),
		"space around the row": strings.ReplaceAll(twoRows, "}", "}  \t"),
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "trace", text)
			for _, from := range []string{path, "-"} {
				w, err := Open(from, Options{Stdin: strings.NewReader(text)})
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if got, err := readAll(t, w); got != twoRowsRead || err != nil {
						t.Errorf("from %s: got\n%s%v", from, got, err)
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestSourcesAtOnce: the runs of one workload do not disturb each other.
func TestSourcesAtOnce(t *testing.T) {
	w, err := Open("-", Options{Stdin: strings.NewReader(twoRows)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var sources [3]replay.Source
	for i := range sources {
		if sources[i], err = w.Open(); err != nil {
			t.Fatal(err)
		}
	}
	var r replay.Request
	for i := range 2 {
		for _, s := range sources {
			if err := s.Next(&r); err != nil || r.Index != i {
				t.Errorf("request %d: %d, %v", i, r.Index, err)
			}
		}
	}
	for _, s := range sources {
		if err := s.Next(&r); err != io.EOF {
			t.Error(err)
		}
		if err := s.Next(&r); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestClosed(t *testing.T) {
	path := write(t, "trace", twoRows)
	w, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	var r replay.Request
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Next(&r); err == nil || err == io.EOF {
		t.Errorf("Next of a closed source: %v", err)
	}
	w, err = Open("-", Options{Stdin: strings.NewReader(twoRows)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.Open(); err == nil {
		t.Error("Open of a closed workload")
	}
}

// TestPipe: what can be read once is copied, and can then be read again.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(path, []byte(twoRows), 0o600) }()
	w, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := readAll(t, w); got != twoRowsRead || err != nil {
			t.Errorf("got\n%s%v", got, err)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	for _, tc := range []struct {
		name, text, want string
	}{
		{"cut gzip", pack(t, strings.Repeat(twoRows, 500))[:60], "line 1: unexpected EOF"},
		{"no gzip", "\x1f\x8b" + strings.Repeat("nothing ", 9), "unpack gzip: gzip: invalid header"},
		{"zstd", "\x28\xb5\x2f\xfdxyz", "is compressed by zstd; only gzip is read, so unpack it first"},
		{"parquet", "PAR1....", "is a Parquet file; write it as JSON lines first"},
		{"xz", "\xfd7zXZ\x00", "is compressed by xz; only gzip is read, so unpack it first"},
		{"bzip2", "BZh91AY", "is compressed by bzip2; only gzip is read, so unpack it first"},
		{"zip", "PK\x03\x04...", "is a zip archive; only gzip is read, so unpack it first"},
		{"long line", `{"text_input": "` + strings.Repeat("x", maxLine) + `"}`, "line 1: is longer than 16 MiB"},
	} {
		path := write(t, "trace", tc.text)
		_, err := Open(path, Options{})
		if want := "read trace " + path + ": " + tc.want; err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", tc.name, err, want)
		}
	}
	for path, want := range map[string]string{
		dir:     "is a directory; name a file in it",
		missing: "no such file or directory",
	} {
		if _, err := Open(path, Options{}); err == nil || err.Error() != "read trace "+path+": "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Open("-", Options{}); err == nil || err.Error() != "read trace <stdin>: there is no standard input here; name a file" {
		t.Error(err)
	}
	_, err := Open("-", Options{Stdin: strings.NewReader(twoRows), SpoolBytes: int64(len(twoRows)) - 1})
	if want := fmt.Sprintf("more than %d bytes", len(twoRows)-1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestFaultsFurtherOn: what is wrong behind the first row is found on the way, and the
// source then stays ended.
func TestFaultsFurtherOn(t *testing.T) {
	rows := strings.Repeat(twoRows[strings.IndexByte(twoRows, '\n')+1:], 5000)
	long := `{"text_input": "` + strings.Repeat("x", maxLine) + `"}`
	for name, tc := range map[string]struct{ text, want string }{
		"cut gzip":  {pack(t, rows)[:len(pack(t, rows))/2], "unexpected EOF"},
		"long line": {rows + long, "line 5001: is longer than 16 MiB"},
		"no UTF-8":  {rows + "{\"text_input\": \"\xff\"}", "line 5001: the row is not valid UTF-8 (byte 16)"},
		"long conversation": {
			`[{"conversations": []}, {"id": "` + strings.Repeat("x", maxLine) + `"}]`,
			"line 1: conversation 2: is longer than 16 MiB",
		},
		"many turns": {
			`[{"conversations": [` + strings.Repeat(`{"from":"human","value":""},`, maxTurns) + `{"from":"human","value":""}]}]`,
			"line 1: conversation 1: 'conversations' has more than 16384 turns",
		},
		"many images": {
			`{"input_length": 1, "images": [` + strings.Repeat(`"a",`, maxMedia) + `"a"]}`,
			"line 1: 'images' makes more than 1024 images, videos and pieces of audio",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := Open(write(t, "trace", tc.text), Options{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var r replay.Request
			for err == nil {
				err = s.Next(&r)
			}
			if !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
			if again := s.Next(&r); again != err {
				t.Errorf("then %v", again)
			}
		})
	}
}

// TestChanged: a run of a file that is no longer what it was is no run of it.
func TestChanged(t *testing.T) {
	path := write(t, "trace", twoRows)
	w, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Open(); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Error(err)
	}
}

// TestSlicesAreTheSources: a request that a caller keeps with its slices cloned is
// not changed by the next one, and a request without blocks has none, whatever the
// one before had.
func TestSlicesAreTheSources(t *testing.T) {
	w, err := Open("-", Options{Stdin: strings.NewReader(twoRows)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	own := []int64{42}
	r := replay.Request{Blocks: own[:0]}
	for range 2 {
		if err := s.Next(&r); err != nil {
			t.Fatal(err)
		}
	}
	if own[0] != 42 {
		t.Error("wrote into a slice of the caller")
	}
	if r.Blocks != nil {
		t.Errorf("blocks %v", r.Blocks)
	}
}
