// Package probe reads the size of images and sounds from the headers of their files, with as few bytes as
// possible. A caller which has the file passes it whole ([ReadHeader]). A caller which must request it
// piece by piece is told which bytes are needed next ([Probe]).
//
// Formats are identified by their first bytes, never by a name or a declared type. Sizes are those of the
// displayed image, as Pillow, and so the engines' processors, see it after ImageOps.exif_transpose: rotated
// as EXIF, XMP or the container say. Nothing is allocated by the sizes which headers claim, and no file is
// requested in more than [MaxRanges] ranges.
package probe

import (
	"fmt"
	"math"

	"penstock/core/media"
)

// The limits of accepted files.
const (
	// MaxSide is the longest side of an image, in pixels.
	MaxSide = 65535
	// DefaultMaxPixels is the default limit of pixels in an image: twice Pillow's MAX_IMAGE_PIXELS, above
	// which Pillow refuses to open an image.
	DefaultMaxPixels = 178956970
	// MaxRanges bounds the ranges of a file which are requested.
	MaxRanges = 16
)

// FileFormat is a file format.
type FileFormat uint8

// The formats. The zero value is none of them.
const (
	PNG FileFormat = iota + 1
	GIF
	JPEG
	WebP
	BMP
	TIFF
	AVIF
	HEIC
	WAV
)

// String returns the format's usual name, in lower case.
func (f FileFormat) String() string {
	names := [...]string{"unknown", "png", "gif", "jpeg", "webp", "bmp", "tiff", "avif", "heic", "wav"}
	if int(f) < len(names) {
		return names[f]
	}
	return names[0]
}

// Info is the content of a header.
type Info struct {
	Format FileFormat
	Kind   media.Kind
	// Size is the displayed size, if Oriented; otherwise width and height may have to be exchanged. For a
	// sound, Samples is its length at 16 kHz.
	Size media.Size
	// Oriented says that the orientation is known.
	Oriented bool
	// Orientation is the EXIF orientation of the file's pixels (1 to 8); 0 if unknown. For AVIF and HEIC it
	// is 1, because their decoders rotate.
	Orientation int
	// Frames, Rate and Channels describe a sound as stored in the file: samples per channel, and samples
	// per second.
	Frames         int64
	Rate, Channels int
}

// ByteRange is a range of a file which is needed.
type ByteRange struct{ Offset, Length int64 }

// IsZero reports whether nothing is needed.
func (n ByteRange) IsZero() bool { return n == ByteRange{} }

// ErrorKind says what is wrong with a file.
type ErrorKind uint8

// The error kinds.
const (
	NotMedia    ErrorKind = iota + 1 // the bytes match none of the formats
	Malformed                        // they start like a format, and contradict it
	Unsupported                      // an unsupported variant
	TooLarge                         // larger than the limits
)

// Error says why a file cannot be read.
type Error struct {
	Kind   ErrorKind
	Format FileFormat // 0 if unknown
	Reason string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Format == 0 {
		return "probe: " + e.Reason
	}
	return "probe " + e.Format.String() + ": " + e.Reason
}

// Probe reads the header of a file which arrives in pieces. It keeps at most the first 64 KiB and the
// ranges which it requested. The zero value is ready.
type Probe struct {
	// MaxPixels is the limit of pixels in an image; 0 means DefaultMaxPixels.
	MaxPixels int64

	known bool // total is the file's length
	total int64
	kept  []filePart
	asked []ByteRange
}

// AddBytes hands p the file's bytes at an offset. It copies what it needs, and does not keep b.
func (p *Probe) AddBytes(offset int64, b []byte) {
	if offset < 0 || offset > math.MaxInt64-int64(len(b)) {
		return
	}
	p.keepRange(ByteRange{Length: keptHead}, offset, b)
	for _, n := range p.asked {
		if n.Offset+n.Length > keptHead {
			p.keepRange(n, offset, b)
		}
	}
}

