package probe

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	_ "image/gif"
	_ "image/jpeg"
	_ "image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock/core/media"
)

// files returns the fixtures by name.
func files(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		if strings.HasSuffix(name, ".json") {
			continue
		}
		if all[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome is the result of reading a file by ranges.
type outcome struct {
	info   Info
	err    error
	ranges int
	bytes  int
}

// drive reads a file as a caller which must request ranges, each in pieces of `piece` bytes. With told, the
// length is known from the first answer on.
func drive(t testing.TB, p *Probe, file []byte, piece int, told bool) outcome {
	t.Helper()
	var o outcome
	for last := (ByteRange{}); ; {
		info, need, err := p.Result()
		if err != nil || need.IsZero() {
			return outcome{info, err, o.ranges, o.bytes}
		}
		if need == last || need.Length <= 0 || need.Offset < 0 || need.Length > maxPiece || o.ranges > 20*MaxRanges {
			t.Fatalf("asked for %+v after %+v", need, last)
		}
		last = need
		o.ranges++
		from, to := min(need.Offset, int64(len(file))), min(need.Offset+need.Length, int64(len(file)))
		for b := file[from:to]; len(b) > 0; {
			n := min(piece, len(b))
			p.AddBytes(from, b[:n])
			from, b, o.bytes = from+int64(n), b[n:], o.bytes+n
		}
		if told || to-min(need.Offset, to) < need.Length {
			p.SetLength(int64(len(file)))
		}
	}
}

// TestFixtures compares sizes with Pillow's, for whole files and by ranges.
func TestFixtures(t *testing.T) {
	var expected map[string]struct {
		Width, Height, Rate, Channels int
		Frames                        int64
	}
	b := file(t, "expected.json")
	if err := json.Unmarshal(b, &expected); err != nil {
		t.Fatal(err)
	}
	all := files(t)
	if len(all) != len(expected) || len(all) < 60 {
		t.Fatalf("%d files, %d expected", len(all), len(expected))
	}
	formats := map[string]FileFormat{".png": PNG, ".gif": GIF, ".jpg": JPEG, ".webp": WebP, ".bmp": BMP, ".tiff": TIFF, ".avif": AVIF, ".heic": HEIC, ".wav": WAV}
	for name, b := range all {
		want := expected[name]
		info, err := ReadHeader(b)
		if err != nil || info.Size.Width != want.Width || info.Size.Height != want.Height || !info.Oriented || info.Format != formats[filepath.Ext(name)] {
			t.Errorf("%s: %+v, %v; want %+v", name, info, err, want)
		}
		if info.Frames != want.Frames || info.Rate != want.Rate || info.Channels != want.Channels {
			t.Errorf("%s: %+v; want %+v", name, info, want)
		}
		if kind := map[bool]media.Kind{true: media.Audio, false: media.Image}[want.Frames > 0]; info.Kind != kind {
			t.Errorf("%s is a %v", name, info.Kind)
		}
		for _, told := range []bool{false, true} {
			for _, piece := range []int{1 << 20, 1000, 7} {
				var p Probe
				if o := drive(t, &p, b, piece, told); o.err != nil || o.info != info || o.ranges > 3 {
					t.Errorf("%s by pieces of %d: %+v, %+v", name, piece, o, info)
				}
			}
		}
		if c, _, err := image.DecodeConfig(bytes.NewReader(b)); err == nil && info.Orientation < 5 && name != "screen.gif" && (c.Width != info.Size.Width || c.Height != info.Size.Height) {
			t.Errorf("%s: Go decodes %d by %d, the probe %+v", name, c.Width, c.Height, info.Size)
		}
	}
}

// TestOrientations: EXIF gives the rotation of the file's pixels.
func TestOrientations(t *testing.T) {
	for name, want := range map[string]int{
		"plain.jpg": 1, "turn1.jpg": 1, "turn2.jpg": 2, "turn3.jpg": 3, "turn4.jpg": 4, "turn5.jpg": 5, "turn6.jpg": 6, "turn7.jpg": 7, "turn8.jpg": 8,
		"nonsense.jpg": 1, "xmp.jpg": 6, "both.jpg": 1, "late.png": 6, "xmp.png": 6, "turn3.webp": 3, "xmp.webp": 6, "end.tiff": 6,
		"turn6.avif": 1, "turn6.heic": 1, // their decoders rotate
	} {
		if info, err := ReadHeader(file(t, name)); err != nil || info.Orientation != want {
			t.Errorf("%s: %+v, %v; want %d", name, info, err, want)
		}
	}
}

// TestTruncated: a file truncated anywhere does not panic, and gives the true result or an error.
func TestTruncated(t *testing.T) {
	for name, b := range files(t) {
		whole, _ := ReadHeader(b)
		for n := range b {
			if n > 1024 && n%97 != 0 {
				continue
			}
			info, err := ReadHeader(b[:n])
			var e *Error
			if err != nil && !errors.As(err, &e) {
				t.Fatalf("%s of %d bytes: error is %T", name, n, err)
			}
			if err == nil && info.Kind == media.Image {
				same := info.Size == whole.Size || !info.Oriented && (info.Size.Width == whole.Size.Height || whole.Format == GIF)
				if !same {
					t.Errorf("%s of %d bytes: %+v, not %+v", name, n, info, whole)
				}
			}
			var p Probe
			if o := drive(t, &p, b[:n], 1<<20, true); o.info != info || (o.err == nil) != (err == nil) {
				t.Errorf("%s of %d bytes: %+v by ranges, %+v %v whole", name, n, o, info, err)
			}
		}
	}
}

func segment(marker byte, body []byte) []byte {
	b := []byte{0xFF, marker, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(len(body)+2))
	return append(b, body...)
}

// frame is a frame header of JPEG.
func frame(marker byte, precision byte, width, height int) []byte {
	return segment(marker, []byte{precision, byte(height >> 8), byte(height), byte(width >> 8), byte(width), 1, 1, 0x11, 0})
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

var (
	soi  = []byte{0xFF, 0xD8}
	scan = segment(0xDA, []byte{1, 1, 0, 0, 63, 0})
)

// TestJPEGFrames: codings which Go's decoder refuses have sizes too.
func TestJPEGFrames(t *testing.T) {
	for m := byte(0xC0); m <= 0xCF; m++ {
		info, err := ReadHeader(join(soi, frame(m, 12, 300, 200), scan))
		if other := m == 0xC4 || m == 0xC8 || m == 0xCC; other != (err != nil) || !other && (info.Size != media.Size{Width: 300, Height: 200} || !info.Oriented) {
			t.Errorf("marker %x: %+v %v", m, info, err)
		}
	}
	filled := join(soi, bytes.Repeat([]byte{0xFF}, 5000), []byte{0xFF, 0x01, 0xFF, 0xD0}, []byte("junk\xFF\x00"), frame(0xC0, 8, 30, 20), scan)
	for _, piece := range []int{1, 1 << 20} {
		var p Probe
		if o := drive(t, &p, filled, piece, true); o.err != nil || o.info.Size.Width != 30 || !o.info.Oriented {
			t.Errorf("fill bytes: %+v", o)
		}
	}
}

// TestJPEGFarFrame: if other segments push the frame far away, exactly its place is requested.
func TestJPEGFarFrame(t *testing.T) {
	big := segment(0xE2, make([]byte, 65533))
	for _, n := range []int{1, 3, 9} {
		b := join(soi, bytes.Repeat(big, n), frame(0xC2, 8, 4000, 3000), scan, make([]byte, 1<<20))
		var p Probe
		o := drive(t, &p, b, 1<<20, true)
		if o.err != nil || o.info.Size != (media.Size{Width: 4000, Height: 3000}) || !o.info.Oriented || o.ranges != n+1 || o.bytes > (n+1)*firstRead {
			t.Errorf("%d segments: %+v", n, o)
		}
	}
	b := join(soi, bytes.Repeat(big, 40), frame(0xC2, 8, 4000, 3000), scan)
	var p Probe
	var e *Error
	if o := drive(t, &p, b, 1<<20, true); !errors.As(o.err, &e) || e.Kind != Unsupported || o.ranges > MaxRanges {
		t.Errorf("40 segments: %+v", o)
	}
}

// pngChunk is a chunk of PNG.
func pngChunk(kind string, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	return join(b, []byte(kind), body, make([]byte, 4))
}

func pngSize(width, height uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, width)
	return append(binary.BigEndian.AppendUint32(b, height), 8, 2, 0, 0, 0)
}

// turned returns EXIF with an orientation.
func turned(n byte) []byte {
	return []byte{'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, n, 0, 0, 0, 0, 0, 0}
}

// TestPNGTail: in a large file, the last chunk of pixels, and what follows it, is found without reading the
// earlier ones.
func TestPNGTail(t *testing.T) {
	head := join([]byte(pngMagic), pngChunk("CgBI", make([]byte, 4)), pngChunk("IHDR", pngSize(3000, 2000)))
	pixels := join(bytes.Repeat(pngChunk("IDAT", make([]byte, 8192)), 200), pngChunk("IDAT", make([]byte, 100)))
	one := pngChunk("IDAT", make([]byte, 3<<20))
	end := pngChunk("IEND", nil)
	for _, c := range []struct {
		name   string
		b      []byte
		ranges int
		turn   int
	}{
		{"many", join(head, pixels, end), 3, 1},
		{"many equal", join(head, bytes.Repeat(pngChunk("IDAT", make([]byte, 8192)), 200), end), 3, 1},
		{"many, turned", join(head, pixels, pngChunk("eXIf", turned(6)), end), 3, 6},
		{"one", join(head, one, end), 3, 1},
		{"one, turned", join(head, one, pngChunk("eXIf", turned(8)), end), 3, 8},
		{"old text", join(head, pngChunk("tEXt", []byte("Raw profile type exif\x00\nexif")), one, end), 1, 0},
		{"other pieces", join(head, pixels, bytes.Repeat(pngChunk("IDAT", make([]byte, 700)), 50), pixels, end), 3, 0},
	} {
		var p Probe
		o := drive(t, &p, c.b, 1<<20, true)
		want := Info{Format: PNG, Kind: media.Image, Size: media.Size{Width: 3000, Height: 2000}, Orientation: c.turn, Oriented: c.turn != 0}
		if c.turn >= 5 {
			want.Size = media.Size{Width: 2000, Height: 3000}
		}
		if o.err != nil || o.info != want || o.ranges > c.ranges || o.bytes > keptHead+4*firstRead {
			t.Errorf("%s: %+v, want %+v", c.name, o, want)
		}
	}
}

// TestHostile: headers that lie.
func TestHostile(t *testing.T) {
	bmp := func(size uint32, width, height int32) []byte {
		b := append([]byte("BM"), make([]byte, 52)...)
		binary.LittleEndian.PutUint32(b[14:], size)
		binary.LittleEndian.PutUint32(b[18:], uint32(width))
		binary.LittleEndian.PutUint32(b[22:], uint32(height))
		return b
	}
	png := func(w, h uint32) []byte {
		return join([]byte(pngMagic), pngChunk("IHDR", pngSize(w, h)), pngChunk("IEND", nil))
	}
	for name, c := range map[string]struct {
		b    []byte
		want ErrorKind
	}{
		"nothing":             {nil, NotMedia},
		"text":                {[]byte("<svg xmlns='http://www.w3.org/2000/svg'/>"), NotMedia},
		"icon":                {append([]byte{0, 0, 1, 0, 1, 0, 16, 16}, make([]byte, 60)...), NotMedia},
		"a letter":            {[]byte("B"), NotMedia},
		"PNG of 65535²":       {png(65535, 65535), TooLarge},
		"PNG of a long side":  {png(65536, 1), TooLarge},
		"PNG of 0":            {png(0, 5), Malformed},
		"PNG of 2³²-1":        {png(1<<32-1, 1<<32-1), TooLarge},
		"PNG, other chunk":    {join([]byte(pngMagic), pngChunk("IDAT", nil), pngChunk("IHDR", pngSize(4, 4))), Malformed},
		"PNG, chunk of 2³¹":   {join([]byte(pngMagic), []byte{0xFF, 0xFF, 0xFF, 0xFF}, []byte("IHDRxxxxxxxx")), Malformed},
		"JPEG of 65535²":      {join(soi, frame(0xC0, 8, 65535, 65535), scan), TooLarge},
		"JPEG, DNL":           {join(soi, frame(0xC0, 8, 100, 0), scan), Unsupported},
		"JPEG, no frame":      {join(soi, scan), Malformed},
		"JPEG, end":           {join(soi, []byte{0xFF, 0xD9}, make([]byte, 16)), Malformed},
		"JPEG, no length":     {join(soi, []byte{0xFF, 0xE0, 0, 1}, make([]byte, 16)), Malformed},
		"JPEG, only fill":     {append([]byte{0xFF, 0xD8}, bytes.Repeat([]byte{0xFF}, 1<<20)...), Malformed},
		"GIF of 65535²":       {append([]byte("GIF89a\xFF\xFF\xFF\xFF\x00\x00\x00,"), make([]byte, 9)...), TooLarge},
		"GIF of 0":            {append([]byte("GIF89a\x00\x00\x00\x00\x00\x00\x00,"), make([]byte, 9)...), Malformed},
		"GIF without picture": {[]byte("GIF89a\x05\x00\x05\x00\x00\x00\x00;xxx"), Malformed},
		"BMP of MinInt32":     {bmp(40, 5, -1<<31), TooLarge},
		"BMP of MinInt32²":    {bmp(40, -1<<31, -1<<31), Malformed},
		"BMP of -5":           {bmp(40, -5, 5), Malformed},
		"BMP, other header":   {bmp(41, 5, 5), Unsupported},
		"WebP of 16383²":      {append([]byte("RIFF\x20\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2F\xFF\xFF\xFF\x0F"), make([]byte, 9)...), TooLarge},
		"WebP of 2²⁴":         {append([]byte("RIFF\x20\x00\x00\x00WEBPVP8X\x0A\x00\x00\x00\x00\x00\x00\x00\xFF\xFF\xFF\xFF\xFF\xFF"), make([]byte, 9)...), TooLarge},
		"WebP, no key frame":  {append([]byte("RIFF\x20\x00\x00\x00WEBPVP8 \x0A\x00\x00\x00\x01\x00\x00\x9D\x01\x2A\x05\x00\x05\x00"), make([]byte, 9)...), Malformed},
		"WebP, other chunk":   {append([]byte("RIFF\x20\x00\x00\x00WEBPABCD\x0A\x00\x00\x00"), make([]byte, 19)...), Malformed},
		"TIFF, no directory":  {append([]byte("II*\x00\xFF\xFF\xFF\x7F"), make([]byte, 19)...), Malformed},
		"TIFF, empty":         {append([]byte("II*\x00\x08\x00\x00\x00\x00\x00"), make([]byte, 19)...), Malformed},
		"BigTIFF, far":        {append([]byte("MM\x00+\x00\x08\x00\x00\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), make([]byte, 19)...), Malformed},
		"AVIF, empty box":     {append([]byte("\x00\x00\x00\x10ftypavif\x00\x00\x00\x00\x00\x00\x00\x04meta"), make([]byte, 19)...), Malformed},
		"AVIF, far":           {append([]byte("\x00\x00\x00\x10ftypavif\x00\x00\x00\x00\x00\x00\x00\x01mdat\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), make([]byte, 19)...), Malformed},
		"WAV, no channels":    {append([]byte("RIFF\x20\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x00\x00\x40\x1F\x00\x00\x40\x1F\x00\x00\x01\x00\x08\x00data\x04\x00\x00\x00"), 1, 2, 3, 4), Malformed},
		"WAV, MP3":            {append([]byte("RIFF\x20\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x55\x00\x01\x00\x40\x1F\x00\x00\x40\x1F\x00\x00\x01\x00\x08\x00data\x04\x00\x00\x00"), 1, 2, 3, 4), Unsupported},
		"WAV, samples first":  {[]byte("RIFF\x20\x00\x00\x00WAVEdata\x04\x00\x00\x00abcd"), Malformed},
	} {
		info, err := ReadHeader(c.b)
		var e *Error
		if !errors.As(err, &e) || e.Kind != c.want || info != (Info{}) {
			t.Errorf("%s: %+v %v", name, info, err)
		}
		var p Probe
		if o := drive(t, &p, c.b, 1<<20, true); fmt.Sprint(o.err) != fmt.Sprint(err) {
			if !errors.As(o.err, &e) || name != "JPEG, only fill" {
				t.Errorf("%s: %v whole, %v by ranges", name, err, o.err)
			}
		}
	}
	small := png(100, 100)
	if _, err := ReadHeaderWithin(small, 9999); err == nil {
		t.Error("the limit of pixels is not held")
	}
	if _, err := ReadHeaderWithin(small, 10000); err != nil {
		t.Error(err)
	}
}

// TestMemory: a probe keeps at most what it requested.
func TestMemory(t *testing.T) {
	big := segment(0xE2, make([]byte, 65533))
	b := join(soi, bytes.Repeat(big, 12), frame(0xC2, 8, 4000, 3000), scan, make([]byte, 8<<20))
	var p Probe
	p.AddBytes(0, b)
	for range 40 {
		if _, need, _ := p.Result(); need.IsZero() {
			break
		}
		p.AddBytes(0, b)
	}
	kept := 0
	for i, k := range p.kept {
		kept += len(k.b)
		if i > 0 && k.off <= p.kept[i-1].end() {
			t.Errorf("parts %d and %d touch", i-1, i)
		}
		if !bytes.Equal(k.b, b[k.off:k.end()]) {
			t.Errorf("part %d is not what was added", i)
		}
	}
	if info, need, err := p.Result(); err != nil || !need.IsZero() || info.Size.Width != 4000 || kept > keptHead+12*firstRead {
		t.Errorf("%+v %+v %v, %d bytes kept", info, need, err, kept)
	}
	p = Probe{}
	p.AddBytes(-5, []byte("x"))
	p.AddBytes(1<<63-2, []byte("xxxx"))
	if len(p.kept) != 0 {
		t.Error("impossible places were kept")
	}
}

// TestSamples: a partial sample does not count.
func TestSamples(t *testing.T) {
	for _, c := range []struct {
		frames int64
		rate   int
		want   int
		ok     bool
	}{{16000, 16000, 16000, true}, {44100, 44100, 16000, true}, {44101, 44100, 16001, true}, {0, 48000, 0, false}, {1, 48000, 1, true}, {5, 48000, 2, true}, {50, 8000, 100, true}, {-1, 8000, 0, false}, {1, 0, 0, false}, {1 << 39, 1, 0, false}} {
		if got, ok := ModelSamples(c.frames, c.rate); ok != c.ok || ok && got != c.want {
			t.Errorf("Samples(%d, %d) = %d, %v", c.frames, c.rate, got, ok)
		}
	}
}

func BenchmarkHeader(b *testing.B) {
	for _, name := range []string{"rgb.png", "plain.gif", "turn6.jpg", "lossy.webp", "turn6.webp", "plain.bmp", "plain.tiff", "turn6.avif", "turn6.heic", "pcm16.wav"} {
		f := file(b, name)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ReadHeader(f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
