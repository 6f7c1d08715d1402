// Package probe reads how large pictures and sounds are from the headers of their
// files, of which it wants to see as little as it can: a caller that has a file hands
// it over whole ([Header]), and one that must ask for it piece by piece is told which
// bytes are wanted next ([Probe]).
//
// Formats are known by their first bytes, never by a name or a declared type. Sizes are
// those of the picture as it is shown, which is how Pillow, and so the processors of the
// engines, see it after ImageOps.exif_transpose: turned as EXIF, XMP or the container
// say. What headers claim is never allocated, and no file is asked for in more than
// [MaxRanges] ranges.
package probe

import (
	"fmt"
	"math"

	"penstock/core/media"
)

// Limits of what is believed.
const (
	// MaxSide is the longest side of a picture, in pixels.
	MaxSide = 65535
	// DefaultMaxPixels is how many pixels a picture may have if nothing else is said: twice
	// Pillow's MAX_IMAGE_PIXELS, above which it refuses to open a picture.
	DefaultMaxPixels = 178956970
	// MaxRanges is how many ranges of a file are asked for at most.
	MaxRanges = 16
)

// Format says what a file is.
type Format uint8

// The formats. The zero value is none of them.
const (
	PNG Format = iota + 1
	GIF
	JPEG
	WebP
	BMP
	TIFF
	AVIF
	HEIC
	WAV
)

// String returns the format's usual name, in small letters.
func (f Format) String() string {
	names := [...]string{"unknown", "png", "gif", "jpeg", "webp", "bmp", "tiff", "avif", "heic", "wav"}
	if int(f) < len(names) {
		return names[f]
	}
	return names[0]
}

// Info is what a header says.
type Info struct {
	Format Format
	Kind   media.Kind
	// Size is that of the picture as it is shown, if Oriented; otherwise width and height may
	// have to be exchanged. Of a sound, Samples are what becomes of it at 16 kHz.
	Size media.Size
	// Oriented says that it is known which way up the picture is.
	Oriented bool
	// Orientation is how the file's pixels are to be turned, as EXIF numbers it (1 to 8); 0 if
	// that is not known. Of AVIF and HEIC it is 1: who decodes those turns them.
	Orientation int
	// Frames, Rate and Channels are those of a sound as it is in the file: how many samples each
	// channel has, and how many there are in a second.
	Frames         int64
	Rate, Channels int
}

// Need is a range of a file that is wanted.
type Need struct{ Offset, Length int64 }

// IsZero reports whether nothing is wanted.
func (n Need) IsZero() bool { return n == Need{} }

// Fault says what is wrong with a file.
type Fault uint8

// The faults.
const (
	NotMedia    Fault = iota + 1 // the bytes are none of the formats
	Malformed                    // they begin like one, and contradict it
	Unsupported                  // a variant that is not read
	TooLarge                     // larger than the limits
)

// Error says why nothing is known of a file.
type Error struct {
	Fault  Fault
	Format Format // 0 if not known
	Reason string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Format == 0 {
		return "probe: " + e.Reason
	}
	return "probe " + e.Format.String() + ": " + e.Reason
}

// Probe reads the header of a file of which it is given pieces, and keeps no more
// than 64 KiB of its begin and the ranges that it has asked for. The zero value is
// ready.
type Probe struct {
	// MaxPixels is how many pixels a picture may have; 0 for DefaultMaxPixels.
	MaxPixels int64

	known bool // total is the file's length
	total int64
	kept  []part
	asked []Need
}

// Add tells p what the file has at an offset. Bytes that it has no use for are not
// kept; it does not hold on to b.
func (p *Probe) Add(offset int64, b []byte) {
	if offset < 0 || offset > math.MaxInt64-int64(len(b)) {
		return
	}
	p.keep(Need{Length: reach}, offset, b)
	for _, n := range p.asked {
		if n.Offset+n.Length > reach {
			p.keep(n, offset, b)
		}
	}
}

// keep adds what b has of a range.
func (p *Probe) keep(n Need, offset int64, b []byte) {
	from, to := max(n.Offset, offset), min(n.Offset+n.Length, offset+int64(len(b)))
	if from < to {
		p.kept = insert(p.kept, part{from, b[from-offset : to-offset]})
	}
}

// End tells p how many bytes the file has, as far as anybody said so. What should be
// behind them is not asked for.
func (p *Probe) End(total int64) { p.known, p.total = true, max(total, 0) }

// Result returns what is known so far. If more bytes are wanted it says which; with an
// Info that has a size, they would only tell which way up the picture is, and the caller
// may do without. A range that is not given although it was asked for is asked for again.
// Errors are of type *Error and final.
func (p *Probe) Result() (Info, Need, error) {
	v := view{parts: p.kept, total: -1}
	if p.known {
		v.total = p.total
	}
	info, missing, err := v.read(p.MaxPixels)
	if err != nil || missing.IsZero() {
		return info, Need{}, err
	}
	if n, ok := p.ask(missing, info.Size.Width > 0); ok {
		return info, n, nil
	}
	if info.Size == (media.Size{}) {
		return Info{}, Need{}, &Error{Unsupported, info.Format, "the size is in too many places of the file"}
	}
	return info, Need{}, nil
}

