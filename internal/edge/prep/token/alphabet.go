package token

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
