package vllm

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"time"

	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// mediaProbeTimeout bounds the probe for a kind of media: the server's processor makes tokens of a small
// object, which it may have to load first.
const mediaProbeTimeout = 20 * time.Second

// findMedia finds out which media the model takes, if conversations can be passed through: it lets the server
// make tokens of small objects.
func (p *serverProbe) findMedia(ctx context.Context, card *engine.Card, passes []string) {
	if !slices.Contains(passes, "/v1/chat/completions") {
		return
	}
	var kinds []string
	if p.Config.Media == nil {
		for _, kind := range remote.MediaKinds() {
			yes, said := p.probeMediaKind(ctx, kind)
			if !said { // workers of one model must agree: the answer of a busy server does not count
				yes = p.Config.TakesMedia(kind)
			}
			if yes {
				kinds = append(kinds, kind)
			}
		}
	}
	p.Config.SetMediaFields(card, kinds, engine.MediaKeysUUID)
	p.Warnings = append(p.Warnings, p.Config.UncountedMedia(card, "start vLLM with --enable-scale-out and frontends with --preprocess engine: it then says exactly what its prompts show")...)
}

// probeMediaKind reports whether the server makes tokens of a conversation that shows an object of a kind;
// answered is false if it is unknown.
func (p *serverProbe) probeMediaKind(ctx context.Context, kind string) (yes, said bool) {
	ctx, cancel := context.WithTimeout(ctx, mediaProbeTimeout)
	defer cancel()
	a, err := p.Client.Do(ctx, &remote.Call{Path: pathTokenize, Body: p.sampleRequest(kind)})
	if err != nil {
		return false, false
	}
	defer a.Close()
	switch {
	case a.OK():
		return true, true
	case a.Status == http.StatusNotFound, a.Status == http.StatusTooManyRequests:
		return false, false // it makes no tokens of anything, or is too busy
	}
	return false, a.Status < http.StatusInternalServerError
}

// sampleRequest returns a conversation that shows a small object of a kind.
func (p *serverProbe) sampleRequest(kind string) []byte {
	body := strictjson.AppendString([]byte(`{"model":`), p.base.ID)
	body = append(body, `,"messages":[{"role":"user","content":[`...)
	return append(append(body, remote.SamplePart(kind)...), `]}]}`...)
}

// countRendered returns how many tokens the server makes of the body of a chat request, without generating
// any: newer versions can if they were started with --enable-scale-out.
func (p *serverProbe) countRendered(ctx context.Context, body []byte) (int, error) {
	var made engine.Preprocessed
	err := fetchPrompt(ctx, p.Client, p.pinned, pathRender, withoutFeatures(bytes.Clone(body)), &made)
	return len(made.Tokens), err
}

// findFeatures returns the dialect for requests with processed media; nil if the server does not support them. It
// finds out whether the server returns the output of its media processor and accepts it as
// input: it lets the server answer about a small object in that way. Newer versions can if they were started
// with --enable-scale-out.
func (p *serverProbe) findFeatures(ctx context.Context, card *engine.Card) remote.Dialect {
	if len(card.Media) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, mediaProbeTimeout)
	defer cancel()
	kind := card.Media[0]
	if picture := media.Image.String(); slices.Contains(card.Media, picture) {
		kind = picture
	}
	var made engine.Preprocessed
	if err := fetchPrompt(ctx, p.Client, p.pinned, pathRender, p.sampleRequest(kind), &made); err != nil || made.Features == nil {
		return nil
	}
	d := &generateDialect{p.engine, p.pinned}
	if seen, err := remote.ProbePreprocessed(ctx, p.Client, card, d, &made); err != nil || seen.Tokens == 0 {
		return nil
	}
	card.Features = true
	return d
}