// ask returns the range to ask for if one is missing: first the beginning of the file,
// then all that is ever kept of it, then that very place; that at once if the size is known.
// It reports whether there may be one more range.
func (p *Probe) ask(missing Need, sized bool) (Need, bool) {
	head := int64(0)
	if len(p.kept) > 0 && p.kept[0].off == 0 {
		head = min(int64(len(p.kept[0].b)), reach)
	}
	var n Need
	switch {
	case head < first:
		n = Need{head, first - head}
	case !sized && head < reach && missing.Offset < reach:
		n = Need{head, reach - head}
	default:
		n = Need{missing.Offset, max(missing.Length, first)}
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
		return Need{}, false
	}
	p.asked = append(p.asked, n)
	return n, true
}

// Header returns what the header of a whole file says. Errors are of type *Error.
func Header(file []byte) (Info, error) { return HeaderWithin(file, 0) }

// HeaderWithin is Header with a limit of pixels; 0 for DefaultMaxPixels.
func HeaderWithin(file []byte, maxPixels int64) (Info, error) {
	v := view{parts: []part{{0, file}}, total: int64(len(file)), whole: true}
	info, _, err := v.read(maxPixels)
	return info, err
}

// found is what a parser has read.
type found struct {
	width, height  int64
	sized          bool
	turn           int // as EXIF numbers it; 0 if not known
	frames         int64
	rate, channels int
}

// size notes the size of a picture's pixels as the file has them.
func (f *found) size(width, height int64) {
	f.width, f.height, f.sized = width, height, true
}

// parse reads a file of a format; it returns errShort if the view has not got what it
// wants, of which found may have a part by then.
func (v *view) parse(format Format, f *found) error {
	switch format {
	case PNG:
		return v.png(f)
	case GIF:
		return v.gif(f)
	case JPEG:
		return v.jpeg(f)
	case WebP:
		return v.webp(f)
	case BMP:
		return v.bmp(f)
	case TIFF:
		return v.tiff(f)
	case WAV:
		return v.wav(f)
	default:
		return v.heif(f)
	}
}

// read returns what the view says, or which bytes it lacks.
func (v *view) read(maxPixels int64) (Info, Need, error) {
	if v.total == 0 {
		return Info{}, Need{}, &Error{NotMedia, 0, "the file is empty"}
	}
	format, ok := v.sniff()
	switch {
	case !ok && !v.missing.IsZero():
		return Info{}, v.missing, nil
	case !ok:
		return Info{}, Need{}, &Error{NotMedia, 0, "the file is no picture and no sound of a known format: PNG, JPEG, GIF, WebP, BMP, TIFF, AVIF, HEIC, WAV"}
	}
	f := found{}
	err := v.parse(format, &f)
	if err != nil && err != errShort {
		e := err.(*Error)
		e.Format = format
		return Info{}, Need{}, e
	}
	if err == errShort && !f.sized && v.missing.IsZero() {
		why := &Error{Malformed, format, "the file ends before its size is told"}
		if v.steps > maxSteps {
			why = &Error{Unsupported, format, "the size is behind too many parts"}
		}
		return Info{}, Need{}, why
	}
	info := Info{Format: format, Kind: media.Image}
	if !f.sized {
		return info, v.missing, nil
	}
	if format == WAV {
		info.Kind, info.Oriented = media.Audio, true
		info.Frames, info.Rate, info.Channels = f.frames, f.rate, f.channels
		info.Size.Samples, ok = Samples(f.frames, f.rate)
		if !ok {
			return Info{}, Need{}, soundError(f.frames, f.rate)
		}
		return info, Need{}, nil
	}
	if e := check(f.width, f.height, maxPixels); e != nil {
		e.Format = format
		return Info{}, Need{}, e
	}
	info.Size.Width, info.Size.Height = int(f.width), int(f.height)
	if f.turn >= 5 {
		info.Size.Width, info.Size.Height = info.Size.Height, info.Size.Width
	}
	info.Orientation, info.Oriented = f.turn, f.turn != 0
	if err == nil {
		return info, Need{}, nil
	}
	return info, v.missing, nil
}

// soundError says why a sound has no length that can be used.
func soundError(frames int64, rate int) *Error {
	if frames == 0 {
		return &Error{Malformed, WAV, "the sound has no samples"}
	}
	return &Error{TooLarge, WAV, "the sound is too long"}
}

// check refuses sizes that no picture has, and those above the limits.
func check(width, height, maxPixels int64) *Error {
	if maxPixels <= 0 {
		maxPixels = DefaultMaxPixels
	}
	switch {
	case width <= 0 || height <= 0:
		return &Error{Fault: Malformed, Reason: fmt.Sprintf("a side of %d by %d pixels is 0 or less", width, height)}
	case width > MaxSide || height > MaxSide:
		return &Error{Fault: TooLarge, Reason: fmt.Sprintf("a side of %d by %d pixels is longer than %d", width, height, MaxSide)}
	case width*height > maxPixels:
		return &Error{Fault: TooLarge, Reason: fmt.Sprintf("%d by %d pixels are more than %d", width, height, maxPixels)}
	}
	return nil
}

// ModelRate is the rate of sounds that models hear, in samples a second.
const ModelRate = 16000

// Samples returns how many samples a sound of so many at a rate has at ModelRate, rounded up as the
// resamplers of vLLM (torchaudio, PyAV, scipy) and SGLang round. It reports false if there are none, or
// more than anybody listens to.
func Samples(frames int64, rate int) (int, bool) {
	if frames < 0 || rate <= 0 || frames > 1<<40 {
		return 0, false
	}
	n := (frames*ModelRate + int64(rate) - 1) / int64(rate)
	return int(n), n > 0 && n <= math.MaxInt32
}
