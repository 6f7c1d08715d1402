package token

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// charsmap is a normalizer compiled into a SentencePiece model: a double array from byte strings to their
// replacements.
type charsmap struct {
	units    []uint32
	blob     string // replacements, each ended by a zero byte
	clusters *graphemeClusters
}

// newCharsmap reads, in base64, the length of the array in bytes, the array, and the replacements; integers
// are little-endian.
func newCharsmap(encoded string) (normalizer, error) {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, malformed("normalizer Precompiled: %v", err)
	}
	if len(raw) == 0 {
		return func(text string) string { return text }, nil
	}
	if len(raw) < 4 || uint64(binary.LittleEndian.Uint32(raw)) > uint64(len(raw)-4) {
		return nil, malformed("normalizer Precompiled is cut off")
	}
	size := int(binary.LittleEndian.Uint32(raw))
	raw = raw[4:]
	m := &charsmap{units: make([]uint32, size/4), blob: string(raw[size:])}
	if !utf8.ValidString(m.blob) {
		return nil, malformed("normalizer Precompiled has replacements that are not UTF-8")
	}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	if m.clusters, err = newGraphemeClusters(); err != nil {
		return nil, err
	}
	return m.normalize, nil
}

// wholeCluster is the length in bytes below which a cluster is looked up as a whole.
const wholeCluster = 6

// normalize replaces grapheme clusters of a few bytes by the replacement of their shortest prefix in the map,
// and everything else character by character. A cluster can lose its marks in this way, as in the reference.
func (m *charsmap) normalize(text string) string {
	var b strings.Builder
	for text != "" {
		n := m.clusters.nextCluster(text)
		cluster := text[:n]
		text = text[n:]
		if n < wholeCluster {
			if to, ok := m.lookupPrefix(cluster); ok {
				b.WriteString(to)
				continue
			}
		}
		for cluster != "" {
			_, width := utf8.DecodeRuneInString(cluster)
			if to, ok := m.lookupPrefix(cluster[:width]); ok {
				b.WriteString(to)
			} else {
				b.WriteString(cluster[:width])
			}
			cluster = cluster[width:]
		}
	}
	return b.String()
}

// lookupPrefix returns the replacement of the shortest prefix of key which has one.
func (m *charsmap) lookupPrefix(key string) (string, bool) {
	at := uint32(0)
	unit, ok := m.unitAt(at)
	for i := 0; ok && i < len(key) && key[i] != 0; i++ {
		at ^= childOffset(unit) ^ uint32(key[i])
		if unit, ok = m.unitAt(at); !ok || unit&(1<<31|0xFF) != uint32(key[i]) {
			return "", false
		}
		if unit>>8&1 == 0 {
			continue
		}
		leaf, ok := m.unitAt(at ^ childOffset(unit))
		if start := leaf &^ (1 << 31); ok && uint64(start) <= uint64(len(m.blob)) {
			to, _, _ := strings.Cut(m.blob[start:], "\x00")
			return to, true
		}
		return "", false
	}
	return "", false
}

func (m *charsmap) unitAt(at uint32) (uint32, bool) {
	if uint64(at) >= uint64(len(m.units)) {
		return 0, false
	}
	return m.units[at], true
}

// childOffset is the position of a unit's children, relative to it.
func childOffset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// graphemeClusters finds grapheme clusters as far as charsmap needs them: the ones of less than wholeCluster
// bytes.
type graphemeClusters struct{ extends *runeSet }

func newGraphemeClusters() (*graphemeClusters, error) {
	p, err := newCharProperties()
	if err != nil {
		return nil, err
	}
	return &graphemeClusters{&p.extends}, nil
}

// nextCluster returns the length of the first cluster of text. Clusters joined for other reasons than marks
// and joiners (Hangul syllables, flags, families) are cut up: they are too long to be looked up as one. It
// could only matter to a part with a mark of its own and a replacement without it.
func (c *graphemeClusters) nextCluster(text string) int {
	r, n := utf8.DecodeRuneInString(text)
	if r == '\r' && len(text) > 1 && text[1] == '\n' {
		return 2
	}
	for isPrepend(r) && n < len(text) {
		next, width := utf8.DecodeRuneInString(text[n:])
		if isClusterBreak(next) {
			break
		}
		r = next
		n += width
	}
	if isClusterBreak(r) {
		return n
	}
	for n < len(text) {
		next, width := utf8.DecodeRuneInString(text[n:])
		if !c.extends.contains(next) {
			break
		}
		n += width
	}
	return n
}

// isPrepend: Grapheme_Cluster_Break=Prepend.
func isPrepend(r rune) bool {
	switch {
	case r < 0x600:
		return false
	case r <= 0x605, r == 0x6DD, r == 0x70F, r == 0x890, r == 0x891, r == 0x8E2, r == 0xD4E,
		r == 0x110BD, r == 0x110CD, r == 0x111C2, r == 0x111C3, r == 0x113D1, r == 0x1193F, r == 0x11941, r == 0x11A3A, 0x11A84 <= r && r <= 0x11A89,
		r == 0x11D46, r == 0x11F02:
		return true
	}
	return false
}

// isClusterBreak: no cluster continues after or before it: Grapheme_Cluster_Break is Control, CR or LF.
func isClusterBreak(r rune) bool {
	switch {
	case r < 0x20, 0x7F <= r && r < 0xA0, r == 0xAD, r == 0x61C, r == 0x180E, r == 0x200B, r == 0x200E, r == 0x200F,
		0x2028 <= r && r <= 0x202E, 0x2060 <= r && r <= 0x206F, r == 0xFEFF, 0xFFF0 <= r && r <= 0xFFFB,
		0x13430 <= r && r <= 0x1343F, 0x1BCA0 <= r && r <= 0x1BCA3, 0x1D173 <= r && r <= 0x1D17A,
		0xE0000 <= r && r <= 0xE001F, 0xE0080 <= r && r <= 0xE00FF, 0xE01F0 <= r && r <= 0xE0FFF:
		return true
	}
	return false
}
