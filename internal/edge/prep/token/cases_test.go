package token

import (
	"crypto/sha256"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// caseNames are all the tokenizers among the fixtures.
var caseNames = slices.Concat(fixtureNames, laterNames, plainNames)

// laterNames are the byte-level tokenizers that only make_cases.py is about.
var laterNames = []string{"deepseek", "gpt4o", "tekken", "cl100k", "qwen35"}

// caseCount is the number of texts for each tokenizer.
const caseCount = 12_000

// caseFixture is described in tools/fixtures/make_cases.py.
type caseFixture struct {
	Added   []string
	First   [][]kv.Token
	Forged  []int
	Digests []byte // four bytes for each text; base64 in the file
}

func readCases(tb testing.TB, name string) (tok *Tokenizer, texts []string, want *caseFixture) {
	tb.Helper()
	want = new(caseFixture)
	unmarshalFixture(tb, "cases."+name, want)
	var fragments []string
	unmarshalFixture(tb, "cases.fragments", &fragments)
	if slices.Contains(plainNames, name) {
		tok, _ = readPlain(tb, name)
	} else {
		tok = fixtureTokenizer(tb, name)
	}
	return tok, caseTexts(append(fragments, want.Added...)), want
}

// generator is that of Knuth's MMIX, its upper half, as in make_plain.py.
type generator uint64

func (g *generator) below(n int) int {
	*g = *g*6364136223846793005 + 1442695040888963407
	return int((uint64(*g) >> 33) % uint64(n))
}

// caseTexts puts the texts together as the script does.
func caseTexts(fragments []string) []string {
	g := generator(1)
	texts := make([]string, caseCount)
	for i := range texts {
		texts[i] = caseText(&g, fragments)
	}
	return texts
}

func caseText(g *generator, fragments []string) string {
	kind := g.below(10)
	if kind == 0 {
		var b strings.Builder
		for range 1 + g.below(40) {
			b.WriteRune(caseCharacter(g))
		}
		return b.String()
	}
	parts := make([]string, 1+g.below(6))
	if kind == 1 {
		parts = append(parts, make([]string, 20)...)
	}
	between := []string{"", " ", "", "\n"}[g.below(4)]
	for i := range parts {
		parts[i] = fragments[g.below(len(fragments))]
	}
	text := strings.Join(parts, between)
	if kind != 2 {
		return text
	}
	damaged := []byte(text)
	for range 1 + g.below(4) {
		at := g.below(len(damaged))
		damaged[at] = byte(g.below(256))
	}
	return naiveReplace(damaged[min(g.below(4), len(damaged)):])
}

func caseCharacter(g *generator) rune {
	planes := [...][2]int{
		{0x20, 0x7F},
		{0, 0x180},
		{0x300, 0x370},
		{0x370, 0x2000},
		{0x2000, 0x3100},
		{0x4E00, 0xA000},
		{0xAC00, 0xD7A4},
		{0x1F300, 0x1FB00},
		{0x10000, 0x110000},
	}
	p := planes[g.below(len(planes))]
	return rune(p[0] + g.below(p[1]-p[0]))
}

// TestReferenceCases holds every tokenizer to what the reference makes of the
// texts: ids with special tokens and without, and decoded text.
func TestReferenceCases(t *testing.T) {
	for _, name := range caseNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tok, texts, want := readCases(t, name)
			if len(want.Digests) != 4*len(texts) {
				t.Fatalf("%d bytes of digests for %d texts", len(want.Digests), len(texts))
			}
			different := 0
			for i, text := range texts {
				forged := slices.Contains(want.Forged, i)
				lines := caseLines(tok, text, forged)
				if i < len(want.First) && lines[0] != idLine(want.First[i]) {
					t.Errorf("case %d, %+q: ids %s, want %v", i, text, lines[0], want.First[i])
				}
				if digest := caseDigest(lines); digest != [4]byte(want.Digests[4*i:]) {
					if different++; different <= 5 {
						t.Errorf("case %d, %+q:\n%s\ndiffers from tools/fixtures/make_cases.py --show %s %d", i, text, strings.Join(lines, "\n"), name, i)
					}
				}
				if forged {
					forgesNothing(t, tok, text)
				}
			}
			if different > 0 {
				t.Errorf("%d of %d texts differ", different, len(texts))
			}
		})
	}
}

// forgesNothing: what the reference makes a special token of is none here.
func forgesNothing(t *testing.T, tok *Tokenizer, text string) {
	t.Helper()
	unk := tok.unknown()
	ids := tok.Encode(nil, text, prep.EncodeOptions{})
	if slices.ContainsFunc(ids, func(id kv.Token) bool { return tok.IsSpecial(id) && id != unk }) {
		t.Errorf("plain text %+q gives a special token: %v", text, ids)
	}
}

// caseLines is what is compared for one text.
func caseLines(tok *Tokenizer, text string, forged bool) []string {
	ids := tok.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
	lines := []string{idLine(ids), decodeAll(tok, ids, false)}
	if forged {
		return lines
	}
	plain := tok.Encode(nil, text, prep.EncodeOptions{})
	lines = append(lines, idLine(plain), decodeAll(tok, plain, true))
	if tok.charLevel == nil {
		lines = append(lines, decodeAll(tok, everyOther(plain), true))
	}
	return lines
}

func idLine(ids []kv.Token) string {
	line := make([]byte, 0, 6*len(ids))
	for i, id := range ids {
		if i > 0 {
			line = append(line, ' ')
		}
		line = strconv.AppendUint(line, uint64(id), 10)
	}
	return string(line)
}

func everyOther(ids []kv.Token) (half []kv.Token) {
	for i := 0; i < len(ids); i += 2 {
		half = append(half, ids[i])
	}
	return half
}

func caseDigest(lines []string) [4]byte {
	h := sha256.New()
	for _, line := range lines {
		io.WriteString(h, line+"\n")
	}
	return [4]byte(h.Sum(nil))
}

// TestCasesAreVaried: the texts have what makes tokenizers differ.
func TestCasesAreVaried(t *testing.T) {
	_, texts, want := readCases(t, "llama3")
	count := map[string]int{}
	for _, text := range texts {
		for _, part := range []string{"中文", "مرحبا", "👩‍👩‍👧‍👦", replacement, strings.Repeat(" ", 100), want.Added[0], "func "} {
			if strings.Contains(text, part) {
				count[part]++
			}
		}
	}
	for part, n := range count {
		if n < 50 {
			t.Errorf("%q is in %d texts only", part, n)
		}
	}
	if len(count) != 7 {
		t.Errorf("only %d of 7 kinds are there", len(count))
	}
}
