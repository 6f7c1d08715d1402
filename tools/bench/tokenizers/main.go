// Command tokenizers measures the encoding of a text beside the seconds, cold
// and warm, that it reads from the standard input, and prints the ratios. Cold is
// the first text that a tokenizer sees; warm knows its words but is made to
// encode all of it; remembered has seen the whole text.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tokenizers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("name a tokenizer.json and a text, not %d files", len(args))
	}
	var cold, warm float64
	if _, err := fmt.Scan(&cold, &warm); err != nil {
		return err
	}
	file, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	tok, err := token.Parse(file, nil)
	if err != nil {
		return err
	}
	runtime.GC()
	size := float64(len(text)) / 1e6
	ours := seconds(tok, string(text))
	show("cold", size, ours, cold)
	remembered := ours
	for range 5 {
		remembered = min(remembered, seconds(tok, string(text)))
	}
	best := warmed(tok, string(text))
	show("warm", size, best, warm)
	show("remembered", size, remembered, warm)
	one := together(tok, string(text), 1)
	for _, n := range []int{2, 4} {
		fmt.Printf("  %d goroutines: %.2f times one\n", n, together(tok, string(text), n)/one)
	}
	return nil
}

func show(what string, size, ours, theirs float64) {
	fmt.Printf("  %-10s %7.1f MB/s, reference %5.1f MB/s, ratio %.1f\n", what, size/ours, size/theirs, theirs/ours)
}

// seconds encodes text in the pieces that reference.py makes of it.
func seconds(tok *token.Tokenizer, text string) float64 {
	ids := make([]kv.Token, pieceSize)
	start := time.Now()
	for len(text) > 0 {
		n := 0
		for range pieceSize {
			_, width := utf8.DecodeRuneInString(text[n:])
			n += width
		}
		ids = tok.Encode(ids[:0], text[:n], prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
		text = text[n:]
	}
	return time.Since(start).Seconds()
}

// pieceSize is in characters.
const pieceSize = 4096

// warmed is the best of five with words known but no chunk remembered.
func warmed(tok *token.Tokenizer, text string) float64 {
	best := seconds(tok, marked(text, 0))
	for i := range 5 {
		best = min(best, seconds(tok, marked(text, i+1)))
	}
	return best
}

// marked puts a word in every 256 bytes, another one for each i, so that no chunk
// is one that was seen before.
func marked(text string, i int) string {
	var b strings.Builder
	for len(text) > 256 {
		n := 256 + strings.IndexByte(text[256:]+" ", ' ')
		b.WriteString(text[:n])
		b.WriteString(" " + string(rune('A'+i)))
		text = text[n:]
	}
	return b.String() + text
}

// together returns how many texts a second n goroutines encode, each text with
// words known but no chunk remembered.
func together(tok *token.Tokenizer, text string, n int) float64 {
	const rounds = 8
	texts := make([][]string, n)
	for i := range texts {
		for j := range rounds {
			texts[i] = append(texts[i], marked(text, 1000*n+rounds*i+j))
		}
	}
	start := time.Now()
	var wg sync.WaitGroup
	for _, mine := range texts {
		wg.Go(func() {
			for _, text := range mine {
				seconds(tok, text)
			}
		})
	}
	wg.Wait()
	return float64(n*rounds) / time.Since(start).Seconds()
}
