package remote

import (
	"context"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// ProbeResult is the result of a probe request to an engine.
type ProbeResult struct {
	Tokens int // of output
	Cached int // of the prompt, engine.CachedUnknown if the engine did not report them
}

// ProbePrompt lets an engine generate one token after prompt, to find out what it can do.
func ProbePrompt(ctx context.Context, client *Client, card *engine.Card, d Dialect, prompt []kv.Token) (ProbeResult, error) {
	return ProbePreprocessed(ctx, client, card, d, &engine.Preprocessed{Tokens: prompt})
}

// ProbePreprocessed is ProbePrompt for a prompt with media which a processor has processed.
func ProbePreprocessed(ctx context.Context, client *Client, card *engine.Card, d Dialect, p *engine.Preprocessed) (ProbeResult, error) {
	b, err := New(Config{Card: *card, Client: client, Dialect: d})
	if err != nil {
		return ProbeResult{}, err
	}
	req := &engine.Request{
		ID: "penstock-probe", Attempt: 1, Choices: 1, Logprobs: -1, Model: card.Name,
		Prompt: p.Tokens, Media: p.Media, Features: p.Features,
		Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true},
	}
	seen := ProbeResult{Cached: engine.CachedUnknown}
	err = b.runAttempt(ctx, newAttempt(b, req, func(d *engine.Delta) error {
		seen.Tokens += len(d.Tokens)
		if !d.Accepted {
			seen.Cached = max(seen.Cached, d.Cached)
		}
		return nil
	}))
	return seen, err
}
