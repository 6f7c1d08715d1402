// Command prompts measures the cost of a request before it is routed, beside the times of the reference on
// standard input: a conversation through the model's chat template, tokens, and the hashes of its blocks.
// Cold is a conversation which the tokenizer has not seen; growing is the same with one more response and
// question, which is a chat's next request. The reference computes no hashes.
//
// It checks that the ids are the same, prints a table to standard error, and results for benchjson to
// standard output.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
)

// blockSize is the block size of most engines.
const blockSize = 16

// referenceGroup is a line of prompts_reference.py.
type referenceGroup struct {
	Size  int
	Cases []struct {
		Messages      []prep.Message // the last two belong to the next turn
		Cold, Growing float64        // seconds of the reference
		IDs, More     []kv.Token
	}
}

func main() {
	if err := runPrompts(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "prompts:", err)
		os.Exit(1)
	}
}

func runPrompts(args []string, in io.Reader, out, table io.Writer) error {
	if len(args) != 3 {
		return errors.New("name a model, its directory and the text")
	}
	m, err := newPromptEncoder(args[1])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	if err := m.warmCache([]rune(string(text))); err != nil {
		return err
	}
	fmt.Fprintf(out, "pkg: penstock/tools/bench/prompts\n")
	fmt.Fprintf(table, "%-12s %8s %12s %12s %6s %12s %12s %6s\n", args[0], "tokens", "cold µs", "reference", "ratio", "growing µs", "reference", "ratio")
	for lines := json.NewDecoder(bufio.NewReader(in)); ; {
		var g referenceGroup
		if err := lines.Decode(&g); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := m.measureGroup(&g)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%-12s %8d %12.0f %12.0f %6.1f %12.0f %12.0f %6.1f\n", "", r.tokens,
			r.cold, r.theirCold, r.theirCold/r.cold, r.growing, r.theirGrowing, r.theirGrowing/r.growing)
		for _, row := range []struct {
			name         string
			ours, theirs float64
		}{{"cold", r.cold, r.theirCold}, {"growing", r.growing, r.theirGrowing}} {
			fmt.Fprintf(out, "BenchmarkPrompt/%s/%d/%s %d %.1f µs %.1f reference-µs %.2f ratio %d tokens\n",
				args[0], g.Size, row.name, len(g.Cases), row.ours, row.theirs, row.theirs/row.ours, r.tokens)
		}
	}
}

// promptEncoder turns a conversation into hashes.
type promptEncoder struct {
	pipe   *prep.Pipeline
	hasher kv.Hasher
	ids    []kv.Token
	chain  []kv.SeqHash
}

func newPromptEncoder(dir string) (*promptEncoder, error) {
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		return nil, err
	}
	hasher, err := kv.NewHasher(blockSize, kv.Salt{})
	if err != nil {
		return nil, err
	}
	return &promptEncoder{pipe: pipe, hasher: hasher}, nil
}

// warmCache encodes what the reference has encoded before.
func (m *promptEncoder) warmCache(text []rune) error {
	at := len(text) / 2
	for i := range 40 {
		if _, err := m.timePrompt([]prep.Message{{Role: "user", Content: string(text[at+i*4096 : at+(i+1)*4096])}}); err != nil {
			return err
		}
	}
	return nil
}

// timePrompt returns the microseconds for a conversation; its ids and hashes are then in m.
func (m *promptEncoder) timePrompt(messages []prep.Message) (float64, error) {
	c := &prep.Chat{Messages: messages, AddGenerationPrompt: true}
	start := time.Now()
	ids, err := m.pipe.EncodeChat(m.ids[:0], c)
	if err != nil {
		return 0, err
	}
	m.ids = ids
	m.chain = m.hasher.AppendSeqHashes(m.chain[:0], ids, nil)
	return float64(time.Since(start).Nanoseconds()) / 1000, nil
}

// promptTimes are medians in microseconds.
type promptTimes struct {
	tokens                                 int
	cold, growing, theirCold, theirGrowing float64
}

func (m *promptEncoder) measureGroup(g *referenceGroup) (promptTimes, error) {
	var tokens []int
	var times [4][]float64
	for i := range g.Cases {
		c := &g.Cases[i]
		runtime.GC()
		cold, err := m.timePrompt(c.Messages[:len(c.Messages)-2])
		if err != nil {
			return promptTimes{}, err
		}
		if !slices.Equal(m.ids, c.IDs) {
			return promptTimes{}, fmt.Errorf("size %d, conversation %d: the ids are not those of the reference", g.Size, i)
		}
		growing, err := m.timePrompt(c.Messages)
		if err != nil {
			return promptTimes{}, err
		}
		if !slices.Equal(m.ids, c.More) {
			return promptTimes{}, fmt.Errorf("size %d, conversation %d: the ids of the next turn are not those of the reference", g.Size, i)
		}
		tokens = append(tokens, len(c.IDs))
		for j, t := range [...]float64{cold, growing, c.Cold * 1e6, c.Growing * 1e6} {
			times[j] = append(times[j], t)
		}
	}
	slices.Sort(tokens)
	f := promptTimes{tokens: tokens[len(tokens)/2]}
	for j, to := range []*float64{&f.cold, &f.growing, &f.theirCold, &f.theirGrowing} {
		slices.Sort(times[j])
		*to = times[j][len(times[j])/2]
	}
	return f, nil
}
