// Command gateway measures the cost of Penstock in front of an engine which costs nothing. In one run, on one
// machine, each in its own process: clients which use the engine directly, through the standard library's
// reverse proxy, and through "penstock up --engine vllm=URL", which renders the template, tokenizes, hashes,
// routes and decodes the response's tokens. The engine answers immediately, with a write for each token, as
// vLLM would.
//
//	tools/bench/gateway.sh
//
// First prompts of about 500 tokens at 64 and 1,000 streams: at full rate, with the gateway's CPU time per
// request; then, with paced tokens, its added time to the first and the last token. Then prompts of about
// 60,000 tokens, cold and in growing conversations, with the steps of their cost.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"penstock/bench/child"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/replay"
)

// runTimeout bounds the whole run.
const runTimeout = 20 * time.Minute

type gatewaySettings struct {
	bin     string
	model   string
	text    string
	answer  string
	to      string
	only    string
	output  int
	pace    time.Duration
	window  time.Duration
	seed    uint64
	asJSON  bool
	verbose bool
}

func main() {
	var s gatewaySettings
	role := flag.String("role", "", "engine or proxy; empty measures")
	flag.StringVar(&s.bin, "bin", "./penstock", "the binary")
	flag.StringVar(&s.model, "model", "", "directory of a checkpoint: config.json, tokenizer.json, tokenizer_config.json with a template")
	flag.StringVar(&s.text, "text", "", "file of English, a megabyte or more, of which prompts are made")
	flag.StringVar(&s.answer, "answer", "", "file of the answer's tokens, of an engine")
	flag.StringVar(&s.to, "to", "", "where a proxy sends to")
	flag.StringVar(&s.only, "only", "", "flood, paced or long; empty is all")
	flag.IntVar(&s.output, "output", 64, "tokens of an answer to a prompt of 500")
	flag.DurationVar(&s.pace, "pace", 0, "time between the tokens of an engine")
	flag.DurationVar(&s.window, "for", 10*time.Second, "how long each measurement takes")
	flag.Uint64Var(&s.seed, "seed", 1, "of the texts")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.BoolVar(&s.verbose, "v", false, "show what the processes say")
	flag.Parse()
	child.Main("bench/gateway", runTimeout, func(ctx context.Context) error {
		switch *role {
		case "engine":
			return s.runEngine()
		case "proxy":
			return s.runProxy()
		}
		return s.measureAll(ctx)
	})
}

func (s *gatewaySettings) runEngine() error {
	tokens, texts, err := answerTokens(s.answer)
	if err != nil {
		return err
	}
	return serveUntilEOF(newFakeEngine("bench", s.model, tokens, texts, s.pace).newHandler())
}

func (s *gatewaySettings) runProxy() error {
	h, err := newReverseProxy(s.to)
	if err != nil {
		return err
	}
	return serveUntilEOF(h)
}

// gatewayResult is the output of -json.
type gatewayResult struct {
	Flood []runFigures  `json:"flood"`
	Paced []runFigures  `json:"paced"`
	Long  []longFigures `json:"long"`
}

type longFigures struct {
	runFigures
	PromptTokens int        `json:"prompt_tokens"`
	Parts        []stepTime `json:"parts"`
}

func (s *gatewaySettings) measureAll(ctx context.Context) error {
	if s.model == "" || s.text == "" {
		return fmt.Errorf("-model and -text are needed: tools/bench/gateway.sh has both")
	}
	s.model, _ = filepath.Abs(s.model)
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: s.model})
	if err != nil {
		return err
	}
	text, err := os.ReadFile(s.text)
	if err != nil {
		return err
	}
	library, err := newTextLibrary(string(text), pipe, s.seed)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gateway-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var r gatewayResult
	if s.only == "" || s.only == "flood" {
		if r.Flood, err = s.measureShort(ctx, dir, pipe, library, 0, []int{64, 1000}); err != nil {
			return err
		}
	}
	if s.only == "" || s.only == "paced" {
		if r.Paced, err = s.measureShort(ctx, dir, pipe, library, 50*time.Millisecond, []int{64, 1000}); err != nil {
			return err
		}
	}
	if s.only == "" || s.only == "long" {
		if r.Long, err = s.measureLong(ctx, dir, pipe, library); err != nil {
			return err
		}
	}
	if s.asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(r)
	}
	return nil
}

// processSet is the engine and the two gateways in front of it.
type processSet struct {
	engine, proxy, penstock *child.Process
}

func (w *processSet) stopAll() {
	for _, c := range []*child.Process{w.penstock, w.proxy, w.engine} {
		if c != nil {
			c.StopProcess()
		}
	}
}

