package fetch

import (
	"bytes"
	"encoding/base64"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/media/probe"
)

func probeInfo(width int) probe.Info { return probe.Info{Size: media.Size{Width: width}} }

// lines breaks text into lines.
func lines(text string) string {
	var b strings.Builder
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	return b.String() + text + "\n"
}

func TestParseData(t *testing.T) {
	for uri, want := range map[string]ParsedData{
		"data:image/png;base64,AQID":                        {"image/png", []byte{1, 2, 3}},
		"DATA:Image/PNG;name=a.png;BASE64,AQI=":             {"image/png", []byte{1, 2}},
		"data:image/png;base64,AQI":                         {"image/png", []byte{1, 2}},
		"data:;base64,AQ\r\nID\n":                           {"text/plain", []byte{1, 2, 3}},
		"data:,a%20b%2C":                                    {"text/plain", []byte("a b,")},
		"data:text/plain;charset=utf-8,a,b":                 {"text/plain", []byte("a,b")},
		"data:application/octet-stream;base64,":             {"application/octet-stream", []byte{}},
		"data:image/jpeg;base64," + strings.Repeat("A", 12): {"image/jpeg", make([]byte, 9)},
	} {
		if got, err := ParseData(uri, 9); err != nil || got.MIME != want.MIME || !bytes.Equal(got.Bytes, want.Bytes) {
			t.Errorf("%s: %v %v", uri, got, err)
		}
	}
	for uri, words := range map[string]string{
		"http://a":              "does not begin",
		"data:image/png;base64": "no comma",
		"data:" + strings.Repeat("a", 2000) + ",": "no comma",
		"data:;base64,A":     "not in base64",
		"data:;base64,AQ=D":  "not in base64",
		"data:;base64,AQ-_":  "not in base64",
		"data:;base64,AA AA": "not in base64",
		"data:,%":            "escape",
		"data:,%4":           "escape",
		"data:,%zz":          "escape",
		"data:,%%%%%%":       "escape",
		"data:,0123456789":   "more bytes",
		"data:;base64," + strings.Repeat("A", 16):   "more bytes",
		"data:;base64," + strings.Repeat("\nA", 16): "more bytes",
	} {
		_, err := ParseData(uri, 9)
		refused(t, uri[:min(len(uri), 40)], err, fault.Invalid, words)
	}
}

// TestForms: however a file is written, it is read.
func TestForms(t *testing.T) {
	file := picture(t, 300, 200)
	text := base64.StdEncoding.EncodeToString(file)
	for form, uri := range map[string]string{
		"padded": "data:image/png;base64," + text,
		"raw":    "data:image/png;base64," + strings.TrimRight(text, "="),
		"lines":  "data:image/png;base64," + lines(text),
		"escape": "data:image/png," + strings.ReplaceAll(url.QueryEscape(string(file)), "+", "%20"),
	} {
		if d, err := ParseData(uri, int64(len(file))); err != nil || !bytes.Equal(d.Bytes, file) {
			t.Errorf("%s: %v", form, err)
		}
		_, err := ParseData(uri, int64(len(file))-1)
		refused(t, form, err, fault.Invalid, "more bytes")
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeData: the refusal of a data: URI of 100 MB costs nothing.
func TestLargeData(t *testing.T) {
	for name, uri := range map[string]string{
		"one line": "data:image/png;base64," + strings.Repeat("A", 100<<20),
		"lines":    "data:image/png;base64,\n" + strings.Repeat("A", 100<<20),
		"escapes":  "data:image/png," + strings.Repeat("%41", 30<<20),
	} {
		n := allocated(func() {
			_, err := ParseData(uri, 16<<20)
			refused(t, name, err, fault.Invalid, "more bytes")
		})
		if n > 64<<10 {
			t.Errorf("%s: the refusal allocates %d bytes", name, n)
		}
	}
}

// FuzzData: a data: URI has what it has, and never more than may be; in base64 it is what it was made of.
func FuzzData(f *testing.F) {
	text := base64.StdEncoding.EncodeToString(picture(f, 30, 20))
	for _, s := range []string{"data:image/png;base64," + text, "data:image/png;base64," + lines(text), "data:,%89PNG%0d%0a", "data:video/jpeg;base64," + text + "," + text, "data:;base64,Qk0="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		if d, err := ParseData(uri, 1<<20); err == nil && len(d.Bytes) > 0 {
			if _, again := ParseData(uri, int64(len(d.Bytes))-1); again == nil {
				t.Fatal("the limit is not held")
			}
		}
		made := "data:;base64," + lines(base64.StdEncoding.EncodeToString([]byte(uri)))
		if d, err := ParseData(made, int64(len(uri))); err != nil || string(d.Bytes) != uri {
			t.Fatalf("%q %v", d.Bytes, err)
		}
	})
}

// FuzzContentRange: what is taken for a range is within what was asked for.
func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-4095/9999", int64(0), int64(4096))
	f.Add("bytes 5-9/10", int64(5), int64(100))
	f.Add("bytes 0-0/*", int64(0), int64(1))
	f.Fuzz(func(t *testing.T, s string, off, length int64) {
		if off < 0 || length < 1 || off > 1<<60 || length > 1<<60 {
			return
		}
		n, total, ok := parseContentRange(s, probe.ByteRange{Offset: off, Length: length})
		if ok && (n < 1 || n > length || total >= 0 && off+n > total || total >= 0 && n < length && off+n != total) {
			t.Fatalf("%q for %d of %d: %d of %d", s, length, off, n, total)
		}
	})
}

func BenchmarkParseData(b *testing.B) {
	uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(picture(b, 1024, 768))
	b.SetBytes(int64(len(uri)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseData(uri, 64<<20); err != nil {
			b.Fatal(err)
		}
	}
}
