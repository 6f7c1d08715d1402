package frontend

import (
	"context"

	"penstock/core/fault"
	"penstock/internal/edge/openai"
)

// query answers the annotation query_instance_id: where the request would go and
// what its tokens are. Nothing is reserved or generated.
func (c *call) query(ctx context.Context, gens []*generation) error {
	if len(gens) != 1 {
		return fault.Param("nvext.annotations", "'%s' takes one prompt, not %d", openai.QueryInstance, len(gens))
	}
	g := gens[0]
	g.route.Attempt = 1
	g.route.Exclude = g.model.unfit
	x, err := c.f.deps.Router.Explain(ctx, &g.route)
	if err != nil {
		return err
	}
	d := x.Decision
	q := &openai.QueryAnswer{Worker: d.Worker, OverlapBlocks: d.OverlapBlocks, Tokens: g.request.Prompt}
	a := c.answer
	if err := a.accept(&event{decision: d, numerics: g.model.numerics(d.Worker.ID)}); err != nil {
		return err
	}
	if a.stream {
		if err := a.out.put(openai.AppendDone(openai.AppendQueryEvents(nil, q))); err != nil {
			return err
		}
		return a.out.close()
	}
	a.collector.Add(&openai.Chunk{
		Kind:   openai.Usage,
		Tokens: openai.TokenCounts{Prompt: g.counts.Prompt},
		Ext:    &openai.AnswerExt{Query: q},
	})
	return a.whole(append(a.collector.AppendBody(nil), '\n'))
}
