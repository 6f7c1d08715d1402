package frontend

// stopStrings are a request's stop strings, prepared once and shared by the matchers of its choices.
type stopStrings []stopString

// stopString is one string with its failure function (Knuth, Morris and Pratt 1977): fail[k] is the
// length of the longest proper prefix of text that is a suffix of text[:k]. It makes matching linear in
// the text, for any string.
type stopString struct {
	text string
	fail []int32
}

func newStopStrings(stops []string) stopStrings {
	ns := make(stopStrings, len(stops))
	for i, s := range stops {
		fail := make([]int32, len(s)+1)
		k := int32(0)
		for j := 1; j < len(s); j++ {
			for k > 0 && s[k] != s[j] {
				k = fail[k]
			}
			if s[k] == s[j] {
				k++
			}
			fail[j+1] = k
		}
		ns[i] = stopString{text: s, fail: fail}
	}
	return ns
}

// stopMatcher finds the first of the stop strings in a text that arrives in pieces. It must not be fed
// after a match.
type stopMatcher struct {
	stopStrings stopStrings
	state       []int32 // for each stop string, how much of it the text ends with
}

func newStopMatcher(ns stopStrings) stopMatcher {
	return stopMatcher{stopStrings: ns, state: make([]int32, len(ns))}
}

// feed takes the next piece. At the first byte that completes a stop string it returns the number of
// bytes of b up to and including that byte and the length of the stop string, the longest if several
// end there; 0, 0 if there is no match.
func (m *stopMatcher) feed(b []byte) (end, length int) {
	if len(m.stopStrings) == 0 {
		return 0, 0
	}
	for i, c := range b {
		for j := range m.stopStrings {
			n := &m.stopStrings[j]
			k := m.state[j]
			for k > 0 && n.text[k] != c {
				k = n.fail[k]
			}
			if n.text[k] == c {
				k++
			}
			m.state[j] = k
			if int(k) == len(n.text) {
				length = max(length, len(n.text))
			}
		}
		if length > 0 {
			return i + 1, length
		}
	}
	return 0, 0
}

// heldBytes is the number of bytes at the end of the text which may begin a stop string. They begin
// with a stop string's first byte, so never within a character.
func (m *stopMatcher) heldBytes() int {
	h := int32(0)
	for _, k := range m.state {
		h = max(h, k)
	}
	return int(h)
}
