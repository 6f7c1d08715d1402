package enginemock

import (
	"context"
	"slices"
	"strings"
	"sync"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// stopRule holds the stop strings which end a choice. They are not part of the text.
type stopRule struct {
	strings []string
	keep    bool // the string stays in the text
}

// promptRequest is one prompt of a dialect's request, as one request to the engine.
type promptRequest struct {
	req *engine.Request
	// prompt is that of req, with its media.
	prompt prompt
	stop   stopRule
	// special keeps special tokens in the text.
	special  bool
	transfer *kvTransfer
}

// outputPart is a part of an answer.
type outputPart struct {
	prompt, choice int
	tokens         []kv.Token
	logprobs       []engine.Logprob
	text           string
	offset         int // of the tokens in the text of the choice, in bytes
	cached         int // of the prompt; engine.CachedUnknown if not known yet
	reason         string
	// stop is the string or the token that ended the choice; nil if none did.
	stop any
}

// The reasons why choices end.
const (
	reasonStop   = "stop"
	reasonLength = "length"
)

// outputStream is the engine's answer to one or several prompts, as it arrives.
type outputStream struct {
	server   *Server
	requests []promptRequest
	texts    [][]*choiceText // of each prompt, of each choice
	cancel   context.CancelFunc
	done     sync.WaitGroup
	releases []func()

	mu struct {
		sync.Mutex
		queue []outputPart
		open  int // prompts that have not ended
		taken int // prompts that the engine accepted
		err   error
		news  chan struct{} // has an element while there is something to read
	}
}

// startGeneration starts to serve prompts on a rank. The caller closes the stream.
func (s *Server) startGeneration(ctx context.Context, r *rankServer, asks ...promptRequest) (*outputStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &outputStream{server: s, requests: asks, cancel: cancel}
	a.mu.news = make(chan struct{}, 1)
	a.mu.open = len(asks)
	l, release, err := r.acquireInstance(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	a.releases = append(a.releases, release)
	for i := range asks {
		req := asks[i].req
		if req.Salt.Namespace != "" {
			if _, ignored := s.faults.takeDue(FaultSalts); ignored {
				req.Salt.Namespace = ""
			}
		}
		if asks[i].prompt.tokens == nil {
			asks[i].prompt.tokens = req.Prompt
		}
		texts := make([]*choiceText, req.Choices)
		for c := range texts {
			texts[c] = newChoiceText(s.cfg.Pipe, &asks[i])
		}
		a.texts = append(a.texts, texts)
		account, err := l.ledger.openRequest(req.Salt, &asks[i].prompt, req.Choices)
		if err != nil {
			a.stopAndWait()
			return nil, err
		}
		a.releases = append(a.releases, account.releaseAll)
		a.done.Go(func() {
			got, err := asks[i].transfer.begin(ctx, req.Prompt)
			if err != nil {
				account.releaseAll()
				a.finishPrompt(err)
				return
			}
			err = l.eng.Generate(ctx, req, func(d *engine.Delta) error {
				if d.Accepted {
					a.countAccepted()
					return nil
				}
				account.addTokens(d.Choice, d.Tokens)
				d.Tokens = got.spoil(d.Tokens, l.card.VocabSize)
				if d.Cached != engine.CachedUnknown && !s.cfg.Features.HideReceived.isOn(false) {
					d.Cached = max(d.Cached, got.tokens)
				}
				a.pushDelta(i, d)
				return nil
			})
			asks[i].transfer.finish(err)
			account.releaseAll()
			a.finishPrompt(err)
		})
	}
	return a, nil
}

// pushDelta queues a delta one token at a time, as the engines send them, so that faults trigger at the right
// token. It never waits: the request bounds the number of tokens.
func (a *outputStream) pushDelta(prompt int, d *engine.Delta) {
	reason := ""
	switch d.Finish {
	case engine.FinishStop:
		reason = reasonStop
	case engine.FinishLength:
		reason = reasonLength
	}
	tokens := slices.Clone(d.Tokens)
	logprobs := make([]engine.Logprob, len(d.Logprobs))
	for i, l := range d.Logprobs {
		l.Top = slices.Clone(l.Top)
		logprobs[i] = l
	}
	a.mu.Lock()
	for i := range max(len(tokens), 1) {
		p := outputPart{prompt: prompt, choice: d.Choice, cached: d.Cached}
		if i < len(tokens) {
			p.tokens = tokens[i : i+1 : i+1]
		}
		if i < len(logprobs) {
			p.logprobs = logprobs[i : i+1 : i+1]
		}
		if i+1 >= len(tokens) {
			p.reason = reason
		}
		a.mu.queue = append(a.mu.queue, p)
	}
	a.mu.Unlock()
	a.wakeReader()
}

func (a *outputStream) countAccepted() {
	a.mu.Lock()
	a.mu.taken++
	a.mu.Unlock()
	a.wakeReader()
}

// awaitAccepted waits until the engine has accepted all prompts, or returns the error. It is called before
// nextParts.
func (a *outputStream) awaitAccepted(ctx context.Context) error {
	for {
		a.mu.Lock()
		taken, err := a.mu.taken, a.mu.err
		a.mu.Unlock()
		switch {
		case err != nil:
			return err
		case taken == len(a.requests):
			a.wakeReader() // wakes the next reader for what arrived meanwhile
			return nil
		}
		select {
		case <-a.mu.news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *outputStream) finishPrompt(err error) {
	a.mu.Lock()
	a.mu.open--
	if a.mu.err == nil {
		a.mu.err = err
	}
	a.mu.Unlock()
	a.wakeReader()
}

func (a *outputStream) wakeReader() {
	select {
	case a.mu.news <- struct{}{}:
	default:
	}
}

// nextParts returns the next parts, with their text; none and no error at the end.
func (a *outputStream) nextParts(ctx context.Context) ([]outputPart, error) {
	for {
		a.mu.Lock()
		queue, open, err := a.mu.queue, a.mu.open, a.mu.err
		a.mu.queue = nil
		a.mu.Unlock()
		var out []outputPart
		for i := range queue {
			if p := &queue[i]; a.readText(p) {
				out = append(out, *p)
			}
		}
		switch {
		case len(out) > 0:
			return out, nil
		case a.isFinished():
			return nil, nil
		case err != nil:
			return nil, err
		case open == 0:
			return nil, nil
		}
		select {
		case <-a.mu.news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// readText sets p's text. It reports false for parts after the end of a choice.
func (a *outputStream) readText(p *outputPart) bool {
	t := a.texts[p.prompt][p.choice]
	if t.finished {
		return false
	}
	t.readPart(p)
	return true
}

// isFinished reports whether all choices have ended, though the engine may still run.
func (a *outputStream) isFinished() bool {
	for _, texts := range a.texts {
		for _, t := range texts {
			if !t.finished {
				return false
			}
		}
	}
	return true
}

// stopAndWait stops the engine's requests, and waits for them.
func (a *outputStream) stopAndWait() {
	a.cancel()
	a.done.Wait()
	for _, f := range a.releases {
		f()
	}
	a.releases = nil
}

// choiceText is the text of one choice as it arrives.
type choiceText struct {
	decoder  prep.Decoder // nil without tokenizer
	stop     stopRule
	ends     []kv.Token // the request's own stop tokens
	held     string     // may be the start of a stop string
	finished bool
}

func newChoiceText(pipe *prep.Pipeline, a *promptRequest) *choiceText {
	t := &choiceText{stop: a.stop, ends: a.req.Stop.Tokens}
	if pipe != nil {
		t.decoder = pipe.Tokenizer.NewDecoder(prep.DecodeOptions{KeepSpecial: a.special})
	}
	return t
}

// readPart decodes the tokens of p into its text, and ends the choice at a stop string.
func (t *choiceText) readPart(p *outputPart) {
	t.finished = p.reason != ""
	if n := len(p.tokens); p.reason == reasonStop && n > 0 && slices.Contains(t.ends, p.tokens[n-1]) {
		p.stop = int(p.tokens[n-1])
	}
	if t.decoder == nil {
		return
	}
	for i, token := range p.tokens {
		if t.finished && p.reason == reasonStop && i == len(p.tokens)-1 {
			break // the token that ends a choice has no text
		}
		t.held += string(t.decoder.Push(nil, token))
		if at, stop := t.findStop(); at >= 0 {
			p.text += t.held[:at]
			if t.stop.keep {
				p.text += stop
			}
			p.tokens = p.tokens[:i+1]
			if len(p.logprobs) > i {
				p.logprobs = p.logprobs[:i+1]
			}
			p.reason, p.stop, t.finished, t.held = reasonStop, stop, true, ""
			return
		}
	}
	keep := t.partialStop()
	if t.finished {
		t.held += string(t.decoder.Flush(nil))
		keep = 0
	}
	p.text += t.held[:len(t.held)-keep]
	t.held = t.held[len(t.held)-keep:]
}

// findStop returns where the first stop string starts, and which it is; -1 if there is none.
func (t *choiceText) findStop() (at int, stop string) {
	at = -1
	for _, s := range t.stop.strings {
		if i := strings.Index(t.held, s); i >= 0 && (at < 0 || i < at) {
			at, stop = i, s
		}
	}
	return at, stop
}

// partialStop returns how many bytes at the end may be the start of a stop string.
func (t *choiceText) partialStop() int {
	longest := 0
	for _, s := range t.stop.strings {
		for n := min(len(s)-1, len(t.held)); n > longest; n-- {
			if strings.HasSuffix(t.held, s[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}
