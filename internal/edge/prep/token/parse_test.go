package token

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/fixturetest"
)

// object is a JSON object that tests change.
type object = map[string]any

// changed returns the built-in tokenizer.json after change.
func changed(tb testing.TB, change func(object)) []byte {
	tb.Helper()
	var o object
	file, _ := BuiltinFiles()
	if err := json.Unmarshal(file, &o); err != nil {
		tb.Fatal(err)
	}
	change(o)
	out, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func model(o object) object { return o["model"].(object) }

func TestParseRefuses(t *testing.T) {
	set := func(key string, value any) func(object) { return func(o object) { o[key] = value } }
	inModel := func(key string, value any) func(object) { return func(o object) { model(o)[key] = value } }
	component := func(stage, kind string) func(object) { return set(stage, object{"type": kind}) }
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}
	for name, c := range map[string]struct {
		change func(object)
		code   fault.Code
		says   string
	}{
		"normalizer":        {component("normalizer", "ByteLevel"), fault.Unimplemented, "normalizer ByteLevel"},
		"in a sequence":     {set("normalizer", object{"type": "Sequence", "normalizers": []any{object{"type": "NFC"}, object{"type": "Unknown"}}}), fault.Unimplemented, "normalizer Unknown"},
		"pre-tokenizer":     {component("pre_tokenizer", "Metaspace"), fault.Unimplemented, "does not end in ByteLevel"},
		"none":              {set("pre_tokenizer", nil), fault.Unimplemented, "does not end in ByteLevel"},
		"before ByteLevel":  {set("pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{object{"type": "Whitespace"}, byteLevel}}), fault.Unimplemented, "pre_tokenizer Whitespace in place 1 of 2"},
		"two ByteLevel":     {set("pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{byteLevel, byteLevel}}), fault.Unimplemented, "pre_tokenizer ByteLevel in place 1 of 2"},
		"prefix unsaid":     {component("pre_tokenizer", "ByteLevel"), fault.Invalid, "add_prefix_space"},
		"pattern":           {set("pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{object{"type": "Split", "behavior": "Isolated", "pattern": object{"Regex": `\w+`}}, byteLevel}}), fault.Unimplemented, `pattern "\\w+"`},
		"behavior":          {set("pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{object{"type": "Split", "behavior": "Removed", "pattern": object{"Regex": PatternGPT2}}, byteLevel}}), fault.Unimplemented, `behavior "Removed"`},
		"decoder":           {component("decoder", "WordPiece"), fault.Unimplemented, "decoder WordPiece"},
		"no decoder":        {set("decoder", nil), fault.Unimplemented, "without a decoder"},
		"post-processor":    {component("post_processor", "Unknown"), fault.Unimplemented, "post_processor Unknown"},
		"no sequence":       {component("post_processor", "TemplateProcessing"), fault.Invalid, "0 sequences"},
		"undefined token":   {set("post_processor", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>"}}}}), fault.Invalid, `"<s>"`},
		"unknown id":        {set("post_processor", object{"type": "TemplateProcessing", "single": []any{object{"SpecialToken": object{"id": "<s>"}}}, "special_tokens": object{"<s>": object{"ids": []any{5000}}}}), fault.Invalid, "5000"},
		"model":             {inModel("type", "Unigram"), fault.Unimplemented, "model Unigram"},
		"vocabulary list":   {inModel("vocab", []any{}), fault.Unimplemented, "without a vocabulary"},
		"dropout":           {inModel("dropout", 0.1), fault.Unimplemented, "dropout"},
		"prefix":            {inModel("continuing_subword_prefix", "##"), fault.Unimplemented, "continuing_subword_prefix"},
		"suffix":            {inModel("end_of_word_suffix", "</w>"), fault.Unimplemented, "end_of_word_suffix"},
		"byte fallback":     {inModel("byte_fallback", true), fault.Unimplemented, "byte_fallback"},
		"missing byte":      {func(o object) { delete(model(o)["vocab"].(object), "Ā") }, fault.Unimplemented, "byte 0x00"},
		"merge of nothing":  {inModel("merges", []any{"a zzz"}), fault.Invalid, "merge 0"},
		"merge of three":    {inModel("merges", []any{[]any{"a", "b", "c"}}), fault.Invalid, "3 parts"},
		"merge of one":      {inModel("merges", []any{"ab"}), fault.Invalid, "one space"},
		"merge of a number": {inModel("merges", []any{1}), fault.Invalid, "cannot unmarshal"},
		"id twice":          {func(o object) { model(o)["vocab"].(object)["two"] = 65 }, fault.Invalid, "id 65"},
		"huge id":           {func(o object) { model(o)["vocab"].(object)["two"] = maxID }, fault.Unimplemented, "2097152"},
		"negative id":       {func(o object) { model(o)["vocab"].(object)["two"] = -1 }, fault.Invalid, "cannot unmarshal"},
		"added elsewhere":   {set("added_tokens", []any{object{"id": 1000, "content": "router"}}), fault.Invalid, "disagree"},
		"added twice":       {set("added_tokens", []any{object{"id": 5000, "content": "<s>"}, object{"id": 5001, "content": "<s>"}}), fault.Invalid, "5000 and 5001"},
		"forgeable": {func(o object) {
			o["added_tokens"] = []any{object{"id": model(o)["vocab"].(object)["router"], "content": "router", "special": true}}
		}, fault.Unimplemented, "forge"},
	} {
		_, err := Parse(changed(t, c.change), nil)
		if err == nil || fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "parse tokenizer.json: ") {
			t.Errorf("%s: %v (%v); want %v and %q", name, err, fault.CodeOf(err), c.code, c.says)
		}
	}
}

func TestParseRefusesDeepNesting(t *testing.T) {
	stage := object{"type": "NFC"}
	for range maxNesting + 2 {
		stage = object{"type": "Sequence", "normalizers": []any{stage}}
	}
	_, err := Parse(changed(t, func(o object) { o["normalizer"] = stage }), nil)
	if fault.CodeOf(err) != fault.Invalid {
		t.Errorf("%v", err)
	}
}

func TestParseEOS(t *testing.T) {
	file, _ := BuiltinFiles()
	for config, want := range map[string]string{
		`{"eos_token": "<|user|>"}`:                              "<|user|>",
		`{"eos_token": {"content": "<|end|>", "lstrip": false}}`: "<|end|>",
		`{"eos_token": null}`:                                    "",
		`{}`:                                                     "",
		`{"eos_token": "<s>", "added_tokens_decoder": {"2000": {"content": "<s>", "special": true}}}`: "<s>",
	} {
		tok, err := Parse(file, []byte(config))
		if err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		id, ok := tok.EOS()
		if ok != (want != "") || ok && string(appendOf(tok, id)) != want {
			t.Errorf("%s: %d, %t", config, id, ok)
		}
	}
	for _, config := range []string{`{"eos_token": "<nowhere>"}`, `{"eos_token": 7}`, `{"added_tokens_decoder": {"x": {}}}`, `[`} {
		_, err := Parse(file, []byte(config))
		if fault.CodeOf(err) != fault.Invalid || !strings.HasPrefix(err.Error(), "parse tokenizer_config.json: ") {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func appendOf(tok *Tokenizer, id kv.Token) []byte {
	b, _ := tok.AppendBytes(nil, id)
	return b
}

// TestPlainTextIsNeverSpecial covers the ways in which a special token could come
// out of text that is not to be parsed.
func TestPlainTextIsNeverSpecial(t *testing.T) {
	inVocabulary := changed(t, func(o object) {
		m := model(o)
		m["ignore_merges"] = true
		m["merges"] = []any{}
		o["added_tokens"] = []any{object{"id": m["vocab"].(object)["router"], "content": "router", "special": true}}
		o["post_processor"] = nil
	})
	tok, err := Parse(inVocabulary, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := tok.ID("router")
	if !ok || !tok.IsSpecial(id) {
		t.Fatalf("ID = %d, %t", id, ok)
	}
	if got := tok.Encode(nil, "router", prep.EncodeOptions{}); slices.Contains(got, id) {
		t.Errorf("plain text gives the special token: %v", got)
	}
	if got := tok.Encode(nil, "router", prep.EncodeOptions{ParseSpecial: true}); !slices.Equal(got, []kv.Token{id}) {
		t.Errorf("parsed: %v", got)
	}
	for _, name := range fixtureNames {
		tok := fixtureTokenizer(t, name)
		for _, text := range fixtureTexts(t) {
			if ids := tok.Encode(nil, text, prep.EncodeOptions{}); slices.ContainsFunc(ids, tok.IsSpecial) {
				t.Fatalf("%s: %q: %v", name, text, ids)
			}
		}
	}
}

func TestID(t *testing.T) {
	tok := fixtureTokenizer(t, "llama3")
	for id := range kv.Token(tok.VocabSize()) {
		text := string(appendOf(tok, id))
		if got, ok := tok.ID(text); !ok || got != id {
			t.Errorf("ID(%q) = %d, %t; want %d", text, got, ok, id)
		}
	}
	if id, ok := tok.ID("no such entry"); ok {
		t.Errorf("found %d", id)
	}
}

// FuzzParse varies the parts of a file around a vocabulary of the 256 bytes, which
// is too large for a fuzzer to find.
func FuzzParse(f *testing.F) {
	fixturetest.AddCorpus(f)
	var bytes strings.Builder
	for b, r := range Alphabet() {
		name, _ := json.Marshal(string(r))
		fmt.Fprintf(&bytes, "%s:%d,", name, b)
	}
	f.Add(`"ab":256`, `["a b"]`, `[]`, `{"type":"NFC"}`, `{"type":"ByteLevel","add_prefix_space":true}`, `{"type":"ByteLevel"}`, `{}`)
	f.Add(`"ab":256`, `[["a","b"]]`, `[{"id":257,"content":"<s>","special":true,"lstrip":true,"normalized":true}]`, `null`,
		`{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false}]}`,
		`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[257]}}}`,
		`{"eos_token":"<s>","added_tokens_decoder":{"258":{"content":"é"}}}`)
	f.Add(`"ab":4000000000`, `[1]`, `{}`, `7`, `{"type":"Split"}`, `[]`, ``)
	f.Fuzz(func(t *testing.T, entries, merges, added, normalizer, pre, post, config string) {
		file := fmt.Sprintf(`{"added_tokens":%s,"normalizer":%s,"pre_tokenizer":%s,"post_processor":%s,"decoder":{"type":"ByteLevel"},"model":{"vocab":{%s%s},"merges":%s}}`,
			added, normalizer, pre, post, bytes.String(), entries, merges)
		checkParse(t, file, config)
	})
}

// FuzzParseFile takes whole files.
func FuzzParseFile(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add(`{"model":{"vocab":{}},"added_tokens":[{"id":0,"content":"x"}]}`, `{"eos_token":null}`)
	f.Add(`{"model":{"type":"WordPiece"}}`, `{}`)
	f.Add(`{"model":{"type":"WordPiece","unk_token":"u","continuing_subword_prefix":"##","vocab":{"u":0,"##a":1}},"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true}}`, `{}`)
	f.Add(`{"model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["<unk>",0],["▁T",-1.5],["<0x0A>",-3]]},"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAEAAA="},"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Metaspace","replacement":"▁"}]}}`, `{}`)
	f.Add(`{"model":{"type":"BPE","unk_token":"u","fuse_unk":true,"byte_fallback":true,"vocab":{"u":0,"▁":1,"T":2,"▁T":3,"<0x0A>":4},"merges":["▁ T"]},"normalizer":{"type":"Prepend","prepend":"▁"},"pre_tokenizer":{"type":"Split","pattern":{"String":"e"},"behavior":"MergedWithNext","invert":true},"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}}`, `{}`)
	f.Fuzz(checkParse)
}

// checkParse: a file is refused with a reason, or makes a tokenizer that works.
func checkParse(t *testing.T, file, config string) {
	tok, err := Parse([]byte(file), []byte(config))
	if err != nil {
		if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Unimplemented {
			t.Errorf("code %v: %v", code, err)
		}
		return
	}
	ids := tok.Encode(nil, "The router's 你好 <s>\xff 123\r\n", prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
	for _, id := range ids {
		if int(id) >= tok.VocabSize() {
			t.Errorf("id %d in a vocabulary of %d", id, tok.VocabSize())
		}
	}
	decodeAll(tok, ids, false)
	tok.MaskedIDs()
}

// TestEchoesAreBounded: a message quotes the beginning of what the file has.
func TestEchoesAreBounded(t *testing.T) {
	long := strings.Repeat("7", 1<<20)
	for _, file := range []string{
		`{"model":{"type":"` + long + `"}}`,
		`{"model":{"type":"BPE","dropout":"` + long + `"}}`,
		`{"model":{"type":"BPE","vocab":{"a":` + long + `}}}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"added_tokens":[{"id":0,"content":"` + long + `"}]}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"added_tokens":[{"id":1,"content":"` + long + `"},{"id":2,"content":"` + long + `"}]}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"normalizer":{"type":"` + long + `"}}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"pre_tokenizer":{"type":"` + long + `"}}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"` + long + `"}}}`,
		`{"model":{"type":"BPE","vocab":{"a":0}},"decoder":{"type":"` + long + `"}}`,
	} {
		if _, err := Parse([]byte(file), nil); err == nil || len(err.Error()) > 1000 {
			t.Errorf("%.60s: an error of %d bytes: %.300v", file, len(fmt.Sprint(err)), err)
		}
	}
}
