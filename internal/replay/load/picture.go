package load

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"

	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/replay"
)

// tileSide is the side of an image's squares of one colour, and colorCount the number of colours: few, so
// that the files are small and images of different ids differ in nearly all squares.
const (
	tileSide   = 16
	colorCount = 16
	// defaultSide is the side of an image without a size in the workload.
	defaultSide = 224
)

// imageGenerator makes images. It has one owner.
type imageGenerator struct {
	seed    uint64
	picture image.Paletted
	file    bytes.Buffer
	encoder png.Encoder
}

func newImageGenerator(seed uint64) *imageGenerator {
	p := &imageGenerator{seed: seed, encoder: png.Encoder{CompressionLevel: png.BestSpeed, BufferPool: new(encoderBuffer)}}
	for i := range colorCount {
		x := splitmix.Mix(uint64(i))
		p.picture.Palette = append(p.picture.Palette, color.RGBA{R: uint8(x), G: uint8(x >> 8), B: uint8(x >> 16), A: 255})
	}
	return p
}

// appendDataURI appends an image as a data: URI: a PNG which is a function of the object's id, its size and
// the seed.
func (p *imageGenerator) appendDataURI(dst []byte, m *replay.Media) []byte {
	w, h := m.Width, m.Height
	if w <= 0 || h <= 0 {
		w, h = defaultSide, defaultSide
	}
	if n := w * h; cap(p.picture.Pix) < n {
		p.picture.Pix = make([]byte, n)
	}
	p.picture.Pix, p.picture.Stride, p.picture.Rect = p.picture.Pix[:w*h], w, image.Rect(0, 0, w, h)
	draw := splitmix.Source(splitmix.Mix(kv.ContentHash(p.seed, []byte(m.ID))))
	for y := 0; y < h; y += tileSide {
		row := p.picture.Pix[y*w : (y+1)*w]
		for x := 0; x < w; x += tileSide {
			hue := byte(draw.Next() % colorCount)
			for i := x; i < min(x+tileSide, w); i++ {
				row[i] = hue
			}
		}
		for i := y + 1; i < min(y+tileSide, h); i++ {
			copy(p.picture.Pix[i*w:(i+1)*w], row)
		}
	}
	p.file.Reset()
	_ = p.encoder.Encode(&p.file, &p.picture) // it cannot fail: it writes to memory, and the size is allowed
	dst = append(dst, "data:image/png;base64,"...)
	return base64.StdEncoding.AppendEncode(dst, p.file.Bytes())
}

// encoderBuffer keeps the encoder's memory for the next image.
type encoderBuffer struct{ kept *png.EncoderBuffer }

// Get implements png.EncoderBufferPool.
func (b *encoderBuffer) Get() *png.EncoderBuffer {
	kept := b.kept
	b.kept = nil
	return kept
}

// Put implements png.EncoderBufferPool.
func (b *encoderBuffer) Put(kept *png.EncoderBuffer) { b.kept = kept }
