package frontend

import (
	"penstock/internal/edge/parse"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// manner is how a model writes what is not plain text: the names that package
// parse has for the format of its calls and the style of its reasoning, "" for
// none. doubt is why tools is "" though the model seems to write calls.
type manner struct{ tools, reasoning, doubt string }

// noParser is what a card says for "this model has none, whatever it looks like".
const noParser = "none"

// mannerOf returns what the card says of a model, else what can be found out.
func mannerOf(card *engine.Card, p *prep.Pipeline) manner {
	d := parse.Detect(parse.Model{
		Name:     card.Name,
		Template: p.TemplateText,
		HasToken: p.HasToken,
	})
	m := manner{tools: d.Tools, reasoning: d.Reasoning}
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
	if m.tools == "" && card.ToolParser == "" {
		m.doubt = d.Doubt
	}
	return m
}

// check reports a name that nobody knows, or two that exclude each other.
func (m manner) check() error {
	_, err := parse.Compile(parse.Config{Tools: m.tools, Reasoning: m.reasoning})
	return err
}
