package frontend

import (
	"context"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

// answerQuery answers the annotation query_instance_id: where the request would go and what its tokens
// are. It reserves and generates nothing.
func (c *apiCall) answerQuery(ctx context.Context, gens []*generationTask, form api.QueryForm) error {
	if len(gens) != 1 {
		return fault.InvalidParam("nvext.annotations", "'%s' takes one prompt, not %d", api.QueryInstance, len(gens))
	}
	g := gens[0]
	g.Route.Attempt = 1
	g.Route.Exclude = g.model.Unfit
	x, err := c.f.deps.Router.Explain(ctx, &g.Route)
	if err != nil {
		return err
	}
	d := x.Decision
	q := &api.QueryAnswer{Worker: d.Worker, OverlapBlocks: d.OverlapBlocks, Tokens: g.Request.Prompt, TextOnly: string(c.answer.textOnly)}
	a := c.answer
	if err := a.acceptRequest(d, g.model.NumericsOf(d.Worker.ID)); err != nil {
		return err
	}
	all := &api.Chunk{
		Kind:   api.Usage,
		Tokens: api.TokenCounts{Prompt: g.counts.Prompt},
		Ext:    &api.AnswerExt{Query: q, Annotated: a.ext.Annotated, MediaDropped: a.ext.MediaDropped},
	}
	if !a.stream {
		return a.sendWhole(append(a.writer.End(a.writer.Append(nil, all)), '\n'))
	}
	var events []byte
	if form == api.QueryEvents && c.endpoint != api.Responses { // clients of Responses accept only that API's own events
		events = openai.AppendQueryEvents(events, q)
	} else {
		events = a.writer.Append(events, all)
	}
	if err := a.sse.put(a.writer.End(events)); err != nil {
		return err
	}
	return a.sse.close()
}
