package token

import (
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// byteDecoder holds back the bytes of an incomplete character.
type byteDecoder struct {
	t       *Tokenizer
	keep    bool
	pending []byte // fewer than utf8.UTFMax bytes, the beginning of a character
	buf     [32]byte
}

// NewDecoder returns an incremental decoder for one stream. Its output is the bytes of all tokens with every
// maximal part of a broken character replaced by U+FFFD, as Python's "replace" and the Unicode standard do,
// wherever the token borders are. Unknown ids decode to nothing.
func (t *Tokenizer) NewDecoder(opts prep.DecodeOptions) prep.Decoder {
	if t.charLevel != nil {
		return t.newChainDecoder(opts)
	}
	d := &byteDecoder{t: t, keep: opts.KeepSpecial}
	d.pending = d.buf[:0]
	return d
}

// Push appends the text which id completes to dst; it may be empty.
func (d *byteDecoder) Push(dst []byte, id kv.Token) []byte {
	if !d.keep && d.t.IsSpecial(id) {
		return dst
	}
	text := d.t.entryBytes(id)
	if len(d.pending) == 0 && utf8.ValidString(text) {
		return append(dst, text...)
	}
	d.pending = append(d.pending, text...)
	dst, n := appendComplete(dst, d.pending)
	d.pending = d.pending[:copy(d.pending, d.pending[n:])]
	return dst
}

// Flush appends the rest, broken characters as U+FFFD.
func (d *byteDecoder) Flush(dst []byte) []byte {
	if len(d.pending) > 0 {
		d.pending = d.pending[:0]
		dst = append(dst, replacement...)
	}
	return dst
}

const replacement = "\uFFFD"

// appendComplete appends src to dst with broken characters replaced, except for a tail which further bytes
// could complete. n is the length consumed.
func appendComplete(dst, src []byte) (out []byte, n int) {
	for n < len(src) {
		size, whole := scanCharacter(src[n:])
		switch {
		case whole:
			dst = append(dst, src[n:n+size]...)
		case n+size == len(src) && size < characterLength(src[n]):
			return dst, n
		default:
			dst = append(dst, replacement...)
		}
		n += size
	}
	return dst, n
}

// scanCharacter returns the length of the longest prefix of src, at least 1, which is a character or could
// begin one, and whether it is complete.
func scanCharacter(src []byte) (size int, whole bool) {
	want := characterLength(src[0])
	for size = 1; size < want && size < len(src); size++ {
		low, high := byte(0x80), byte(0xBF)
		if size == 1 {
			low, high = secondByteRange(src[0])
		}
		if src[size] < low || src[size] > high {
			return size, false
		}
	}
	return size, size == want
}

// characterLength is the length of the character which starts with lead; 0 if none does.
func characterLength(lead byte) int {
	switch {
	case lead < 0x80:
		return 1
	case lead < 0xC2:
		return 0
	case lead < 0xE0:
		return 2
	case lead < 0xF0:
		return 3
	case lead < 0xF5:
		return 4
	}
	return 0
}

// secondByteRange is the range of the byte after lead: table 3-7 of the Unicode standard, which rules out
// overlong forms, surrogates and code points beyond U+10FFFF.
func secondByteRange(lead byte) (low, high byte) {
	switch lead {
	case 0xE0:
		return 0xA0, 0xBF
	case 0xED:
		return 0x80, 0x9F
	case 0xF0:
		return 0x90, 0xBF
	case 0xF4:
		return 0x80, 0x8F
	}
	return 0x80, 0xBF
}

// Alphabet returns the byte-level alphabet of GPT-2, which writes each byte as one printable character, so
// that vocabularies are plain text: printable Latin-1 bytes stand for themselves, the others for U+0100
// onwards in order.
func Alphabet() (chars [256]rune) {
	next := rune(0x100)
	for b := range 256 {
		if isPrintableLatin1(b) {
			chars[b] = rune(b)
			continue
		}
		chars[b] = next
		next++
	}
	return chars
}

func isPrintableLatin1(b int) bool {
	return '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b && b <= 0xFF
}

// inverseAlphabet is the inverse alphabet. Its characters are all below 0x180.
type inverseAlphabet [0x180]int16

func newInverseAlphabet() *inverseAlphabet {
	inverse := new(inverseAlphabet)
	for i := range inverse {
		inverse[i] = -1
	}
	for b, r := range Alphabet() {
		inverse[r] = int16(b)
	}
	return inverse
}

// appendBytes appends the bytes of entry. An entry with a character outside the alphabet stands for its own
// text, as in the reference.
func (inverse *inverseAlphabet) appendBytes(dst []byte, entry string) []byte {
	if text, ok := inverse.spelledBytes(entry); ok {
		return append(dst, text...)
	}
	return append(dst, entry...)
}

// spelledBytes returns the bytes which entry spells; ok is false if it has a character outside the alphabet.
func (inverse *inverseAlphabet) spelledBytes(entry string) (text string, ok bool) {
	spelled := make([]byte, 0, len(entry))
	for _, r := range entry {
		if int(r) >= len(inverse) || inverse[r] < 0 {
			return "", false
		}
		spelled = append(spelled, byte(inverse[r]))
	}
	return string(spelled), true
}
