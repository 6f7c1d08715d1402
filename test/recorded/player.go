package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// Tokens come in bursts, pace apart: a client's stream is neither one write nor a write for each token.
const (
	burstTokens = 4
	pace        = 500 * time.Microsecond
)

// playPattern finds the requested recording; the last one in the prompt counts, so that a tool result can
// choose the continuation.
var playPattern = regexp.MustCompile(`play:([a-z0-9-]+)`)

// recordingEngine is an engine which plays recordings, ignoring sampling. It keeps the contract where a
// client could tell: it resumes, counts tokens, stops and fails.
type recordingEngine struct {
	card       engine.Card
	tokenizer  prep.Tokenizer
	stop       kv.Token
	recordings map[string]*tokenRecording
}

// tokenRecording is a recording as tokens, with the stop token at its end.
type tokenRecording struct {
	tokens []kv.Token
	fail   *failure
}

var _ engine.Engine = (*recordingEngine)(nil)

// newRecordingEngine returns the engine of one worker of a dialect.
func newRecordingEngine(d *dialect, p *prep.Pipeline, ref engine.TokenizerRef) (*recordingEngine, error) {
	stop, ok := p.Tokenizer.ID("<|end|>")
	if !ok {
		return nil, fault.New(fault.Internal, "the vocabulary has no stop token")
	}
	e := &recordingEngine{
		card: engine.Card{
			Name: d.name, Engine: "recorded", Numerics: "recorded",
			BlockSize: 16, Blocks: 4096, Ranks: 1, ContextLength: 8192, VocabSize: p.Tokenizer.VocabSize(),
			EOS: []kv.Token{stop}, StructuredOutput: true, ToolParser: d.ToolParser, ReasoningParser: d.ReasoningParser,
			Tokenizer: ref,
		},
		tokenizer: p.Tokenizer, stop: stop, recordings: map[string]*tokenRecording{},
	}
	for name, r := range d.recordings {
		tokens := p.Tokenizer.Encode(nil, r.Text, prep.EncodeOptions{})
		e.recordings[name] = &tokenRecording{tokens: append(tokens, stop), fail: r.Fail}
	}
	return e, nil
}

// Card implements engine.Engine.
func (e *recordingEngine) Card() engine.Card { return e.card }

// Run implements engine.Engine.
func (e *recordingEngine) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Generate implements engine.Engine: every choice is the same recording.
func (e *recordingEngine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	t, err := e.findRecording(req.Prompt)
	if err != nil {
		return err
	}
	fail := t.fail
	if fail != nil && req.Attempt > fail.Attempts {
		fail = nil
	}
	if fail != nil && fail.After == 0 {
		return &fault.Error{Code: fail.code, Message: "this recording is refused", RetryAfter: time.Second}
	}
	done, err := e.receivedTokens(t, req)
	if err != nil {
		return err
	}
	if err := sink(&engine.Delta{Attempt: req.Attempt, Accepted: true}); err != nil {
		return err
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for pos := slices.Min(done); pos < min(len(t.tokens), req.Stop.MaxTokens); pos++ {
		if pos%burstTokens == 0 {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if fail != nil && pos >= fail.After {
			return fault.New(fail.code, "this recording breaks here")
		}
		for choice, from := range done {
			if pos < from {
				continue
			}
			if err := sink(t.tokenDelta(req, choice, pos)); err != nil {
				return err
			}
		}
	}
	return nil
}

// findRecording returns the recording named in a prompt.
func (e *recordingEngine) findRecording(prompt []kv.Token) (*tokenRecording, error) {
	var text []byte
	for _, t := range prompt {
		text, _ = e.tokenizer.AppendBytes(text, t)
	}
	all := playPattern.FindAllSubmatch(text, -1)
	if len(all) > 0 {
		if t := e.recordings[string(all[len(all)-1][1])]; t != nil {
			return t, nil
		}
	}
	var names []string
	for name := range e.recordings {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, fault.New(fault.Invalid, "say play:NAME with one of the recordings of %s: %s", e.card.Name, strings.Join(names, ", "))
}

// receivedTokens returns how many tokens of each choice the client has, which must equal the recording; all
// of them for complete choices.
func (e *recordingEngine) receivedTokens(t *tokenRecording, req *engine.Request) ([]int, error) {
	done := make([]int, req.Choices)
	for i := range done {
		if i < len(req.Generated) {
			done[i] = len(req.Generated[i])
			if done[i] > len(t.tokens) || !slices.Equal(req.Generated[i], t.tokens[:done[i]]) {
				return nil, fault.New(fault.Internal, "choice %d resumes another answer than the recording", i)
			}
		}
		if i < len(req.Done) && req.Done[i] {
			done[i] = len(t.tokens)
		}
	}
	return done, nil
}

// tokenDelta is the token at pos of a choice.
func (t *tokenRecording) tokenDelta(req *engine.Request, choice, pos int) *engine.Delta {
	d := &engine.Delta{Attempt: req.Attempt, Choice: choice, Pos: pos, Tokens: t.tokens[pos : pos+1]}
	switch {
	case pos == len(t.tokens)-1:
		d.Finish = engine.FinishStop
	case pos == req.Stop.MaxTokens-1:
		d.Finish = engine.FinishLength
	}
	if req.Logprobs >= 0 {
		d.Logprobs = []engine.Logprob{tokenLogprob(d.Tokens[0], req.Logprobs)}
	}
	return d
}

// tokenLogprob is the log-probability of a recording's token: nearly certain, with the first tokens of the
// vocabulary as alternatives.
func tokenLogprob(t kv.Token, alternatives int) engine.Logprob {
	lp := engine.Logprob{Token: t, Logprob: -0.125}
	for i := range alternatives {
		lp.Top = append(lp.Top, engine.TokenLogprob{Token: t, Logprob: -0.125})
		if i > 0 {
			lp.Top[i] = engine.TokenLogprob{Token: kv.Token(i), Logprob: -4 - float32(i)}
		}
	}
	return lp
}
