package token

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// decoderChain is the decoder of a vocabulary which is not byte-level: steps on each entry, then on the
// joined text.
type decoderChain struct {
	steps []chainStep
	// bytes: entries like <0x0A> stand for a byte, recognised after the first before steps. The remaining
	// steps work on characters, including those spelled in bytes.
	bytes  bool
	before int
	// joinsWithSpaces: entries are joined with spaces, as without any decoder.
	joinsWithSpaces bool
	// A final Strip: up to stripped leading characters strip are removed.
	strip    string
	stripped int
}

// chainStep rewrites one entry. first reports that no entry was before it.
type chainStep func(entry string, first bool) string

// newDecoderChain reads the decoders.
func newDecoderChain(raw json.RawMessage) (*decoderChain, error) {
	list, err := parseComponents(raw)
	if err != nil {
		return nil, err
	}
	c := &decoderChain{joinsWithSpaces: len(list) == 0}
	fused := false
	for i, s := range list {
		switch {
		case s.Type == "Fuse":
			fused = true
		case fused:
			if err := c.setStrip(&s); err != nil {
				return nil, err
			}
		case s.Type == "ByteFallback":
			if c.bytes {
				return nil, unsupported("more than one decoder ByteFallback is not supported")
			}
			c.bytes, c.before = true, i
		default:
			step, err := newChainStep(&s)
			if err != nil {
				return nil, err
			}
			if c.bytes && !s.worksOnCharacters() {
				return nil, unsupported("decoder %s after ByteFallback is not supported", s.Type)
			}
			c.steps = append(c.steps, step)
		}
	}
	return c, nil
}

// setStrip reads the decoder after Fuse.
func (c *decoderChain) setStrip(s *componentConfig) error {
	switch {
	case s.Type != "Strip":
		return unsupported("decoder %s after Fuse is not supported", s.Type)
	case c.strip != "":
		return unsupported("more than one decoder Strip after Fuse is not supported")
	case s.Stop != 0:
		return unsupported("decoder Strip after Fuse with stop is not supported: a stream has no end to cut")
	case utf8.RuneCountInString(s.Content) != 1 || s.Start < 0:
		return malformed("decoder Strip has not one character as content, or a negative start")
	}
	c.strip, c.stripped = s.Content, s.Start
	return nil
}

func newChainStep(s *componentConfig) (chainStep, error) {
	switch s.Type {
	case "Replace":
		replace, err := newReplacer(s)
		return func(entry string, _ bool) string { return replace(entry) }, err
	case "Strip":
		if utf8.RuneCountInString(s.Content) != 1 || s.Start < 0 || s.Stop < 0 {
			return nil, malformed("decoder Strip has not one character as content, or a negative start or stop")
		}
		return func(entry string, _ bool) string { return stripEnds(entry, s.Content, s.Start, s.Stop) }, nil
	case "Metaspace":
		m, err := newMetaspace(s)
		if err != nil {
			return nil, err
		}
		return m.decodeEntry, nil
	case "WordPiece":
		return wordPieceStep(s.Prefix, s.Cleanup), nil
	}
	return nil, unsupported("decoder %s is not supported with this model", s.Type)
}

// worksOnCharacters reports whether a decoder gives the same on a text as on its characters one by one.
func (s *componentConfig) worksOnCharacters() bool {
	return s.Type == "Metaspace" || s.Type == "Replace" && utf8.RuneCountInString(s.Pattern.String) == 1
}

func stripEnds(entry, char string, start, stop int) string {
	for ; start > 0 && strings.HasPrefix(entry, char); start-- {
		entry = entry[len(char):]
	}
	for ; stop > 0 && strings.HasSuffix(entry, char); stop-- {
		entry = entry[:len(entry)-len(char)]
	}
	return entry
}

func (m *metaspace) decodeEntry(entry string, first bool) string {
	space := " "
	if first && m.scheme != "never" {
		space = ""
	}
	return strings.ReplaceAll(entry, m.mark, space)
}

// wordPieceStep puts spaces before entries which start a word. The clean-up is for English, entry by entry.
func wordPieceStep(prefix string, cleanup bool) chainStep {
	english := [][2]string{
		{" .", "."},
		{" ?", "?"},
		{" !", "!"},
		{" ,", ","},
		{" ' ", "'"},
		{" n't", "n't"},
		{" 'm", "'m"},
		{" do not", " don't"},
		{" 's", "'s"},
		{" 've", "'ve"},
		{" 're", "'re"},
	}
	return func(entry string, first bool) string {
		if rest, ok := strings.CutPrefix(entry, prefix); ok && !first {
			entry = rest
		} else if !first {
			entry = " " + entry
		}
		if cleanup {
			for _, pair := range english {
				entry = strings.ReplaceAll(entry, pair[0], pair[1])
			}
		}
		return entry
	}
}

