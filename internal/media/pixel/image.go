package pixel

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"

	"penstock/core/media"
	"penstock/internal/media/probe"
)

// DecodeImage decodes a picture, whose format it detects by its first bytes: JPEG (8 bits,
// Huffman), PNG, GIF (the first frame), WebP (not animated), BMP or TIFF (the first page). The
// tensor is [H, W, 3] bytes of RGB, oriented according to the file's EXIF data. Transparency is
// dropped, so the color below it shows, as in PIL's convert("RGB") (GIF: black); 16 bits become 8
// by dropping the low ones; CMYK becomes RGB without a color profile.
func DecodeImage(file []byte, l Limits) (media.Tensor, media.Size, error) {
	if err := checkBytes(file, &l); err != nil {
		return media.Tensor{}, media.Size{}, err
	}
	p, err := decodeRGB(file, &l)
	if err != nil {
		return media.Tensor{}, media.Size{}, fmt.Errorf("decode image: %w", err)
	}
	return media.Tensor{Shape: []int{p.height, p.width, 3}, Data: p.rgb}, media.Size{Width: p.width, Height: p.height}, nil
}

// rgbImage is rows of RGB.
type rgbImage struct {
	width, height int
	rgb           []byte
}

// imageCodec is one format of pictures.
type imageCodec struct {
	name   string
	magic  string // "?" matches any byte
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
	// rgb converts luma and chroma to RGB.
	rgb func(y, cb, cr uint8) (r, g, b uint8)
	// maxPixelsPerByte bounds the pixels which a byte of a file can encode, 0 if there is no bound;
	// the decoders allocate what the header claims.
	maxPixelsPerByte int
}

// In a deflate stream, two bits can encode a match of 258 bytes of 8 pixels. In a JPEG, a block of
// 64 pixels takes at least one bit of one of its components; twice that is allowed.
const (
	densestDeflate = 4 * 258 * 8
	densestJPEG    = 2 * 64 * 8
)

func imageCodecs() []imageCodec {
	return []imageCodec{
		{"JPEG", "\xff\xd8\xff", jpeg.DecodeConfig, jpeg.Decode, color.YCbCrToRGB, densestJPEG},
		{"PNG", "\x89PNG\r\n\x1a\n", png.DecodeConfig, png.Decode, nil, densestDeflate},
		{"GIF", "GIF8?a", gif.DecodeConfig, gif.Decode, nil, 0},
		{"WebP", "RIFF????WEBPVP8", webp.DecodeConfig, webp.Decode, videoToRGB, 0},
		{"BMP", "BM", bmp.DecodeConfig, bmp.Decode, nil, 8},
		{"TIFF", "II*\x00", tiff.DecodeConfig, tiff.Decode, nil, 0},
		{"TIFF", "MM\x00*", tiff.DecodeConfig, tiff.Decode, nil, 0},
	}
}

func hasMagic(file []byte, magic string) bool {
	if len(file) < len(magic) {
		return false
	}
	for i := range len(magic) {
		if magic[i] != '?' && magic[i] != file[i] {
			return false
		}
	}
	return true
}

// decodeRGB decodes a file whose length was checked.
func decodeRGB(file []byte, l *Limits) (rgbImage, error) {
	for _, c := range imageCodecs() {
		if hasMagic(file, c.magic) {
			p, err := c.decodeFile(file, l)
			if err != nil {
				return rgbImage{}, fmt.Errorf("%s: %w", c.name, err)
			}
			return p, nil
		}
	}
	return rgbImage{}, fmt.Errorf("neither JPEG, PNG, GIF, WebP, BMP nor TIFF: %w", ErrUnsupported)
}

func (c *imageCodec) decodeFile(file []byte, l *Limits) (_ rgbImage, err error) {
	defer func() { // third-party decoders of untrusted files may panic
		if v := recover(); v != nil {
			err = fmt.Errorf("the decoder gave up: %w", ErrMalformed)
		}
	}()
	if c.name == "WebP" && isAnimatedWebP(file) {
		return rgbImage{}, fmt.Errorf("animated: %w", ErrUnsupported)
	}
	cfg, err := c.config(bytes.NewReader(file))
	if err != nil {
		return rgbImage{}, decoderError(err)
	}
	if err := l.checkSize(cfg.Width, cfg.Height, 1); err != nil {
		return rgbImage{}, err
	}
	if c.maxPixelsPerByte > 0 && cfg.Width*cfg.Height/c.maxPixelsPerByte > len(file) {
		return rgbImage{}, fmt.Errorf("%d bytes cannot hold %d by %d pixels: %w", len(file), cfg.Width, cfg.Height, ErrMalformed)
	}
	if c.name == "JPEG" && countScans(file) > maxScans {
		return rgbImage{}, fmt.Errorf("the picture is sent in more than %d scans: %w", maxScans, ErrTooLarge)
	}
	img, err := c.decode(bytes.NewReader(file))
	if err != nil {
		return rgbImage{}, decoderError(err)
	}
	p := newRGBImage(cfg.Width, cfg.Height)
	if err := p.drawImage(img, c.rgb); err != nil {
		return rgbImage{}, err
	}
	return p.orient(readOrientation(file)), nil
}

