// Mkvocab makes the vocabulary of the built-in model: byte-pair merges learnt from Penstock's own documents,
// written as a tokenizer.json.
//
//	go run ./tools/mkvocab [-size N] [-o FILE] [DOCUMENT...]
//
// The same documents give the same file on every machine. The committed file is frozen: the weights of the
// built-in model belong to its ids, so a vocabulary of changed documents gives another model.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
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
