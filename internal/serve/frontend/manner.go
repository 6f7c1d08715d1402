package frontend

import (
	"penstock/internal/edge/parse"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// manner is how a model writes what is not plain text: the names that package
// parse has for the format of its calls and the style of its reasoning, "" for
// none.
type manner struct{ tools, reasoning string }

// noParser is what a card says for "this model has none, whatever it looks like".
const noParser = "none"

// mannerOf returns what the card says of a model, else what can be found out.
func mannerOf(card *engine.Card, p *prep.Pipeline) manner {
	var m manner
	m.tools, m.reasoning = parse.Detect(parse.Model{
		Name:     card.Name,
		Template: p.TemplateText,
		HasToken: p.HasToken,
	})
	if p.ToolFormat != "" {
		m.tools = p.ToolFormat
	}
	choose := func(found *string, said string) {
		switch said {
		case "":
		case noParser:
			*found = ""
		default:
			*found = said
		}
	}
	choose(&m.tools, card.ToolParser)
	choose(&m.reasoning, card.ReasoningParser)
	return m
}

// check reports a name that nobody knows, or two that exclude each other.
func (m manner) check() error {
	_, err := parse.Compile(parse.Config{Tools: m.tools, Reasoning: m.reasoning})
	return err
}
