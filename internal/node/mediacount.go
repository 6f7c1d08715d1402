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
type counter struct{ local prep.Local }

func newCounter(pipe *prep.Pipeline) (*counter, error) {
	resolver, err := resolve.New(resolve.Config{}, resolve.FromFetcher(nil, maxCounted), nil) // data: URIs are not fetched
	if err != nil {
		return nil, err
	}
	return &counter{prep.Local{Pipeline: pipe, Media: resolver.For(resolve.Way{Identity: media.ByBytes})}}, nil
}

// maxCounted bounds a sample's file, in bytes.
const maxCounted = 16 << 20

// buildPrompt returns the prompt of a conversation, see [remote.Counting].
func (c *counter) prompt(ctx context.Context, kind media.Kind, url string) (remote.Shown, error) {
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
		return remote.Shown{}, err
	}
	defer p.Free()
	if p.TextOnly != media.NoReason {
		return remote.Shown{}, p.Why
	}
	return remote.Shown{Tokens: p.Tokens, Media: p.Media, Objects: p.Objects}, nil
}
