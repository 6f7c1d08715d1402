// Mkvocab makes the vocabulary of the built-in model: byte-pair merges learnt from Penstock's own documents,
// written as a tokenizer.json.
//
//	go run ./tools/mkvocab [-size N] [-o FILE] [DOCUMENT...]
//
// The same documents give the same file on every machine. The committed file is frozen: the weights of the
// built-in model belong to its ids, so a vocabulary of changed documents gives another model.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"penstock/internal/edge/prep/token"
)

func main() {
	size := flag.Int("size", 2048, "entries of the vocabulary at most")
	out := flag.String("o", "internal/edge/prep/token/builtin/tokenizer.json", "file to write")
	flag.Parse()
	documents := flag.Args()
	if len(documents) == 0 {
		documents = []string{"ARCHITECTURE.md", "STYLE.md", "docs/product.md"}
	}
	if err := writeVocabulary(*size, *out, documents); err != nil {
		fmt.Fprintln(os.Stderr, "mkvocab:", err)
		os.Exit(1)
	}
}

func writeVocabulary(size int, out string, documents []string) error {
	var texts []string
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		texts = append(texts, string(text))
	}
	v, err := trainMerges(texts, size-len(specialTokens))
	if err != nil {
		return err
	}
	file := v.appendJSON(nil)
	if err := os.WriteFile(out, file, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s: %d entries, %d merges, sha256 %x\n", out, v.totalSize(), len(v.merges), sha256.Sum256(file))
	return nil
}

// specialTokens are the tokens which mark up a chat, and some reserved ones so that later ones do not change
// the vocabulary.
var specialTokens = []string{
	"<|begin|>", "<|end|>",
	"<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>",
	"<|image|>", "<|audio|>", "<|video|>",
	"<|reserved0|>", "<|reserved1|>", "<|reserved2|>", "<|reserved3|>", "<|reserved4|>", "<|reserved5|>",
}

func (v *tokenVocabulary) totalSize() int { return len(v.entries) + len(specialTokens) }

// appendJSON appends the vocabulary as a tokenizer.json, one entry to a line.
func (v *tokenVocabulary) appendJSON(dst []byte) []byte {
	b := bytes.NewBuffer(dst)
	begin := len(v.entries)
	b.WriteString("{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": [\n")
	for i, s := range specialTokens {
		fmt.Fprintf(b, `{"id": %d, "content": %s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}%s`,
			begin+i, quoteJSON(s), separator(i, len(specialTokens)))
	}
	b.WriteString("],\n\"normalizer\": null,\n")
	fmt.Fprintf(b, "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"+
		"{\"type\": \"Split\", \"pattern\": {\"Regex\": %s}, \"behavior\": \"Isolated\", \"invert\": false},\n"+
		"{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}\n]},\n", quoteJSON(token.PatternLlama3))
	fmt.Fprintf(b, "\"post_processor\": {\"type\": \"TemplateProcessing\",\n"+
		"\"single\": [{\"SpecialToken\": {\"id\": %[1]s, \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],\n"+
		"\"pair\": [{\"SpecialToken\": {\"id\": %[1]s, \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}],\n"+
		"\"special_tokens\": {%[1]s: {\"id\": %[1]s, \"ids\": [%[2]d], \"tokens\": [%[1]s]}}},\n", quoteJSON(specialTokens[0]), begin)
	b.WriteString("\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n")
	b.WriteString("\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, " +
		"\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,\n\"vocab\": {\n")
	for id, entry := range v.entries {
		fmt.Fprintf(b, "%s: %d%s", quoteJSON(spellBytes(entry)), id, separator(id, len(v.entries)))
	}
	b.WriteString("},\n\"merges\": [\n")
	for i, m := range v.merges {
		fmt.Fprintf(b, "[%s, %s]%s", quoteJSON(spellBytes(v.entries[m.left])), quoteJSON(spellBytes(v.entries[m.right])), separator(i, len(v.merges)))
	}
	b.WriteString("]}\n}\n")
	return b.Bytes()
}

func separator(i, n int) string {
	if i+1 < n {
		return ",\n"
	}
	return "\n"
}

func quoteJSON(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// spellBytes writes bytes in the byte-level alphabet.
func spellBytes(entry string) string {
	chars := token.Alphabet()
	var spelt []rune
	for i := range len(entry) {
		spelt = append(spelt, chars[entry[i]])
	}
	return string(spelt)
}