// startProcesses starts an engine with responses of output tokens, and both gateways.
func (s *gatewaySettings) startProcesses(ctx context.Context, dir string, pipe *prep.Pipeline, output int, pace time.Duration) (w *processSet, err error) {
	answer := filepath.Join(dir, "answer-"+strconv.Itoa(output))
	if err := writeAnswer(answer, pipe, output); err != nil {
		return nil, err
	}
	log := os.Stderr
	if !s.verbose {
		if log, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return nil, err
		}
		defer log.Close()
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w = &processSet{}
	defer func() {
		if err != nil {
			w.stopAll()
		}
	}()
	if w.engine, err = child.StartProcess(ctx, log, self, "-role", "engine", "-model", s.model, "-answer", answer, "-pace", pace.String()); err != nil {
		return nil, err
	}
	if w.proxy, err = child.StartProcess(ctx, log, self, "-role", "proxy", "-to", w.engine.URL); err != nil {
		return nil, err
	}
	w.penstock, err = child.StartProcess(ctx, log, s.bin, "up", "--json", "--http-addr", "127.0.0.1:0", "--engine", "vllm="+w.engine.URL, "--model-path", s.model, "--served-model-name", "bench")
	if err != nil {
		return nil, fmt.Errorf("%w (-v shows what it says)", err)
	}
	return w, nil
}

// writeAnswer writes the tokens of a response and the text of each.
func writeAnswer(path string, pipe *prep.Pipeline, n int) error {
	const words = "The water goes down through the pipe and drives the wheel, and none of it is lost on its way to the river below. "
	ids := pipe.Tokenizer.Encode(nil, words, prep.EncodeOptions{})
	for len(ids) < n {
		ids = append(ids, ids...)
	}
	d := pipe.Tokenizer.NewDecoder(prep.DecodeOptions{})
	var b []byte
	for _, id := range ids[:n] {
		text, err := json.Marshal(string(d.Push(nil, id)))
		if err != nil {
			return err
		}
		b = fmt.Appendf(b, "%d %s\n", id, text)
	}
	return os.WriteFile(path, b, 0o600)
}

// measureShort measures the engine alone, behind the proxy, and behind Penstock.
func (s *gatewaySettings) measureShort(ctx context.Context, dir string, pipe *prep.Pipeline, l *textLibrary, pace time.Duration, streams []int) ([]runFigures, error) {
	w, err := s.startProcesses(ctx, dir, pipe, s.output, pace)
	if err != nil {
		return nil, err
	}
	defer w.stopAll()
	// Neither more prompts than a gateway's caches of whole texts hold, nor few: prompts differ from their
	// first line on, as users' do.
	prompts := (&distinctChats{library: l, input: 500, output: s.output}).prebuild(20000)
	var all []runFigures
	kind := "flood"
	if pace > 0 {
		kind = "paced"
	}
	fmt.Fprintf(os.Stderr, "%-6s %-9s %7s %10s %10s %12s %9s %9s %9s %9s\n", kind, "", "streams", "requests/s", "tokens/s", "CPU µs/req", "first p50", "p99", "whole p50", "p99 ms")
	for _, n := range streams {
		for _, to := range []struct {
			name    string
			url     string
			gateway *child.Process
		}{{"direct", w.engine.URL, nil}, {"proxy", w.proxy.URL, w.proxy}, {"penstock", w.penstock.URL, w.penstock}} {
			f, err := runLoad(ctx, to.name, to.url, to.gateway, n, s.window, prompts)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "%-6s %-9s %7d %10.0f %10.0f %12.0f %9.2f %9.2f %9.2f %9.2f\n", "", f.Name, f.Streams, f.Requests, f.Tokens, f.CPU, f.First.P50, f.First.P99, f.Whole.P50, f.Whole.P99)
			all = append(all, f)
		}
	}
	return all, nil
}

// longTokens is the length of a long prompt, longOutput of its response.
const (
	longTokens  = 60000
	longOutput  = 16
	longStreams = 16
	// longConversations is the number of growing conversations: each gets about a hundred requests.
	longConversations = 64
)

// measureLong measures Penstock with long prompts.
func (s *gatewaySettings) measureLong(ctx context.Context, dir string, pipe *prep.Pipeline, l *textLibrary) ([]longFigures, error) {
	w, err := s.startProcesses(ctx, dir, pipe, longOutput, 0)
	if err != nil {
		return nil, err
	}
	defer w.stopAll()
	var all []longFigures
	fmt.Fprintf(os.Stderr, "%-6s %-9s %7s %10s %10s %12s %9s %9s\n", "long", "", "tokens", "requests/s", "", "CPU µs/req", "first p50", "p99 ms")
	for _, kind := range []struct {
		name   string
		source func() replay.Source
		skip   int // requests which are not measured
	}{
		{"cold", func() replay.Source { return &distinctChats{library: l, input: longTokens, output: longOutput} }, 4},
		// In the middle of the measurement they have the nominal length.
		{"growing", func() replay.Source { return newGrowingChats(l, longConversations, longTokens*17/20, longOutput) }, 2 * longConversations},
	} {
		parts, tokens, err := measureSteps(pipe, kind.source(), kind.skip, 100)
		if err != nil {
			return nil, err
		}
		f, err := runLoad(ctx, kind.name, w.penstock.URL, w.penstock, longStreams, s.window, kind.source())
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%-6s %-9s %7d %10.0f %10s %12.0f %9.2f %9.2f   parts in µs: %v\n", "", f.Name, tokens, f.Requests, "", f.CPU, f.First.P50, f.First.P99, parts)
		all = append(all, longFigures{f, tokens, parts})
	}
	return all, nil
}
