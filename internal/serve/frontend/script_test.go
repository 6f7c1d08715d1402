package frontend

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// script is an engine with a scripted output, which keeps to the engine contract unless told otherwise.
type script struct {
	say    func(choice int) string // the text of a choice, then EOS
	tokens []kv.Token              // instead of say, for every choice
	batch  int                     // tokens in a delta; 0 is 1
	cached int
	late   bool // cached is reported with the end of a choice

	refuse   error // instead of accepting
	dieAfter int   // frames with tokens, then fail; 0 is never
	dieFirst bool  // fail before the first of them
	dieWith  error // nil is Unavailable
	frames   int   // sends this many frames with tokens, then waits for the end; 0 sends all
	raw      [][]byte
	endEarly bool // returns without having finished
	mute     bool // never accepts
	veto     func(*engine.Request) error
	maker    maker // of prompts
	passer   passer
	// beforehand and interlude run before and after accepting.
	beforehand, interlude func()

	mu struct {
		sync.Mutex
		passed    []engine.PassthroughRequest
		embeds    []engine.EmbedRequest
		asked     []engine.PreprocessRequest
		requests  []engine.Request
		cancelled int // calls that ended because the caller disconnected
		running   int
	}
}

// constant makes a script whose every choice outputs text.
func constant(text string) *script { return &script{say: func(int) string { return text }} }

func (s *script) seen() []engine.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]engine.Request(nil), s.mu.requests...)
}

func (s *script) state() (running, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.running, s.mu.cancelled
}

func (s *script) handle(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	s.mu.Lock()
	s.mu.running++
	s.mu.Unlock()
	err := s.answer(ctx, method, body, send)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.running--
	if ctx.Err() != nil {
		s.mu.cancelled++
	}
	return err
}

func (s *script) answer(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	if method == engine.MethodEmbed {
		return s.embed(ctx, body, send)
	}
	if method == engine.MethodPreprocess {
		return s.preprocess(ctx, body, send)
	}
	if method == engine.MethodPassthrough {
		return s.pass(ctx, body, send)
	}
	if method != engine.MethodGenerate {
		return fault.New(fault.Unimplemented, "method %s", method)
	}
	var req engine.Request
	if err := engine.DecodeRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.requests = append(s.mu.requests, req)
	s.mu.Unlock()
	if s.veto != nil {
		if err := s.veto(&req); err != nil {
			if failed := engine.MediaFailures(err); len(failed) > 0 {
				if err := send(engine.AppendDelta(nil, &engine.Delta{Attempt: req.Attempt, Failures: engine.FailedObjects(failed)})); err != nil {
					return err
				}
			}
			return err
		}
	}
	switch {
	case s.refuse != nil:
		return s.refuse
	case s.mute:
		<-ctx.Done()
		return ctx.Err()
	case s.beforehand != nil:
		s.beforehand()
	}
	for _, frame := range s.raw {
		if err := send(frame); err != nil {
			return err
		}
	}
	emit := func(d *engine.Delta) error {
		d.Attempt = req.Attempt
		return send(engine.AppendDelta(nil, d))
	}
	if err := emit(&engine.Delta{Accepted: true}); err != nil {
		return err
	}
	if s.interlude != nil {
		s.interlude()
	}
	return s.generate(ctx, &req, emit)
}

