package pixel

import (
	"fmt"
	"image"
	"image/color"
)

func newRGBImage(width, height int) rgbImage {
	return rgbImage{width: width, height: height, rgb: make([]byte, 3*width*height)}
}

// rowFrom returns the part of row y from x on.
func (p *rgbImage) rowFrom(x, y int) []byte { return p.rgb[3*(y*p.width+x) : 3*(y+1)*p.width] }

// drawImage draws img at its bounds, clipped to the picture. rgb converts luma and chroma to
// colors.
func (p *rgbImage) drawImage(img image.Image, rgb func(y, cb, cr uint8) (r, g, b uint8)) error {
	r := img.Bounds().Intersect(image.Rect(0, 0, p.width, p.height))
	if r.Empty() {
		return fmt.Errorf("no pixels: %w", ErrMalformed)
	}
	for y := r.Min.Y; y < r.Max.Y; y++ {
		drawRow(p.rowFrom(r.Min.X, y), img, rgb, r.Min.X, r.Max.X, y)
	}
	return nil
}

// drawRow writes the pixels [x, end) of row y as RGB. Alpha is dropped; for premultiplied types,
// which only TIFF yields, the products stay.
func drawRow(dst []byte, img image.Image, rgb func(y, cb, cr uint8) (r, g, b uint8), x, end, y int) {
	n := end - x
	dst = dst[:3*n]
	switch m := img.(type) {
	case *image.YCbCr:
		drawYCbCr(dst, m, rgb, x, y)
	case *image.NYCbCrA:
		drawYCbCr(dst, &m.YCbCr, rgb, x, y)
	case *image.Gray:
		for i, v := range m.Pix[m.PixOffset(x, y):][:n] {
			dst[3*i], dst[3*i+1], dst[3*i+2] = v, v, v
		}
	case *image.Gray16:
		from := m.Pix[m.PixOffset(x, y):][:2*n]
		for i := range n {
			v := from[2*i]
			dst[3*i], dst[3*i+1], dst[3*i+2] = v, v, v
		}
	case *image.NRGBA:
		copyChannels(dst, m.Pix[m.PixOffset(x, y):], 4, 1)
	case *image.RGBA:
		copyChannels(dst, m.Pix[m.PixOffset(x, y):], 4, 1)
	case *image.NRGBA64:
		copyChannels(dst, m.Pix[m.PixOffset(x, y):], 8, 2)
	case *image.RGBA64:
		copyChannels(dst, m.Pix[m.PixOffset(x, y):], 8, 2)
	case *image.Paletted:
		for i, v := range m.Pix[m.PixOffset(x, y):][:n] {
			dst[3*i], dst[3*i+1], dst[3*i+2] = paletteColor(m.Palette, v)
		}
	case *image.CMYK:
		from := m.Pix[m.PixOffset(x, y):][:4*n]
		for i := range n {
			dst[3*i], dst[3*i+1], dst[3*i+2] = color.CMYKToRGB(from[4*i], from[4*i+1], from[4*i+2], from[4*i+3])
		}
	default:
		for i := range n {
			r, g, b, _ := img.At(x+i, y).RGBA()
			dst[3*i], dst[3*i+1], dst[3*i+2] = byte(r>>8), byte(g>>8), byte(b>>8)
		}
	}
}

// copyChannels copies the first three channels of each pixel of stride bytes: the high byte of each
// channel of width bytes.
func copyChannels(dst, from []byte, stride, width int) {
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+stride {
		dst[i], dst[i+1], dst[i+2] = from[j], from[j+width], from[j+2*width]
	}
}

func drawYCbCr(dst []byte, m *image.YCbCr, rgb func(y, cb, cr uint8) (r, g, b uint8), x, y int) {
	for i := 0; i+2 < len(dst); i += 3 {
		at, c := m.YOffset(x, y), m.COffset(x, y)
		dst[i], dst[i+1], dst[i+2] = rgb(m.Y[at], m.Cb[c], m.Cr[c])
		x++
	}
}

// videoToRGB is color.YCbCrToRGB for luma from 16 to 235 and chroma from 16 to 240, the ranges of
// WebP (its decoder returns the numbers unchanged): BT.601 with 16 fraction bits.
func videoToRGB(y, cb, cr uint8) (r, g, b uint8) {
	const (
		luma              = 76309 // 255/219
		redCr             = 104597
		greenCb, greenCr  = 25675, 53279
		blueCb, half, one = 132201, 1 << 15, 16
	)
	clip := func(v int) uint8 { return uint8(max(0, min(255, (v+half)>>one))) }
	l, u, v := (int(y)-16)*luma, int(cb)-128, int(cr)-128
	return clip(l + redCr*v), clip(l - greenCb*u - greenCr*v), clip(l + blueCb*u)
}

// paletteColor returns a color of a palette without its alpha; an index beyond the palette is
// black.
func paletteColor(p color.Palette, index byte) (r, g, b byte) {
	if int(index) >= len(p) {
		return 0, 0, 0
	}
	switch c := p[index].(type) {
	case color.RGBA:
		return c.R, c.G, c.B
	case color.NRGBA:
		return c.R, c.G, c.B
	}
	r32, g32, b32, _ := p[index].RGBA()
	return byte(r32 >> 8), byte(g32 >> 8), byte(b32 >> 8)
}