// keepRange keeps the part of b which is in range n.
func (p *Probe) keepRange(n ByteRange, offset int64, b []byte) {
	from, to := max(n.Offset, offset), min(n.Offset+n.Length, offset+int64(len(b)))
	if from < to {
		p.kept = insertPart(p.kept, filePart{from, b[from-offset : to-offset]})
	}
}

// SetLength sets the file's length, as the sender reports it. Probe requests nothing after it.
func (p *Probe) SetLength(total int64) { p.known, p.total = true, max(total, 0) }

// Result returns what is known so far. If it needs more bytes it returns their range. If Info already has a
// size, those bytes would only give the orientation, and the caller may do without them. It repeats a range
// which was not delivered. Errors are of type *Error and final.
func (p *Probe) Result() (Info, ByteRange, error) {
	v := fileView{parts: p.kept, total: -1}
	if p.known {
		v.total = p.total
	}
	info, missing, err := v.readInfo(p.MaxPixels)
	if err != nil || missing.IsZero() {
		return info, ByteRange{}, err
	}
	if n, ok := p.nextRange(missing, info.Size.Width > 0); ok {
		return info, n, nil
	}
	if info.Size == (media.Size{}) {
		return Info{}, ByteRange{}, &Error{Unsupported, info.Format, "the size is in too many places of the file"}
	}
	return info, ByteRange{}, nil
}

// nextRange returns the range to request: first the start of the file, then everything which is kept of the
// start, then the missing place itself. If the size is known it goes there at once. It reports whether
// another range may be requested.
func (p *Probe) nextRange(missing ByteRange, sized bool) (ByteRange, bool) {
	head := int64(0)
	if len(p.kept) > 0 && p.kept[0].off == 0 {
		head = min(int64(len(p.kept[0].b)), keptHead)
	}
	var n ByteRange
	switch {
	case head < firstRead:
		n = ByteRange{head, firstRead - head}
	case !sized && head < keptHead && missing.Offset < keptHead:
		n = ByteRange{head, keptHead - head}
	default:
		n = ByteRange{missing.Offset, max(missing.Length, firstRead)}
	}
	if p.known {
		n.Length = min(n.Length, p.total-n.Offset)
	}
	for _, a := range p.asked {
		if n.Offset >= a.Offset && n.Offset < a.Offset+a.Length {
			n.Length = min(n.Length, a.Offset+a.Length-n.Offset)
			return n, true
		}
	}
	if len(p.asked) == MaxRanges || n.Length <= 0 {
		return ByteRange{}, false
	}
	p.asked = append(p.asked, n)
	return n, true
}

// ReadHeader returns the header of a whole file. Errors are of type *Error.
func ReadHeader(file []byte) (Info, error) { return ReadHeaderWithin(file, 0) }

// ReadHeaderWithin is ReadHeader with a limit of pixels; 0 means DefaultMaxPixels.
func ReadHeaderWithin(file []byte, maxPixels int64) (Info, error) {
	v := fileView{parts: []filePart{{0, file}}, total: int64(len(file)), whole: true}
	info, _, err := v.readInfo(maxPixels)
	return info, err
}

// parsedHeader is what a parser has read.
type parsedHeader struct {
	width, height  int64
	sized          bool
	orientation    int // as in EXIF; 0 if unknown
	frames         int64
	rate, channels int
}

// setSize records the size of an image's pixels as stored in the file.
func (f *parsedHeader) setSize(width, height int64) {
	f.width, f.height, f.sized = width, height, true
}

// parseFormat parses a file of a format. It returns errShort if the view lacks bytes; f may be partly set
// by then.
func (v *fileView) parseFormat(format FileFormat, f *parsedHeader) error {
	switch format {
	case PNG:
		return v.parsePNG(f)
	case GIF:
		return v.parseGIF(f)
	case JPEG:
		return v.parseJPEG(f)
	case WebP:
		return v.parseWebP(f)
	case BMP:
		return v.parseBMP(f)
	case TIFF:
		return v.parseTIFF(f)
	case WAV:
		return v.parseWAV(f)
	default:
		return v.parseHEIF(f)
	}
}