// generate sends the choices in turn, from where an earlier attempt stopped.
func (s *script) generate(ctx context.Context, req *engine.Request, emit func(*engine.Delta) error) error {
	pos := make([]int, req.Choices)
	done := make([]bool, req.Choices)
	first := make([]bool, req.Choices)
	copy(done, req.Done)
	for i := range pos {
		first[i] = true
		if req.Generated != nil {
			pos[i] = len(req.Generated[i])
		}
	}
	sent := 0
	for left := true; left; {
		left = false
		for i := range pos {
			if done[i] {
				continue
			}
			left = true
			if s.dieFirst || s.dieAfter > 0 && sent == s.dieAfter {
				if s.dieWith != nil {
					return s.dieWith
				}
				return fault.New(fault.Unavailable, "the scripted worker died")
			}
			if s.frames > 0 && sent == s.frames {
				if s.endEarly {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
			d := s.next(req, i, pos[i])
			switch last := d.Finish != engine.NotFinished; {
			case first[i] && (last || !s.late), s.late && last:
				d.Cached = s.cached
			case first[i]:
				d.Cached = engine.CachedUnknown
			}
			first[i] = false
			pos[i] += len(d.Tokens)
			done[i] = d.Finish != engine.NotFinished
			if err := emit(&d); err != nil {
				return err
			}
			sent++
		}
	}
	return nil
}

// next is the delta of choice i at pos.
func (s *script) next(req *engine.Request, i, pos int) engine.Delta {
	all := s.tokens
	if all == nil {
		all = append(encodeBytes(s.say(i)), byteEOS)
	}
	d := engine.Delta{Choice: i, Pos: pos}
	for len(d.Tokens) < max(1, s.batch) && d.Finish == engine.NotFinished {
		t := kv.Token('.')
		if pos < len(all) {
			t = all[pos]
		}
		if t == byteEOS && (req.Stop.IgnoreEOS || pos < req.Stop.MinTokens) {
			t = '.'
		}
		d.Tokens = append(d.Tokens, t)
		if req.Logprobs >= 0 {
			lp := engine.Logprob{Token: t, Logprob: -float32(t) / 8}
			for k := range req.Logprobs {
				lp.Top = append(lp.Top, engine.TokenLogprob{Token: (t + kv.Token(k)) % 256, Logprob: lp.Logprob - float32(k)})
			}
			d.Logprobs = append(d.Logprobs, lp)
		}
		pos++
		switch {
		case t == byteEOS:
			d.Finish = engine.FinishStop
		case contains(req.Stop.Tokens, t) && pos > req.Stop.MinTokens:
			d.Finish = engine.FinishStop
		case pos == req.Stop.MaxTokens:
			d.Finish = engine.FinishLength
		}
	}
	return d
}

func contains(tokens []kv.Token, t kv.Token) bool {
	for _, x := range tokens {
		if x == t {
			return true
		}
	}
	return false
}

// The byte vocabulary: a token for each byte, three special ones, and a marker of calls.
const (
	byteEOS   kv.Token = 256
	byteTurn  kv.Token = 257
	byteCall  kv.Token = 258
	byteTool  kv.Token = 259
	byteVocab          = 260
)

func encodeBytes(text string) []kv.Token {
	var out []kv.Token
	for i := range len(text) {
		out = append(out, kv.Token(text[i]))
	}
	return out
}

// bytePipeline is a pipeline whose tokens are bytes: any text can be split anywhere.
func bytePipeline() *prep.Pipeline {
	return &prep.Pipeline{Tokenizer: byteTokenizer{}, Template: byteTemplate{}, TemplateName: "bytes"}
}

type byteTokenizer struct{}

func (byteTokenizer) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if opts.ParseSpecial && text == "<|turn|>" {
		return append(dst, byteTurn)
	}
	return append(dst, encodeBytes(text)...)
}

func (byteTokenizer) AppendBytes(dst []byte, id kv.Token) ([]byte, bool) {
	switch {
	case id < 256:
		return append(dst, byte(id)), true
	case id == byteEOS:
		return append(dst, "<|eos|>"...), true
	case id == byteTurn:
		return append(dst, "<|turn|>"...), true
	case id == byteCall:
		return append(dst, "<|call|>"...), true
	case id == byteTool:
		return append(dst, "<tool_call>"...), true
	}
	return dst, false
}

func (byteTokenizer) IsSpecial(id kv.Token) bool { return id >= 256 && id != byteTool }

func (byteTokenizer) ID(text string) (kv.Token, bool) {
	if text == "<tool_call>" {
		return byteTool, true
	}
	if len(text) != 1 {
		return 0, false
	}
	return kv.Token(text[0]), true
}

func (byteTokenizer) VocabSize() int { return byteVocab }

func (byteTokenizer) NewDecoder(opts prep.DecodeOptions) prep.Decoder {
	return &byteDecoder{keep: opts.KeepSpecial}
}

// byteDecoder holds back the bytes of a character until it is complete. It is deliberately naive: it
// decodes all text again for every token.
type byteDecoder struct {
	keep bool
	all  []byte
	out  int
}

func (d *byteDecoder) Push(dst []byte, id kv.Token) []byte {
	if (byteTokenizer{}).IsSpecial(id) && !d.keep {
		return dst
	}
	d.all, _ = byteTokenizer{}.AppendBytes(d.all, id)
	whole := len(d.all)
	for n := 1; n <= 3 && n <= len(d.all); n++ { // an unfinished character at the end
		if c := d.all[len(d.all)-n]; c >= 0xc0 {
			if want := map[bool]int{true: 2}[c < 0xe0] + map[bool]int{true: 3}[c >= 0xe0 && c < 0xf0] + map[bool]int{true: 4}[c >= 0xf0]; n < want {
				whole = len(d.all) - n
			}
			break
		} else if c < 0x80 {
			break
		}
	}
	text := strings.ToValidUTF8(string(d.all[d.out:max(whole, d.out)]), "\ufffd")
	d.out = max(whole, d.out)
	return append(dst, text...)
}

func (d *byteDecoder) Flush(dst []byte) []byte {
	text := strings.ToValidUTF8(string(d.all[d.out:]), "\ufffd")
	d.out = len(d.all)
	return append(dst, text...)
}

// byteTemplate renders "role:content" and a special token after each turn.
type byteTemplate struct{}

func (byteTemplate) Render(dst []prep.Segment, c *prep.Chat) ([]prep.Segment, error) {
	for i, m := range c.Messages {
		dst = append(dst, prep.Segment{Text: fmt.Sprintf("%s:%s", m.Role, m.Content)})
		if !c.ContinueFinal || i+1 < len(c.Messages) {
			dst = append(dst, prep.Segment{Text: "<|turn|>", Special: true})
		}
	}
	if c.AddGenerationPrompt {
		dst = append(dst, prep.Segment{Text: "assistant:"})
	}
	return dst, nil
}
