package node

import (
	"context"

	"penstock/core/media"
	"penstock/internal/edge/prep"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine/remote"
)

// promptCounter counts the tokens of conversations with media as frontends do, to compare them with an
// engine's counts.
type promptCounter struct{ local prep.LocalEncoder }

func newPromptCounter(pipe *prep.Pipeline) (*promptCounter, error) {
	resolver, err := resolve.New(resolve.Config{}, resolve.NewFetcherSource(nil, maxCounted), nil) // data: URIs are not fetched
	if err != nil {
		return nil, err
	}
	return &promptCounter{prep.LocalEncoder{Pipeline: pipe, Media: resolver.ResolverFor(resolve.ModelOptions{Identity: media.ByBytes})}}, nil
}

// maxCounted bounds a sample's file, in bytes.
const maxCounted = 16 << 20

// buildPrompt returns the prompt of a conversation, see [remote.Counting].
func (c *promptCounter) buildPrompt(ctx context.Context, kind media.Kind, url string) (remote.MediaPrompt, error) {
	chat := &prep.Chat{Messages: []prep.Message{{Role: "user"}}, AddGenerationPrompt: true}
	parts := []byte{'['}
	if url != "" {
		parts = prep.AppendMediaPart(parts, kind)
		const part = "messages[0].content[0]"
		chat.Media = []prep.Media{{Kind: kind, URL: url, Part: part, Param: part}}
	}
	parts = prep.AppendTextPart(parts, remote.CountingText)
	chat.Messages[0].Parts = append(parts, ']')
	p, err := c.local.EncodeChat(ctx, chat)
	if err != nil {
		return remote.MediaPrompt{}, err
	}
	defer p.Free()
	if p.TextOnlyReason != media.NoReason {
		return remote.MediaPrompt{}, p.TextOnlyError
	}
	return remote.MediaPrompt{Tokens: p.Tokens, Media: p.Media, Objects: p.Objects}, nil
}
