// Command parserdriver gives programs in other languages access to the output parser: it reads commands from
// standard input, one JSON object on each line, and writes one JSON object for each to standard output. It
// ends with its input.
//
//	{"op":"open","tools":"hermes","reasoning":"qwen3","start":"open","functions":[…],"special":["<|im_end|>"]}
//	{"op":"push","session":1,"pieces":[{"text":"…","token":true}]}
//	{"op":"close","session":1}
//	{"op":"prompt","reasoning":"qwen3","text":"…"}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"

	"penstock/internal/edge/parse"
)

// command is one line of input.
type command struct {
	Op        string           `json:"op"`
	Session   int              `json:"session"`
	Tools     string           `json:"tools"`
	Reasoning string           `json:"reasoning"`
	Start     string           `json:"start"`    // "open", "closed", "amid", or "" where the style decides
	Fallback  string           `json:"fallback"` // "repeat", "move", or "" for none
	Functions []functionSchema `json:"functions"`
	Special   []string         `json:"special"` // the special tokens of the vocabulary
	Pieces    []inputPiece     `json:"pieces"`
	Text      string           `json:"text"` // a prompt
}

// inputPiece is a part of a response's text; token marks a single token.
type inputPiece struct {
	Text  string `json:"text"`
	Token bool   `json:"token"`
}

type functionSchema struct {
	Name       string          `json:"name"`
	Parameters json.RawMessage `json:"parameters"`
}

// driverResult is one line of output.
type driverResult struct {
	Session  int           `json:"session,omitempty"`
	Events   []outputEvent `json:"events,omitempty"`
	Thinking bool          `json:"thinking"`        // the next text is reasoning
	Start    string        `json:"start,omitempty"` // of the response to a prompt
	// Silent are the special tokens whose text is not part of a response: a caller does not push them.
	Silent []string `json:"silent,omitempty"`
	Error  string   `json:"error,omitempty"`
}

type outputEvent struct {
	Kind  string `json:"kind"`
	Index int    `json:"index"`
	ID    string `json:"id,omitempty"`
	Name  string `json:"name,omitempty"`
	Text  string `json:"text,omitempty"`
}

var starts = map[string]parse.StartState{
	"": parse.StyleDecides, "open": parse.StartOpen, "closed": parse.StartClosed, "amid": parse.StartAmid,
}

var fallbacks = map[string]parse.ContentFallback{
	"": parse.NoFallback, "repeat": parse.RepeatReasoning, "move": parse.MoveReasoning,
}

// sessionTable has the responses being parsed.
type sessionTable struct {
	open map[int]*parse.Parser
	last int
}

func main() {
	s := sessionTable{open: map[int]*parse.Parser{}}
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var c command
		if in.Decode(&c) != nil {
			return // the end of the input, or invalid JSON
		}
		r, err := s.executeCommand(&c)
		if err != nil {
			r = driverResult{Error: err.Error()}
		}
		if err := out.Encode(r); err != nil {
			return
		}
	}
}

// executeCommand runs c.
func (s *sessionTable) executeCommand(c *command) (driverResult, error) {
	switch c.Op {
	case "open":
		return s.openSession(c)
	case "prompt":
		for name, start := range starts {
			if start == parse.StartAfter(c.Reasoning, c.Text) {
				return driverResult{Start: name}, nil
			}
		}
		return driverResult{}, nil
	}
	p := s.open[c.Session]
	if p == nil {
		return driverResult{}, fmt.Errorf("there is no session %d", c.Session)
	}
	switch c.Op {
	case "push":
		var events []outputEvent
		for _, piece := range c.Pieces {
			push := p.Push
			if piece.Token {
				push = p.PushToken
			}
			events = append(events, copyEvents(push(nil, []byte(piece.Text)))...)
		}
		return driverResult{Events: events, Thinking: p.InReasoning()}, nil
	case "close":
		delete(s.open, c.Session)
		thinking := p.InReasoning()
		return driverResult{Events: copyEvents(p.Close(nil)), Thinking: thinking}, nil
	}
	return driverResult{}, fmt.Errorf("unknown op %q", c.Op)
}

func (s *sessionTable) openSession(c *command) (driverResult, error) {
	start, ok := starts[c.Start]
	if !ok {
		return driverResult{}, fmt.Errorf("unknown start %q", c.Start)
	}
	fallback, ok := fallbacks[c.Fallback]
	if !ok {
		return driverResult{}, fmt.Errorf("unknown fallback %q", c.Fallback)
	}
	cfg := parse.Config{Tools: c.Tools, Reasoning: c.Reasoning, Fallback: fallback}
	if len(c.Special) > 0 {
		cfg.HasToken = func(marker string) bool { return slices.Contains(c.Special, marker) }
	}
	for _, f := range c.Functions {
		cfg.Functions = append(cfg.Functions, parse.Function{Name: f.Name, Parameters: f.Parameters})
	}
	g, err := parse.CompileGrammar(cfg)
	if err != nil {
		return driverResult{}, err
	}
	r := driverResult{}
	for _, token := range c.Special {
		if !g.IsMarkup(token) {
			r.Silent = append(r.Silent, token)
		}
	}
	s.last++
	p := g.NewParser(start, strconv.Itoa(s.last))
	s.open[s.last] = p
	r.Session, r.Thinking = s.last, p.InReasoning()
	return r, nil
}

// copyEvents copies the texts, whose memory the parser reuses.
func copyEvents(from []parse.Event) []outputEvent {
	var to []outputEvent
	for _, e := range from {
		to = append(to, outputEvent{Kind: e.Kind.String(), Index: e.Index, ID: e.ID, Name: e.Name, Text: string(e.Text)})
	}
	return to
}
