package token

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
)

// TestParsePlainRefuses: what is not supported is refused by its name.
func TestParsePlainRefuses(t *testing.T) {
	const bpe = `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	for _, c := range []struct {
		parts, says string
		code        fault.Code
	}{
		{`"model":{"type":"Markov","vocab":{"a":0}}`, "model Markov", fault.Unimplemented},
		{`"model":{"type":"BPE","vocab":{"a":0},"end_of_word_suffix":"</w>"}`, "end_of_word_suffix", fault.Unimplemented},
		{`"model":{"type":"BPE","vocab":{"a":0},"continuing_subword_prefix":"##"}`, "continuing_subword_prefix", fault.Unimplemented},
		{`"model":{"type":"BPE","vocab":{"a":0},"dropout":0.5}`, "dropout", fault.Unimplemented},
		{`"model":{"type":"BPE","vocab":{"a":0},"unk_token":"u"}`, "unk_token", fault.Invalid},
		{`"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}`, "merge 0", fault.Invalid},
		{`"model":` + bpe + `,"added_tokens":[{"id":2,"content":"ab","special":true}]`, "forge", fault.Unimplemented},
		{`"model":{"type":"WordLevel","vocab":{"a":0}}`, "unk_token", fault.Invalid},
		{`"model":{"type":"Unigram"}`, "no vocabulary", fault.Invalid},
		{`"model":{"type":"Unigram","vocab":[["a",-1]]}`, "unk_id", fault.Unimplemented},
		{`"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":1}`, "unk_id 1", fault.Invalid},
		{`"model":{"type":"Unigram","vocab":[["a",-1],["a",-2]],"unk_id":0}`, "twice", fault.Unimplemented},
		{`"model":{"type":"WordPiece","vocab":{"a":0},"unk_token":"[UNK]"}`, "unk_token", fault.Invalid},
		{`"model":` + bpe + `,"normalizer":{"type":"Replace","pattern":{"Regex":"x*"},"content":""}`, `"x*"`, fault.Unimplemented},
		{`"model":` + bpe + `,"normalizer":{"type":"Precompiled","precompiled_charsmap":"//8="}`, "cut off", fault.Invalid},
		{`"model":` + bpe + `,"normalizer":{"type":"BertNormalizer"}`, "BertNormalizer", fault.Invalid},
		{`"model":` + bpe + `,"pre_tokenizer":{"type":"UnicodeScripts"}`, "pre_tokenizer UnicodeScripts", fault.Unimplemented},
		{`"model":` + bpe + `,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"},"behavior":"Isolated"}`, `"x"`, fault.Unimplemented},
		{`"model":` + bpe + `,"pre_tokenizer":{"type":"Split","pattern":{"String":"x"},"behavior":"Odd"}`, `"Odd"`, fault.Unimplemented},
		{`"model":` + bpe + `,"pre_tokenizer":{"type":"Metaspace","replacement":"xy"}`, "replacement", fault.Invalid},
		{`"model":` + bpe + `,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","add_prefix_space":false}`, "disagree", fault.Invalid},
		{`"model":` + bpe + `,"normalizer":{"type":"Strip","strip_left":true},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`, "normalizer Strip", fault.Unimplemented},
		{`"model":` + bpe + `,"decoder":{"type":"CTC"}`, "decoder CTC", fault.Unimplemented},
		{`"model":` + bpe + `,"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":0,"stop":1}]}`, "stop", fault.Unimplemented},
		{`"model":` + bpe + `,"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"WordPiece"}]}`, "WordPiece after ByteFallback", fault.Unimplemented},
		{`"model":` + bpe + `,"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Metaspace","replacement":"▁"}]}`, "Metaspace after Fuse", fault.Unimplemented},
		{`"model":` + bpe + `,"post_processor":{"type":"BertProcessing","sep":["b",1]}`, "cls and sep", fault.Invalid},
		{`"model":` + bpe + `,"post_processor":{"type":"BertProcessing","sep":["b",1],"cls":["c",9]}`, "id 9", fault.Invalid},
	} {
		_, err := Parse([]byte("{"+c.parts+"}"), nil)
		if err == nil || fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v (%v); want %v and %q", c.parts, err, fault.CodeOf(err), c.code, c.says)
		}
	}
}

// naiveUnigram tries every way to put word together.
func naiveUnigram(scores map[string]float64, word string) (best float64, ways bool) {
	if word == "" {
		return 0, true
	}
	for n := 1; n <= len(word); n++ {
		score, ok := scores[word[:n]]
		if !ok {
			continue
		}
		if rest, ok := naiveUnigram(scores, word[n:]); ok && (!ways || score+rest > best) {
			best, ways = score+rest, true
		}
	}
	return best, ways
}

func TestUnigramAgainstDefinition(t *testing.T) {
	scores := map[string]float64{"a": -3, "b": -4, "ab": -5, "ba": -2.5, "aba": -6, "bb": -9, "abba": -8.25}
	list := [][2]any{{"?", -10}}
	for _, name := range []string{"a", "b", "ab", "ba", "aba", "bb", "abba"} {
		list = append(list, [2]any{name, scores[name]})
	}
	vocab, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(fmt.Appendf(nil, `{"model":{"type":"Unigram","unk_id":0,"vocab":%s}}`, vocab), nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1 << 10 {
		word := strings.NewReplacer("0", "a", "1", "b").Replace(fmt.Sprintf("%b", n))
		sum := 0.0
		var text []byte
		for _, id := range tok.Encode(nil, word, prep.EncodeOptions{}) {
			name := list[id][0].(string)
			sum += scores[name]
			text = append(text, name...)
		}
		if want, _ := naiveUnigram(scores, word); sum != want || string(text) != word {
			t.Errorf("%s: %s with %v, want %v", word, text, sum, want)
		}
	}
}

// TestBordersChangeNothing: cutting before space marks gives the ids of the
// uncut text.
func TestBordersChangeNothing(t *testing.T) {
	tok, _ := readPlain(t, "llama")
	cut, ok := tok.charLevel.model.(*spaceMarkSplitter)
	if !ok {
		t.Fatalf("the model is a %T", tok.charLevel.model)
	}
	for _, text := range caseTexts(plainFragments(t))[:2000] {
		text = tok.normalize(text)
		got, want := cut.appendWord(nil, text), cut.words.model.appendWord([]kv.Token{}, text)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: %v, whole %v", text, got, want)
		}
	}
}
