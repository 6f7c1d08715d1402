package frontend

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// maxHalvings bounds the rounds of a request in which media are halved.
const maxHalvings = 2

// mediaRounds is what a request with media keeps between its rounds: each is one prompt, and the attempts at it. Another
// one follows while no worker has accepted the request, with a conversation whose media were changed: one that is too
// large for an encoder is halved, at most twice, and one that fails is left out, if the client wants that.
type mediaRounds struct {
	attempts uint32 // the number of the last attempt
	spent    int    // prompt tokens which were counted
	held     int64  // of the body budget, by the last round

	shown    []*api.Media // all of the request, in order
	halved   int          // rounds in which media were halved
	tooLarge error        // the failure for which media were halved
}

// changeMedia changes the media of a request that failed with err, so that it can be served again. Otherwise it returns
// the error for the client.
func (p *typedRequest) changeMedia(ctx context.Context, err error) error {
	a, q := p.call.answer, p.req
	if !q.HasMedia() || a.committed || !a.firstOutput.IsZero() || ctx.Err() != nil {
		return err
	}
	now := q.MediaObjects()
	if p.rounds.shown == nil {
		p.rounds.shown = now
	}
	failures := engine.MediaFailures(err)
	halve, drop := p.sortFailures(now, failures)
	switch {
	case len(halve)+len(drop) == 0:
		return err
	case len(drop) > 0 && q.Ext.MediaFailure != api.TextOnly:
		// What is left of an object that was halved is of no interest to the client.
		return cmp.Or(p.rounds.tooLarge, err)
	}
	_, span := p.call.f.deps.Tracer.Start(ctx, "media_failure")
	span.SetInt("penstock.media_halved", int64(len(halve)))
	span.SetInt("penstock.media_dropped", int64(len(drop)))
	span.SetText("penstock.media_failure", engine.FailureName(failures[0].Kind))
	span.End(nil)
	if len(halve) > 0 {
		p.rounds.halved++
		p.rounds.tooLarge = cmp.Or(p.rounds.tooLarge, err)
		p.halveMedia(halve)
	}
	for _, f := range drop {
		p.dropMedia(now[f.Index], f.Kind)
	}
	p.call.f.throttled.Log(ctx, slog.LevelInfo, "media of a request could not be encoded: it is served with smaller ones, or without them",
		"request", p.call.id, "model", p.call.model, "halved", len(halve), "dropped", len(drop), "error", err)
	p.endRound()
	return nil
}

// sortFailures returns the media which are to be halved, and the failures of those which are not.
func (p *typedRequest) sortFailures(now []*api.Media, failures []*engine.MediaFailure) (halve []*api.Media, drop []*engine.MediaFailure) {
	for _, f := range failures {
		switch m := now[f.Index]; {
		case f.Kind == encode.OutOfMemory && m.Kind != media.Audio && p.rounds.halved < maxHalvings && p.halvesMedia():
			halve = append(halve, m)
		default:
			drop = append(drop, f)
		}
	}
	return halve, drop
}

// halvesMedia reports whether the media of the request are resolved here, and sent to an engine that takes them.
func (p *typedRequest) halvesMedia() bool {
	_, here := p.model.encoder.(boundedEncoder)
	return here && p.model.Card.AcceptsObjects
}

// halveMedia makes the next round show media at half of their frames or resolution.
func (p *typedRequest) halveMedia(all []*api.Media) {
	for _, m := range all {
		m.Halvings++
		p.call.metrics.mediaHalved.WithLabelValues().Inc()
	}
	halved := p.call.answer.ext.MediaHalved[:0]
	for i, m := range p.rounds.shown {
		if m.Halvings > 0 {
			halved = append(halved, api.HalvedMedia{Index: i, Times: m.Halvings})
		}
	}
	p.call.answer.ext.MediaHalved = halved
}

// dropMedia leaves an object out of the conversation.
func (p *typedRequest) dropMedia(m *api.Media, kind encode.FailureKind) {
	p.req.RemoveMedia(m)
	m.Halvings = 0 // it is not shown any more
	ext, index := &p.call.answer.ext, slices.Index(p.rounds.shown, m)
	ext.MediaHalved = slices.DeleteFunc(ext.MediaHalved, func(h api.HalvedMedia) bool { return h.Index == index })
	ext.MediaDropped = append(ext.MediaDropped, api.DroppedMedia{Index: index, Kind: engine.FailureName(kind)})
	slices.SortFunc(ext.MediaDropped, func(a, b api.DroppedMedia) int { return a.Index - b.Index })
	p.call.metrics.mediaDropped.WithLabelValues(engine.FailureName(kind)).Inc()
}

// endRound takes back what the round has used, and what it has told the answer.
func (p *typedRequest) endRound() {
	c, r := p.call, &p.rounds
	c.releaseMedia()
	c.f.bodies.Release(r.held)
	c.heldBytes -= r.held
	r.held = 0
	c.answer.accepted, c.answer.textOnly = false, media.NoReason
}

// spendPrompt counts the tokens of the prompts against the call's key. Those of a prompt with media count once a worker
// has accepted it: another one may take its place until then.
func (p *typedRequest) spendPrompt(tokens int) {
	spend := func() {
		p.call.spendTokens(max(0, tokens-p.rounds.spent), 0)
		p.rounds.spent = max(tokens, p.rounds.spent)
	}
	if !p.req.HasMedia() {
		p.call.answer.onAccept = nil
		spend()
		return
	}
	p.call.answer.onAccept = spend
}

// nameFailure returns err, that of a prompt without its media, as the failure of the object which it names.
func (p *typedRequest) nameFailure(prompt *prep.Prompt, err error) error {
	refused, ok := errors.AsType[*fault.Error](err)
	if !ok || prompt.FailureKind == encode.NotFailed {
		return err
	}
	i := slices.IndexFunc(p.req.MediaObjects(), func(m *api.Media) bool { return refused.Param == m.Part || refused.Param == m.Param })
	if i < 0 {
		return err
	}
	return engine.WrapMediaFailure(i, prompt.FailureKind, err)
}

// formatDropped returns the value of the header x-penstock-media-dropped.
func formatDropped(all []api.DroppedMedia) string {
	var b []byte
	for i, m := range all {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(strconv.AppendInt(b, int64(m.Index), 10), '='), m.Kind...)
	}
	return string(b)
}
