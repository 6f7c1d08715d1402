package frontend

import (
	"penstock/internal/edge/parse"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// outputFormat is how a model writes what is not plain text: package parse's names for the format of
// its calls and the style of its reasoning, "" for none. doubt is why tools is "" although the model
// seems to write calls.
type outputFormat struct{ tools, reasoning, doubt string }

// noParser is a card's value for a model which has none, whatever detection finds.
const noParser = "none"

// outputFormatOf returns the format that the card names, else the detected one.
func outputFormatOf(card *engine.Card, p *prep.Pipeline) outputFormat {
	d := parse.DetectFormat(parse.ModelHints{
		Name:     card.Name,
		Template: p.TemplateText,
		HasToken: p.HasToken,
	})
	m := outputFormat{tools: d.Tools, reasoning: d.Reasoning}
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

// check reports an unknown name, or two that exclude each other.
func (m outputFormat) check() error {
	_, err := parse.CompileGrammar(parse.Config{Tools: m.tools, Reasoning: m.reasoning})
	return err
}
