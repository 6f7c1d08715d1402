package load

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"penstock/internal/replay"
)

const (
	probeTokens  = 8 // of the probe's prompt
	probeTimeout = 2 * time.Minute
	maxMessage   = 300 // characters of a server's message which are repeated
	probeIndex   = -1
)

// Probe finds out which form of requests the server of cfg accepts, by requesting one token in one form after
// another: prompts in the given form, or the first accepted one of several; for each the form with the most
// certain length. It ignores cfg.Form. The error has the server's message to the plainest form.
func Probe(ctx context.Context, cfg Config, prompts ...PromptForm) (RequestForm, error) {
	if err := cfg.applyDefaults(); err != nil {
		return RequestForm{}, err
	}
	p, err := cfg.Endpoint.resolveTarget()
	if err != nil {
		return RequestForm{}, err
	}
	cfg.Timeout = min(cfg.Timeout, probeTimeout)
	var refusal error
	for _, prompt := range prompts {
		for _, form := range []RequestForm{{Length: ExactLength}, {Length: IgnoreEOS}, {Length: MaxLength}, {Length: MaxLength, NoUsage: true}} {
			form.Prompt = prompt
			a, err := sendProbe(ctx, cfg, p, form)
			if err == nil {
				err = checkUnderstood(a, form)
			}
			if err == nil {
				return form, nil
			}
			if !refusesForm(a) {
				return RequestForm{}, fmt.Errorf("ask %s: %w", p.addr, err)
			}
			refusal = err
		}
	}
	return RequestForm{}, fmt.Errorf("ask %s: %w", p.addr, refusal)
}

// ProbeID returns the x-request-id of Probe's requests.
func ProbeID(cfg Config) string {
	setDefault(&cfg.Name, "bench")
	return cfg.Name + "-probe"
}

// sendProbe sends one request in the given form.
func sendProbe(ctx context.Context, cfg Config, p *target, form RequestForm) (*outcome, error) {
	cfg.Form, cfg.MaxTokens = form, 1
	r := newLoadRun(cfg, p, newRunClock())
	cut := context.AfterFunc(ctx, r.conns.closeAll)
	defer cut()
	b := r.builders.Get().(*bodyBuilder)
	j := &job{index: probeIndex, input: probeTokens, want: 1}
	// A unique prompt, so that it warms no cache which is measured.
	if err := r.buildRequest(b, j, &replay.Request{Index: probeIndex, Input: probeTokens, Output: 1}); err != nil {
		return nil, err
	}
	w := newLoadWorker(r)
	defer w.closeConn()
	a := &outcome{keepBody: true}
	w.serveIntoOutcome(ctx, j, a)
	if ctx.Err() != nil {
		return a, ctx.Err()
	}
	return a, a.err
}

// checkUnderstood checks that the server read the prompt in its form.
func checkUnderstood(a *outcome, form RequestForm) error {
	if form.Prompt == TokenPrompt && a.reported && a.prompt != probeTokens && a.prompt != probeTokens+1 {
		// One more is a token which the server adds to every prompt.
		return fmt.Errorf("a prompt of %d token ids counts as %d tokens there: it takes them for something else", probeTokens, a.prompt)
	}
	return nil
}

// refusesForm reports whether another form may be accepted.
func refusesForm(a *outcome) bool {
	if a == nil {
		return false
	}
	if a.sample.Error == "" {
		return true // misunderstood
	}
	return slices.Contains([]string{"status_400", "status_404", "status_405", "status_415", "status_422", "status_500", "status_501", "error_event"}, a.sample.Error)
}

// refusalError is the error of a response which is not 200, with the server's message.
func (a *outcome) refusalError(status int) error {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"message"`
		Detail  any    `json:"detail"`
	}
	said := ""
	if json.Unmarshal(a.message, &body) == nil {
		said = body.Error.Message
		said = cmp.Or(said, body.Message)
		if text, ok := body.Detail.(string); ok && said == "" {
			said = text
		}
	}
	said = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, said)
	if runes := []rune(said); len(runes) > maxMessage {
		said = string(runes[:maxMessage]) + "…"
	}
	if said == "" {
		return fmt.Errorf("it answers with status %d", status)
	}
	return fmt.Errorf("it answers with status %d: %s", status, said)
}
