package node

import (
	"context"
	"strings"
	"sync"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/serve/frontend"
)

// routerPrompts makes the prompts of route queries to a router process. Requests come to it as tokens, so it
// opens a model's tokenizer only at the first query with a text.
type routerPrompts struct {
	role *routerRole
	mu   struct {
		sync.Mutex
		models map[string]*lazyPrompter // by model name
	}
}

// lazyPrompter is the prompter of one model card, or the error that prevents it.
type lazyPrompter struct {
	checksum string                             // of the card, and the media kinds that it miscounts
	open     func() (*frontend.Prompter, error) // once
}

// MakePrompt implements router.Prompter.
func (p *routerPrompts) MakePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	m := p.role.router.Catalog().Current().FindBase(q.Model)
	if m == nil {
		return prep.Prompt{}, fault.New(fault.Unavailable, "the model '%.100s' has no worker now: try again later", q.Model)
	}
	prompter, err := p.prompterFor(m.Card).open()
	if err != nil {
		p.dropPrompter(m.Card.Name)
		return prep.Prompt{}, fault.New(fault.Unavailable, "the tokenizer of the model '%s' cannot be opened by this router, and without it questions take token_ids only (penstock route --tokens): start the router with --model-path, or ask a frontend: %w", m.Card.Name, err)
	}
	return prompter.MakePrompt(ctx, q)
}

// maxPrompters bounds the models whose tokenizers are open.
const maxPrompters = 64

// prompterFor returns the prompter of a card, which its first use opens.
func (p *routerPrompts) prompterFor(card engine.Card) *lazyPrompter {
	p.mu.Lock()
	defer p.mu.Unlock()
	checksum := card.Checksum() + strings.Join(card.MiscountedMedia, "+")
	if have := p.mu.models[card.Name]; have != nil && have.checksum == checksum {
		return have
	}
	if p.mu.models == nil || len(p.mu.models) >= maxPrompters {
		p.mu.models = map[string]*lazyPrompter{}
	}
	made := &lazyPrompter{checksum: checksum, open: sync.OnceValues(func() (*frontend.Prompter, error) { return p.role.newPrompter(card) })}
	p.mu.models[card.Name] = made
	return made
}

// dropPrompter makes the next query open the tokenizer again.
func (p *routerPrompts) dropPrompter(model string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.models, model)
}

func (r *routerRole) newPrompter(card engine.Card) (*frontend.Prompter, error) {
	if card.Tokenizer.Kind == engine.TokenizerOfEngine {
		return nil, fault.New(fault.Unimplemented, "only its engines have it")
	}
	pipe, err := r.openTokenizer(card.Tokenizer)
	if err != nil {
		return nil, err
	}
	pipe = pipe.ForServing(card.ServingSettings())
	r.log.Info("tokenizer opened for questions", "model", card.Name, "kind", card.Tokenizer.Kind, "template", pipe.TemplateName)
	if r.mediaResolver == nil {
		return frontend.NewPrompter(card, pipe, nil), nil
	}
	return frontend.NewPrompter(*undecoded(card), pipe, r.mediaResolver.resolver), nil
}
