package pixel

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"penstock/core/media"
	"penstock/internal/media/probe"
)

// pictures are files and what PIL makes of them: see tools/fixtures/make_pixels.py.
func pictures(t testing.TB) (all []struct {
	Name          string
	File, RGB     []byte
	Width, Height int
	Off           int
},
) {
	t.Helper()
	data, err := os.ReadFile("testdata/pictures.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) < 30 {
		t.Fatalf("%d pictures: %v", len(all), err)
	}
	return all
}

func TestPictures(t *testing.T) {
	for _, c := range pictures(t) {
		got, size, err := DecodeImage(c.File, Limits{})
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		if !slices.Equal(got.Shape, []int{c.Height, c.Width, 3}) || size != (media.Size{Width: c.Width, Height: c.Height}) {
			t.Errorf("%s: shape %v, size %+v, want %d by %d", c.Name, got.Shape, size, c.Width, c.Height)
			continue
		}
		worst := 0
		for i, want := range c.RGB {
			d := int(got.Data[i]) - int(want)
			worst = max(worst, d, -d)
		}
		if worst > c.Off {
			t.Errorf("%s: bytes differ by up to %d, at most %d is right", c.Name, worst, c.Off)
		}
	}
}

func encodePNG(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSixteenBits: of 16 bits the higher 8 count, whatever is transparent.
func TestSixteenBits(t *testing.T) {
	gray, deep := image.NewGray16(image.Rect(0, 0, 2, 1)), image.NewNRGBA64(image.Rect(0, 0, 2, 1))
	gray.SetGray16(1, 0, color.Gray16{Y: 0x12ff})
	deep.SetNRGBA64(1, 0, color.NRGBA64{R: 0x01ff, G: 0x80ff, B: 0xffff, A: 3})
	for _, c := range []struct {
		img  image.Image
		want []byte
	}{{gray, []byte{0, 0, 0, 0x12, 0x12, 0x12}}, {deep, []byte{0, 0, 0, 0x01, 0x80, 0xff}}} {
		if got, _, err := DecodeImage(encodePNG(t, c.img), Limits{}); err != nil || !bytes.Equal(got.Data, c.want) {
			t.Errorf("%x %v, want %x", got.Data, err, c.want)
		}
	}
}

// claim returns a PNG which claims the given size but has only a few pixels.
func claim(width, height uint32) []byte {
	b := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, body []byte) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(body))), name...)
		b = append(b, body...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[len(b)-len(body)-4:]))
	}
	chunk("IHDR", append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height), 8, 2, 0, 0, 0))
	var pixels bytes.Buffer
	z := zlib.NewWriter(&pixels)
	_, _ = z.Write(make([]byte, 1000)) // into memory
	_ = z.Close()
	chunk("IDAT", pixels.Bytes())
	return b
}

func TestRefusals(t *testing.T) {
	all := map[string][]byte{}
	for _, c := range pictures(t) {
		all[c.Name] = c.File
	}
	marker := func(from, to byte) []byte { // another kind of JPEG
		b := bytes.Clone(all["jpeg"])
		i := bytes.Index(b, []byte{0xff, from})
		b[i+1] = to
		return b
	}
	twelve := bytes.Clone(all["jpeg"])
	twelve[bytes.Index(twelve, []byte{0xff, 0xc0})+4] = 12
	for name, c := range map[string]struct {
		file   []byte
		limits Limits
		want   error
	}{
		"empty":             {nil, Limits{}, ErrUnsupported},
		"text":              {[]byte("<svg></svg>"), Limits{}, ErrUnsupported},
		"cut off":           {all["png"][:60], Limits{}, ErrMalformed},
		"header alone":      {all["jpeg"][:12], Limits{}, ErrMalformed},
		"huge claim":        {claim(65535, 65535), Limits{}, ErrTooLarge},
		"large claim":       {claim(8000, 8000), Limits{}, ErrMalformed}, // cannot be in so few bytes
		"no pixels":         {claim(0, 5), Limits{}, ErrMalformed},
		"too many pixels":   {all["png"], Limits{Pixels: 21*13 - 1}, ErrTooLarge},
		"too many bytes":    {all["png"], Limits{Bytes: len(all["png"]) - 1}, ErrTooLarge},
		"twelve bits":       {twelve, Limits{}, ErrUnsupported},
		"arithmetic coding": {marker(0xc0, 0xc9), Limits{}, ErrUnsupported},
		"lossless JPEG":     {marker(0xc0, 0xc3), Limits{}, ErrUnsupported},
		"animated":          {[]byte("RIFF\x12\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00"), Limits{}, ErrUnsupported},
	} {
		if _, _, err := DecodeImage(c.file, c.limits); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	progressive := bytes.Clone(all["jpeg-progressive"])
	binary.BigEndian.PutUint32(progressive[bytes.Index(progressive, []byte{0xff, 0xc2})+5:], 5000<<16|5000)
	bitmap := bytes.Clone(all["bmp"])
	binary.LittleEndian.PutUint32(bitmap[18:], 8000)
	binary.LittleEndian.PutUint32(bitmap[22:], 8000)
	for _, claim := range [][]byte{claim(65535, 65535), claim(8000, 8000), progressive, bitmap} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := DecodeImage(claim, Limits{})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 || err == nil {
			t.Errorf("%d bytes allocated for a claim: %v", n, err)
		}
	}
}

