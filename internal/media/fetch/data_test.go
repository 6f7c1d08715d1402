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
	"penstock/core/media/probe"
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
	for uri, want := range map[string]Data{
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

func TestParseFrames(t *testing.T) {
	frames, err := ParseFrames("data:video/jpeg;base64,AQ==,AgM=,BAUG", 6, 3)
	if err != nil || len(frames) != 3 || !bytes.Equal(bytes.Join(frames, nil), []byte{1, 2, 3, 4, 5, 6}) {
		t.Errorf("%v %v", frames, err)
	}
	for words, uri := range map[string]string{"too many": "data:video/jpeg;base64,AQ,AQ,AQ,AQ", "more bytes": "data:video/jpeg;base64,AQID,AQID,AQ", "none of": "data:image/jpeg;base64,AQ", "not in": "data:video/jpeg;base64,A"} {
		_, err := ParseFrames(uri, 6, 3)
		refused(t, uri, err, fault.Invalid, words)
	}
	one := picture(t, 30, 20)
	text := base64.StdEncoding.EncodeToString(one)
	info, err := DataSize("data:video/jpeg;base64," + text + "," + text + "," + text)
	if err != nil || info.Kind != media.Video || info.Size != (media.Size{Width: 30, Height: 20, Frames: 3}) {
		t.Errorf("%+v %v", info, err)
	}
}

// TestDataSize: however a picture is written, its header is found.
func TestDataSize(t *testing.T) {
	segment := append([]byte{0xFF, 0xE2, 0xFF, 0xFF}, make([]byte, 65533)...)
	frame := []byte{0xFF, 0xC9, 0, 11, 12, 0, 200, 1, 44, 1, 1, 0x11, 0, 0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0}
	far := bytes.Join([][]byte{{0xFF, 0xD8}, segment, segment, frame, make([]byte, 200001)}, nil)
	for name, file := range map[string][]byte{"png": picture(t, 300, 200), "jpeg": far} {
		text := base64.StdEncoding.EncodeToString(file)
		for form, uri := range map[string]string{
			"padded": "data:image/png;base64," + text,
			"raw":    "data:image/png;base64," + strings.TrimRight(text, "="),
			"lines":  "data:image/png;base64," + lines(text),
			"escape": "data:image/png," + strings.ReplaceAll(url.QueryEscape(string(file)), "+", "%20"),
		} {
			info, err := DataSize(uri)
			if err != nil || info.Size != (media.Size{Width: 300, Height: 200}) || !info.Oriented {
				t.Errorf("%s %s: %+v %v", name, form, info, err)
			}
			if d, err := ParseData(uri, int64(len(file))); err != nil || !bytes.Equal(d.Bytes, file) {
				t.Errorf("%s %s: %v", name, form, err)
			}
			_, err = ParseData(uri, int64(len(file))-1)
			refused(t, name+" "+form, err, fault.Invalid, "more bytes")
		}
	}
	_, err := DataSize("data:image/png;base64," + base64.StdEncoding.EncodeToString(forged(t)))
	refused(t, "a forged header", err, fault.Invalid, "65535 by 65535")
	_, err = DataSize("data:image/png;base64,")
	refused(t, "nothing", err, fault.Invalid, "empty")
	_, err = DataSize("data:image/png;base64,@@@@")
	refused(t, "no base64", err, fault.Invalid, "not in base64")
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeData: a data: URI of 100 MB costs its header, or nothing if it is refused.
func TestLargeData(t *testing.T) {
	head := picture(t, 300, 200)
	begin := base64.StdEncoding.EncodeToString(head[:len(head)/3*3])
	uri := "data:image/png;base64," + begin + strings.Repeat("A", 100<<20-len(begin)/4*4)
	broken := "data:image/png;base64," + begin + "\n" + strings.Repeat("A", 100<<20)
	text := "data:image/png," + url.PathEscape(string(head)) + strings.Repeat("%41", 30<<20)
	for name, u := range map[string]string{"one line": uri, "lines": broken, "escapes": text} {
		size := allocated(func() {
			if info, err := DataSize(u); err != nil || info.Size.Width != 300 {
				t.Errorf("%s: %+v %v", name, info, err)
			}
		})
		parse := allocated(func() {
			_, err := ParseData(u, 16<<20)
			refused(t, name, err, fault.Invalid, "more bytes")
		})
		if size > 1<<20 || parse > 64<<10 {
			t.Errorf("%s: the size allocates %d bytes, the refusal %d", name, size, parse)
		}
	}
	f := fetcher(t, nil)
	if n := allocated(func() {
		_, err := f.Get(t.Context(), uri)
		refused(t, "get", err, fault.Invalid, "more bytes")
	}); n > 64<<10 || f.Memory() != 0 {
		t.Errorf("the refusal allocates %d bytes, %d are taken", n, f.Memory())
	}
}

// FuzzData: what the size says of a data: URI is what the probe says of its bytes.
func FuzzData(f *testing.F) {
	one := picture(f, 30, 20)
	text := base64.StdEncoding.EncodeToString(one)
	for _, s := range []string{"data:image/png;base64," + text, "data:image/png;base64," + lines(text), "data:,%89PNG%0d%0a", "data:video/jpeg;base64," + text + "," + text, "data:;base64,Qk0="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		info, err := DataSize(uri)
		d, derr := ParseData(uri, 1<<20)
		if derr != nil || d.MIME == framesMIME {
			return
		}
		if int64(len(d.Bytes)) > 0 {
			if _, again := ParseData(uri, int64(len(d.Bytes))-1); again == nil {
				t.Fatal("the limit is not held")
			}
		}
		whole, werr := probe.Header(d.Bytes)
		if (err == nil) != (werr == nil) || err == nil && (info.Format != whole.Format || info.Oriented && whole.Oriented && info != whole) {
			t.Fatalf("%+v %v, its bytes %+v %v", info, err, whole, werr)
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
		n, total, ok := contentRange(s, probe.Need{Offset: off, Length: length})
		if ok && (n < 1 || n > length || total >= 0 && off+n > total || total >= 0 && n < length && off+n != total) {
			t.Fatalf("%q for %d of %d: %d of %d", s, length, off, n, total)
		}
	})
}

func BenchmarkDataSize(b *testing.B) {
	uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(picture(b, 1024, 768))
	b.SetBytes(int64(len(uri)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DataSize(uri); err != nil {
			b.Fatal(err)
		}
	}
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
