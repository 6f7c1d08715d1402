// Command tokenizers measures the encoding of a text on one, two and four processors beside the results of
// reference.py for other libraries on standard input, and prints the nanoseconds per byte, the ratios and the
// speed-ups.
//
// Cold is the first text of a tokenizer. Warm knows the words but not the text, on one processor, two and
// four: texts differ by a word in every 256 bytes, and exceed the cache; the other libraries get the same
// text repeatedly. Remembered has seen the whole text.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
)

func main() {
	if err := runTokenizers(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tokenizers:", err)
		os.Exit(1)
	}
}

// threadCounts are the measured numbers of processors.
var threadCounts = [...]int{1, 2, 4}

// libraryTimes are nanoseconds per byte; 0 is not measured.
type libraryTimes struct {
	library    string
	cold       float64
	warm       [len(threadCounts)]float64
	remembered float64
}

func runTokenizers(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("tokenizers", flag.ContinueOnError)
	seconds := flags.Float64("seconds", 3, "measure each figure for so long")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("name a tokenizer.json and a text")
	}
	others, err := readFigures(in)
	if err != nil {
		return err
	}
	file, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(flags.Arg(1))
	if err != nil {
		return err
	}
	tok, err := token.Parse(file, nil)
	if err != nil {
		return err
	}
	ours := measurePenstock(tok, string(text), time.Duration(*seconds*float64(time.Second)))
	fmt.Fprintf(out, "  %-12s %8s %8s %8s %8s   ns/byte, then speed-up\n", "", "cold", "1", "2", "4")
	printTimes(out, ours)
	for _, f := range others {
		printTimes(out, f)
		fmt.Fprintf(out, "  %-12s %7.1fx %7.1fx %7.1fx %7.1fx   of the time of penstock\n", "", f.cold/ours.cold,
			f.warm[0]/ours.warm[0], f.warm[1]/ours.warm[1], f.warm[2]/ours.warm[2])
	}
	return nil
}

func printTimes(out io.Writer, f *libraryTimes) {
	fmt.Fprintf(out, "  %-12s %8.2f %8.2f %8.2f %8.2f   %.2f %.2f", f.library, f.cold, f.warm[0], f.warm[1], f.warm[2], f.warm[0]/f.warm[1], f.warm[0]/f.warm[2])
	if f.remembered > 0 {
		fmt.Fprintf(out, "; remembered %.2f", f.remembered)
	}
	fmt.Fprintln(out)
}

// readFigures reads lines of library, threads, cold and warm.
func readFigures(in io.Reader) (all []*libraryTimes, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var library string
		var n int
		var cold, warm float64
		if _, err := fmt.Sscan(lines.Text(), &library, &n, &cold, &warm); err != nil {
			return nil, fmt.Errorf("read %q: %w", lines.Text(), err)
		}
		if n == 1 {
			all = append(all, &libraryTimes{library: library, cold: cold})
		}
		for i := range threadCounts {
			if threadCounts[i] == n && len(all) > 0 {
				all[len(all)-1].warm[i] = warm
			}
		}
	}
	return all, lines.Err()
}

func measurePenstock(tok *token.Tokenizer, text string, d time.Duration) *libraryTimes {
	f := &libraryTimes{library: "penstock"}
	runtime.GC()
	runtime.GOMAXPROCS(1)
	size := float64(len(text))
	ids := make([]kv.Token, 0, len(text))
	started := time.Now()
	encodePieces(tok, ids, text)
	f.cold = float64(time.Since(started).Nanoseconds()) / size
	started = time.Now()
	encodePieces(tok, ids, text)
	f.remembered = float64(time.Since(started).Nanoseconds()) / size
	var texts []string
	for i := range textCount {
		texts = append(texts, markText(text, i))
	}
	for i, n := range threadCounts {
		runtime.GOMAXPROCS(n)
		f.warm[i] = encodeParallel(tok, texts, n, d)
	}
	return f
}

// textCount is how many texts of a megabyte are encoded in turn: with their ids they are twice the size of
// the text cache.
const textCount = 64

// encodePieces encodes text in the same pieces as reference.py.
func encodePieces(tok *token.Tokenizer, ids []kv.Token, text string) {
	for len(text) > 0 {
		n := 0
		for range pieceSize {
			_, width := utf8.DecodeRuneInString(text[n:])
			n += width
		}
		ids = tok.Encode(ids[:0], text[:n], prep.EncodeOptions{ParseSpecial: true, AddSpecial: true})
		text = text[n:]
	}
}

// pieceSize is in characters.
const pieceSize = 4096

// markText inserts a word in every 256 bytes, a different one for each i, so that the texts share no part.
func markText(text string, i int) string {
	var b strings.Builder
	mark := " " + string(rune('A'+i%26)) + string(rune('a'+i/26))
	for len(text) > 256 {
		n := 256 + max(0, strings.IndexByte(text[256:], ' '))
		b.WriteString(text[:n])
		b.WriteString(mark)
		text = text[n:]
	}
	b.WriteString(text)
	return b.String()
}

// encodeParallel returns the nanoseconds per byte of n goroutines which encode texts in turn for d.
func encodeParallel(tok *token.Tokenizer, texts []string, n int, d time.Duration) float64 {
	var next, bytes atomic.Int64
	var wg sync.WaitGroup
	started := time.Now()
	for range n {
		wg.Go(func() {
			ids := make([]kv.Token, 0, len(texts[0]))
			for time.Since(started) < d {
				text := texts[int(next.Add(1))%len(texts)]
				encodePieces(tok, ids, text)
				bytes.Add(int64(len(text)))
			}
		})
	}
	wg.Wait()
	return float64(time.Since(started).Nanoseconds()) / float64(bytes.Load())
}