// film returns an animation of 4 by 3 pixels: a full red frame; a blue square that is
// taken away again; a green one that stays; a frame with a transparent pixel.
func film(t testing.TB) []byte {
	t.Helper()
	p := color.Palette{color.RGBA{}, color.RGBA{255, 0, 0, 255}, color.RGBA{0, 0, 255, 255}, color.RGBA{0, 255, 0, 255}}
	frame := func(r image.Rectangle, index byte) *image.Paletted {
		f := image.NewPaletted(r, p)
		for i := range f.Pix {
			f.Pix[i] = index
		}
		return f
	}
	last := frame(image.Rect(2, 0, 4, 1), 2)
	last.Pix[0] = 0
	g := gif.GIF{
		Image:    []*image.Paletted{frame(image.Rect(0, 0, 4, 3), 1), frame(image.Rect(1, 1, 3, 3), 2), frame(image.Rect(0, 0, 2, 1), 3), last},
		Delay:    []int{10, 20, 10, 40},
		Disposal: []byte{gif.DisposalNone, gif.DisposalPrevious, gif.DisposalBackground, gif.DisposalNone},
		Config:   image.Config{ColorModel: p, Width: 4, Height: 3},
	}
	var b bytes.Buffer
	if err := gif.EncodeAll(&b, &g); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFramesOfGIF(t *testing.T) {
	v, size, err := DecodeFrames(film(t), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(v.Shape, []int{4, 3, 4, 3}) || size != (media.Size{Width: 4, Height: 3, Frames: 4, Rate: 5}) {
		t.Errorf("%v %+v", v.Shape, size)
	}
	var text strings.Builder
	for i := 0; i < len(v.Data); i += 3 {
		switch string(v.Data[i : i+3]) {
		case "\xff\x00\x00":
			text.WriteByte('r')
		case "\x00\x00\xff":
			text.WriteByte('b')
		case "\x00\xff\x00":
			text.WriteByte('g')
		case "\x00\x00\x00":
			text.WriteByte('.')
		default:
			t.Fatalf("colour %x", v.Data[i:i+3])
		}
	}
	if got, want := text.String(), "rrrrrrrrrrrr"+"rrrrrbbrrbbr"+"ggrrrrrrrrrr"+"..rbrrrrrrrr"; got != want {
		t.Errorf("frames\n%s, want\n%s", got, want)
	}
	for name, l := range map[string]Limits{"frames": {Frames: 3}, "pixels": {Pixels: 4*4*3 - 1}} {
		if _, _, err := DecodeFrames(film(t), l); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too many %s: %v", name, err)
		}
	}
	file := film(t)
	for n := range len(file) - 1 {
		if _, _, err := DecodeFrames(file[:n], Limits{}); err == nil {
			t.Errorf("cut off after %d of %d bytes", n, len(file))
		}
	}
}

func TestFramesOfJPEG(t *testing.T) {
	frame := func(width int, c color.Color) string {
		img := image.NewRGBA(image.Rect(0, 0, width, 8))
		for i := range width * 8 {
			img.Set(i%width, i/width, c)
		}
		var b bytes.Buffer
		if err := jpeg.Encode(&b, img, nil); err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	red, blue := frame(16, color.RGBA{R: 255, A: 255}), frame(16, color.RGBA{B: 255, A: 255})
	payload, ok := ParseFramesURI("DATA:video/jpeg;base64," + red + "," + blue + ", " + red)
	if !ok {
		t.Fatal("not seen")
	}
	v, size, err := DecodeFrames([]byte(payload), Limits{})
	if err != nil || !slices.Equal(v.Shape, []int{3, 8, 16, 3}) || size != (media.Size{Width: 16, Height: 8, Frames: 3, Sequence: true}) {
		t.Fatalf("%v %+v %v", v.Shape, size, err)
	}
	const plane = 8 * 16 * 3
	if v.Data[0] < 250 || v.Data[plane+2] < 250 || !bytes.Equal(v.Data[:plane], v.Data[2*plane:]) {
		t.Error("the frames are not in order")
	}
	for name, c := range map[string]struct {
		payload string
		limits  Limits
		want    error
	}{
		"sizes":     {red + "," + frame(8, color.White), Limits{}, ErrMalformed},
		"larger":    {red + "," + frame(24, color.White), Limits{}, ErrTooLarge},
		"no base64": {red + ",%%%", Limits{}, ErrMalformed},
		"nothing":   {red + ",", Limits{}, ErrMalformed},
		"PNG":       {"iVBORw0KGgo=", Limits{}, ErrUnsupported},
		"frames":    {strings.Repeat(red+",", 5) + red, Limits{Frames: 5}, ErrTooLarge},
		"pixels":    {red + "," + red, Limits{Pixels: 2*16*8 - 1}, ErrTooLarge},
	} {
		if _, _, err := DecodeFrames([]byte(c.payload), c.limits); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// riff returns a WAV file with an odd chunk before its format.
func riff(code, channels, rate, bits int, data []byte) []byte {
	b := []byte("RIFF\x00\x00\x00\x00WAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00")
	b = binary.LittleEndian.AppendUint16(b, uint16(code))
	b = binary.LittleEndian.AppendUint16(b, uint16(channels))
	b = binary.LittleEndian.AppendUint32(b, uint32(rate))
	b = binary.LittleEndian.AppendUint32(b, uint32(rate*channels*bits/8))
	b = binary.LittleEndian.AppendUint16(b, uint16(channels*bits/8))
	b = binary.LittleEndian.AppendUint16(b, uint16(bits))
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func floats(t media.Tensor) []float32 {
	out := make([]float32, t.Shape[0])
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out
}

func TestSamples(t *testing.T) {
	half := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.5))
	for name, c := range map[string]struct {
		file []byte
		want []float32
	}{
		"8 bits":     {riff(1, 1, 16000, 8, []byte{128, 0, 255}), []float32{0, -1, 127. / 128}},
		"16 bits":    {riff(1, 1, 16000, 16, []byte{0, 0x40, 0, 0x80}), []float32{0.5, -1}},
		"24 bits":    {riff(1, 1, 16000, 24, []byte{0, 0, 0x20, 0, 0, 0x80}), []float32{0.25, -1}},
		"32 bits":    {riff(1, 1, 16000, 32, []byte{0, 0, 0, 0xc0}), []float32{-0.5}},
		"float":      {riff(3, 1, 16000, 32, slices.Concat(half, []byte{0, 0, 0xc0, 0x7f}, []byte{0, 0, 0x80, 0x7f}, []byte{0, 0, 0x80, 0xff})), []float32{0.5, 0, 1, -1}},
		"stereo":     {riff(1, 2, 16000, 16, []byte{0, 0x40, 0, 0x20, 0, 0x80, 0, 0x80}), []float32{0.375, -1}},
		"8 kHz":      {riff(1, 1, 8000, 16, []byte{0, 0, 0, 0x40, 0, 0x20}), []float32{0, 0.25, 0.5, 0.375, 0.25, 0.25}},
		"48 kHz":     {riff(1, 1, 48000, 16, []byte{0, 0x10, 1, 1, 1, 1, 0, 0x20, 1, 1}), []float32{0.125, 0.25}},
		"half a one": {riff(1, 2, 16000, 16, []byte{0, 0x40, 0, 0x20, 0, 0x80}), []float32{0.375}},
	} {
		got, size, err := DecodeSamples(c.file, Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(floats(got), c.want) || size != (media.Size{Samples: len(c.want)}) {
			t.Errorf("%s: %v %+v, want %v", name, floats(got), size, c.want)
		}
	}
	good := riff(1, 1, 16000, 16, make([]byte, 20))
	for name, c := range map[string]struct {
		file   []byte
		limits Limits
		want   error
	}{
		"MP3":         {[]byte("ID3\x04"), Limits{}, ErrUnsupported},
		"ADPCM":       {riff(2, 1, 16000, 4, make([]byte, 9)), Limits{}, ErrUnsupported},
		"12 bits":     {riff(1, 1, 16000, 12, make([]byte, 9)), Limits{}, ErrUnsupported},
		"no channels": {riff(1, 0, 16000, 16, make([]byte, 9)), Limits{}, ErrMalformed},
		"no rate":     {riff(1, 1, 0, 16, make([]byte, 9)), Limits{}, ErrMalformed},
		"no samples":  {riff(1, 1, 16000, 16, nil), Limits{}, ErrMalformed},
		"no data":     {good[:40], Limits{}, ErrMalformed},
		"long":        {good, Limits{Samples: 9}, ErrTooLarge},
		"grown":       {riff(1, 1, minRate, 8, make([]byte, 100*minRate)), Limits{Samples: 99 * 16000}, ErrTooLarge},
		"slow":        {riff(1, 1, minRate-1, 8, make([]byte, 100)), Limits{}, ErrMalformed},
	} {
		if _, _, err := DecodeSamples(c.file, c.limits); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		kind media.Kind
		t    media.Tensor
		ok   bool
	}{
		{media.Image, media.Tensor{Shape: []int{2, 3, 3}}, true},
		{media.Image, media.Tensor{Shape: []int{2, 3, 3}, Data: make([]byte, 18)}, true},
		{media.Image, media.Tensor{Shape: []int{2, 3, 3}, Data: make([]byte, 17)}, false},
		{media.Image, media.Tensor{Shape: []int{2, 3, 4}}, false},
		{media.Image, media.Tensor{Shape: []int{2, 0, 3}}, false},
		{media.Image, media.Tensor{Shape: []int{math.MaxInt32, math.MaxInt32, 3}}, false},
		{media.Image, media.Tensor{}, false},
		{media.Video, media.Tensor{Shape: []int{2, 3, 3}}, false},
		{media.Video, media.Tensor{Shape: []int{4, 2, 3, 3}, Data: make([]byte, 72)}, true},
		{media.Audio, media.Tensor{Shape: []int{5}, Data: make([]byte, 20)}, true},
		{media.Audio, media.Tensor{Shape: []int{5}, Data: make([]byte, 5)}, false},
		{0, media.Tensor{Shape: []int{5}}, false},
		{0, media.Tensor{}, false},
	} {
		if err := Check(c.kind, &c.t); (err == nil) != c.ok {
			t.Errorf("%v %v: %v", c.kind, c.t.Shape, err)
		}
	}
}

// FuzzObject: whatever the bytes, what is decoded has the shape of its kind and is within
// the limits, twice the same, and what is not is one of this package's errors.
func FuzzObject(f *testing.F) {
	for _, c := range pictures(f) {
		f.Add(uint8(media.Image), c.File)
	}
	f.Add(uint8(media.Image), claim(1000, 1000))
	f.Add(uint8(media.Video), film(f))
	for _, c := range pictures(f) {
		if c.Name == "jpeg" {
			frame := base64.StdEncoding.EncodeToString(c.File)
			f.Add(uint8(media.Video), []byte(frame+","+frame))
		}
	}
	f.Add(uint8(media.Audio), riff(1, 2, 44100, 24, make([]byte, 600)))
	f.Add(uint8(media.Audio), riff(3, 1, 8000, 32, make([]byte, 60)))
	f.Fuzz(func(t *testing.T, kind uint8, file []byte) {
		l := Limits{Bytes: 1 << 16, Pixels: 1 << 14, Frames: 8, Samples: 1 << 14}
		k := media.Kind(kind)
		got, size, err := DecodeObject(k, file, l)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if err := Check(k, &got); err != nil || got.Data == nil {
			t.Fatalf("%v", err)
		}
		if size.Width*size.Height*max(1, size.Frames) > l.Pixels || size.Frames > l.Frames || size.Samples > l.Samples {
			t.Fatalf("size %+v", size)
		}
		again, _, err := DecodeObject(k, file, l)
		if err != nil || ContentKey(k, &again) != ContentKey(k, &got) {
			t.Fatalf("decoded again: %v", err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	img := image.NewRGBA(image.Rect(0, 0, 1920, 1080))
	for i := range img.Pix {
		img.Pix[i] = byte(i / 977)
	}
	var j bytes.Buffer
	if err := jpeg.Encode(&j, img, nil); err != nil {
		b.Fatal(err)
	}
	for name, file := range map[string][]byte{"jpeg": j.Bytes(), "png": encodePNG(b, img)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := DecodeImage(file, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSizesAreProbed: what is decoded has the size that the probe reads from the header, whichever way
// a file says that it is turned.
func TestSizesAreProbed(t *testing.T) {
	names, err := filepath.Glob("../../../internal/media/probe/testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	decoded := 0
	for _, name := range names {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := probe.ReadHeader(file)
		if err != nil {
			continue // what is expected of the others
		}
		_, size, err := DecodeObject(info.Kind, file, Limits{})
		if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrMalformed) {
			continue // Go's decoders read less than the probe
		}
		if err != nil || size != info.Size {
			t.Errorf("%s is %+v, the probe says %+v: %v", name, size, info.Size, err)
		}
		decoded++
	}
	if decoded < 40 {
		t.Errorf("only %d files were decoded", decoded)
	}
}