// maxScans bounds the scans of a JPEG over all of its pixels. Real pictures have some ten scans; a
// scan of forty bytes can encode no change, but still takes a pass over the picture.
const maxScans = 128

// countScans counts the scans of a JPEG up to its end, or to one more than maxScans.
func countScans(file []byte) (n int) {
	const escape, firstRestart, lastRestart, end, scan = 0x00, 0xD0, 0xD7, 0xD9, 0xDA
	for at := 2; n <= maxScans; {
		i := bytes.IndexByte(file[min(at, len(file)):], 0xFF)
		if at += i + 1; i < 0 || at >= len(file) {
			break
		}
		switch marker := file[at]; {
		case marker == 0xFF: // a fill byte
		case marker == end:
			return n
		case marker == escape, marker >= firstRestart && marker <= lastRestart:
			at++
		default:
			if marker == scan {
				n++
			}
			if at+2 >= len(file) {
				return n
			}
			at += 1 + int(file[at+1])<<8 + int(file[at+2])
		}
	}
	return n
}

// decoderError maps a decoder's error to this package's errors.
func decoderError(err error) error {
	var (
		jpegUnsupported jpeg.UnsupportedError
		pngUnsupported  png.UnsupportedError
		tiffUnsupported tiff.UnsupportedError
	)
	switch {
	case errors.As(err, &jpegUnsupported):
		return fmt.Errorf("%.100s: %w", string(jpegUnsupported), ErrUnsupported)
	case errors.As(err, &pngUnsupported):
		if pngUnsupported == "dimension overflow" { // of a 32-bit int
			return fmt.Errorf("more pixels than this system can count: %w", ErrTooLarge)
		}
		return fmt.Errorf("%.100s: %w", string(pngUnsupported), ErrUnsupported)
	case errors.As(err, &tiffUnsupported):
		return fmt.Errorf("%.100s: %w", string(tiffUnsupported), ErrUnsupported)
	case errors.Is(err, bmp.ErrUnsupported):
		return fmt.Errorf("this kind of bitmap: %w", ErrUnsupported)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("the file is cut off: %w", ErrMalformed)
	}
	return fmt.Errorf("%.200v: %w", err, ErrMalformed)
}

// isAnimatedWebP reports whether the flags of an extended WebP say that it is animated.
func isAnimatedWebP(file []byte) bool {
	const animation = 1 << 1
	return hasMagic(file, "RIFF????WEBPVP8X") && len(file) > 20 && file[20]&animation != 0
}

// orient returns the picture oriented according to EXIF: 2 to 4 are mirrored or rotated by 180
// degrees, 5 to 8 have width and height exchanged. p must not be used afterwards.
func (p rgbImage) orient(orientation int) rgbImage {
	if orientation < 2 || orientation > 8 {
		return p
	}
	w, h := p.width, p.height
	if orientation >= 5 {
		w, h = h, w
	}
	q := newRGBImage(w, h)
	for y := range h {
		for x := range w {
			fx, fy := x, y // source pixel
			switch orientation {
			case 2:
				fx = w - 1 - x
			case 3:
				fx, fy = w-1-x, h-1-y
			case 4:
				fy = h - 1 - y
			case 5:
				fx, fy = y, x
			case 6:
				fx, fy = y, w-1-x
			case 7:
				fx, fy = h-1-y, w-1-x
			case 8:
				fx, fy = h-1-y, x
			}
			copy(q.rgb[3*(y*w+x):][:3], p.rgb[3*(fy*p.width+fx):])
		}
	}
	return q
}

// readOrientation returns the EXIF orientation of a picture, 1 to 8; 0 if unknown. It uses the
// probe, so that the decoded size equals the size that was counted.
func readOrientation(file []byte) int {
	info, err := probe.ReadHeader(file)
	if err != nil {
		return 0
	}
	return info.Orientation
}