// renderEntry returns the text of an entry. If it stands for a byte, text is the byte and isByte is set.
func (c *decoderChain) renderEntry(entry string, first bool) (text string, isByte bool) {
	for i := 0; i <= len(c.steps); i++ {
		if c.bytes && i == c.before {
			if b, ok := parseByteEntry(entry); ok {
				return string([]byte{b}), true
			}
		}
		if i < len(c.steps) {
			entry = c.steps[i](entry, first)
		}
	}
	if c.joinsWithSpaces && !first {
		entry = " " + entry
	}
	return entry, false
}

// renderSpelled returns the text of a character spelled in bytes.
func (c *decoderChain) renderSpelled(char string, first bool) string {
	for _, step := range c.steps[c.before:] {
		char = step(char, first)
	}
	return char
}

// parseByteEntry reads entries like <0x0A>, in either case.
func parseByteEntry(entry string) (byte, bool) {
	if len(entry) != 6 || !strings.HasPrefix(entry, "<0x") || entry[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(entry[3:5], 16, 8)
	return byte(b), err == nil
}

// byteEntryName is the entry of b.
func byteEntryName(b byte) string {
	const digits = "0123456789ABCDEF"
	return "<0x" + string([]byte{digits[b>>4], digits[b&15]}) + ">"
}

// chainDecoder decodes one stream. Characters spelled in bytes come out as soon as they are complete; an
// invalid run of bytes comes out as U+FFFD for every byte up to the next entry which is not a byte. (The
// reference, which sees the end of a run before showing its beginning, replaces all of a run with an invalid
// byte. A stream cannot do that without waiting.)
type chainDecoder struct {
	t       *Tokenizer
	keep    bool
	started bool // an entry was pushed
	first   bool // nothing came before this entry or run of bytes
	strip   int  // leading characters which may still be stripped
	// pending is the beginning of a character; broken: the run of bytes is invalid.
	pending []byte
	broken  bool
	buf     [utf8.UTFMax]byte
}

func (t *Tokenizer) newChainDecoder(opts prep.DecodeOptions) *chainDecoder {
	d := &chainDecoder{t: t, keep: opts.KeepSpecial, strip: t.charLevel.chain.stripped}
	d.pending = d.buf[:0]
	return d
}

// Push appends the text which id completes to dst; it may be empty.
func (d *chainDecoder) Push(dst []byte, id kv.Token) []byte {
	if !d.keep && d.t.IsSpecial(id) || !d.t.isKnown(id) {
		return dst
	}
	text, isByte := d.t.entryBytes(id), d.t.charLevel.isByte(id)
	d.first = !d.started || d.first && isByte
	d.started = true
	if isByte {
		return d.pushByte(dst, text[0])
	}
	dst = d.endRun(dst)
	if d.first {
		d.first = false
		text, _ = d.t.charLevel.chain.renderEntry(d.t.charLevel.entryName(id), true)
	}
	return d.appendStripped(dst, text)
}

func (d *chainDecoder) pushByte(dst []byte, b byte) []byte {
	if d.broken {
		return d.appendStripped(dst, replacement)
	}
	d.pending = append(d.pending, b)
	switch size, whole := scanCharacter(d.pending); {
	case whole:
		dst = d.appendStripped(dst, d.t.charLevel.chain.renderSpelled(string(d.pending), d.first))
		d.pending = d.pending[:0]
	case size < len(d.pending) || size >= characterLength(d.pending[0]):
		d.broken = true
		dst = d.flushPending(dst)
	}
	return dst
}

// endRun ends a run of bytes.
func (d *chainDecoder) endRun(dst []byte) []byte {
	d.broken = false
	return d.flushPending(dst)
}

func (d *chainDecoder) flushPending(dst []byte) []byte {
	for range d.pending {
		dst = d.appendStripped(dst, replacement)
	}
	d.pending = d.pending[:0]
	return dst
}

// appendStripped appends text without the leading characters to strip.
func (d *chainDecoder) appendStripped(dst []byte, text string) []byte {
	for d.strip > 0 && text != "" {
		rest, ok := strings.CutPrefix(text, d.t.charLevel.chain.strip)
		if !ok {
			d.strip = 0
			break
		}
		text = rest
		d.strip--
	}
	return append(dst, text...)
}

// Flush appends the rest, broken characters as U+FFFD, and resets the decoder.
func (d *chainDecoder) Flush(dst []byte) []byte {
	dst = d.endRun(dst)
	d.started, d.first, d.strip = false, false, d.t.charLevel.chain.stripped
	return dst
}