// readInfo returns the header of the view, or the range which it lacks.
func (v *fileView) readInfo(maxPixels int64) (Info, ByteRange, error) {
	if v.total == 0 {
		return Info{}, ByteRange{}, &Error{NotMedia, 0, "the file is empty"}
	}
	format, ok := v.sniffFormat()
	switch {
	case !ok && !v.missing.IsZero():
		return Info{}, v.missing, nil
	case !ok:
		return Info{}, ByteRange{}, &Error{NotMedia, 0, "the file is no picture and no sound of a known format: PNG, JPEG, GIF, WebP, BMP, TIFF, AVIF, HEIC, WAV"}
	}
	f := parsedHeader{}
	err := v.parseFormat(format, &f)
	if err != nil && err != errShort {
		e := err.(*Error)
		e.Format = format
		return Info{}, ByteRange{}, e
	}
	if err == errShort && !f.sized && v.missing.IsZero() {
		why := &Error{Malformed, format, "the file ends before its size is told"}
		if v.steps > maxSteps {
			why = &Error{Unsupported, format, "the size is behind too many parts"}
		}
		return Info{}, ByteRange{}, why
	}
	info := Info{Format: format, Kind: media.Image}
	if !f.sized {
		return info, v.missing, nil
	}
	if format == WAV {
		info.Kind, info.Oriented = media.Audio, true
		info.Frames, info.Rate, info.Channels = f.frames, f.rate, f.channels
		info.Size.Samples, ok = ModelSamples(f.frames, f.rate)
		if !ok {
			return Info{}, ByteRange{}, newSoundError(f.frames, f.rate)
		}
		return info, ByteRange{}, nil
	}
	if e := checkSize(f.width, f.height, maxPixels); e != nil {
		e.Format = format
		return Info{}, ByteRange{}, e
	}
	info.Size.Width, info.Size.Height = int(f.width), int(f.height)
	if f.orientation >= 5 {
		info.Size.Width, info.Size.Height = info.Size.Height, info.Size.Width
	}
	info.Orientation, info.Oriented = f.orientation, f.orientation != 0
	if err == nil {
		return info, ByteRange{}, nil
	}
	return info, v.missing, nil
}

// newSoundError says why a sound has no usable length.
func newSoundError(frames int64, rate int) *Error {
	if frames == 0 {
		return &Error{Malformed, WAV, "the sound has no samples"}
	}
	return &Error{TooLarge, WAV, "the sound is too long"}
}

// checkSize refuses impossible sizes and sizes above the limits.
func checkSize(width, height, maxPixels int64) *Error {
	if maxPixels <= 0 {
		maxPixels = DefaultMaxPixels
	}
	switch {
	case width <= 0 || height <= 0:
		return &Error{Kind: Malformed, Reason: fmt.Sprintf("a side of %d by %d pixels is 0 or less", width, height)}
	case width > MaxSide || height > MaxSide:
		return &Error{Kind: TooLarge, Reason: fmt.Sprintf("a side of %d by %d pixels is longer than %d", width, height, MaxSide)}
	case width*height > maxPixels:
		return &Error{Kind: TooLarge, Reason: fmt.Sprintf("%d by %d pixels are more than %d", width, height, maxPixels)}
	}
	return nil
}

// ModelRate is the sample rate of models, in samples per second.
const ModelRate = 16000

// ModelSamples returns the number of samples at ModelRate of a sound with `frames` samples at a rate,
// rounded up as the resamplers of vLLM (torchaudio, PyAV, scipy) and SGLang do. It reports false if there
// are none, or implausibly many.
func ModelSamples(frames int64, rate int) (int, bool) {
	if frames < 0 || rate <= 0 || frames > 1<<40 {
		return 0, false
	}
	n := (frames*ModelRate + int64(rate) - 1) / int64(rate)
	return int(n), n > 0 && n <= math.MaxInt32
}
