package enginetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// schemaCase is a schema and an independent check of its texts.
type schemaCase struct {
	schema string
	valid  func(v any) bool
}

func schemaCases() []schemaCase {
	return []schemaCase{
		{`{"type":"object","properties":{"name":{"type":"string","maxLength":6},"n":{"type":"integer","minimum":-20,"maximum":300}},"required":["name","n"],"additionalProperties":false}`, func(v any) bool {
			o, ok := v.(map[string]any)
			name, isString := o["name"].(string)
			n, isNumber := o["n"].(float64)
			return ok && len(o) == 2 && isString && len([]rune(name)) <= 6 && isNumber && n >= -20 && n <= 300 && n == float64(int(n))
		}},
		{`{"type":"array","items":{"enum":["a","b",7]},"minItems":1,"maxItems":4}`, func(v any) bool {
			list, ok := v.([]any)
			for _, item := range list {
				ok = ok && (item == "a" || item == "b" || item == 7.0)
			}
			return ok && len(list) >= 1 && len(list) <= 4
		}},
		{`{"anyOf":[{"type":"boolean"},{"type":"null"},{"$ref":"#/$defs/x"}],"$defs":{"x":{"const":{"k":[1,2]}}}}`, func(v any) bool {
			return v == true || v == false || v == nil || fmt.Sprint(v) == "map[k:[1 2]]"
		}},
		{`{"type":"object"}`, func(v any) bool { _, ok := v.(map[string]any); return ok }},
	}
}

// testSchema checks for every choice of a request with an OutputSchema that its text matches the schema if it
// stops, and is otherwise a prefix of JSON; and that it stops where the schema allows nothing else.
func (s *suite) testSchema(t *testing.T) {
	if !s.card.StructuredOutput {
		return
	}
	e, ctx := s.startEngine(t)
	room := s.card.ContextLength - 40
	var wg sync.WaitGroup
	for i, c := range schemaCases() {
		for j, sampling := range []engine.Sampling{{}, {Temperature: 1, Seed: 31}, {Temperature: 2, Seed: 32, RepetitionPenalty: 1.2, TopK: 50}} {
			for _, ignore := range []bool{false, true} {
				req := s.newRequest(uint64(70+i), 10+i, room)
				req.ID, req.Sampling, req.Stop.IgnoreEOS, req.Choices = fmt.Sprintf("guided-%d-%d", i, j), sampling, ignore, 1+j
				req.OutputSchema = &engine.OutputSchema{Schema: []byte(c.schema)}
				if ignore {
					req.Stop.MinTokens = room / 2 // does not delay the end
				}
				wg.Go(func() {
					choices, err := Generate(ctx, e, req)
					if err != nil {
						t.Errorf("%s: %v", c.schema, err)
						return
					}
					for _, choice := range choices {
						s.checkSchemaOutput(t, &c, req, &choice)
					}
				})
			}
		}
	}
	wg.Wait()
	requireIdle(t, e, "after guided requests")
	s.testSchemaRefused(t)
}

func (s *suite) checkSchemaOutput(t *testing.T, c *schemaCase, req *engine.Request, choice *Choice) {
	text := s.outputText(req, choice.Tokens)
	if choice.Finish == engine.FinishLength {
		if len(choice.Tokens) < req.Stop.MaxTokens {
			t.Errorf("%s: length after %d tokens of %d", c.schema, len(choice.Tokens), req.Stop.MaxTokens)
		}
		if _, err := json.NewDecoder(strings.NewReader(text)).Token(); err != nil {
			t.Errorf("%s: %q begins no JSON: %v", c.schema, text, err)
		}
		return
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil || !c.valid(v) {
		t.Errorf("%s: %q is not of the schema (%v)", c.schema, text, err)
	}
}

// outputText returns the text of tokens, without stop tokens.
func (s *suite) outputText(req *engine.Request, tokens []kv.Token) string {
	var b strings.Builder
	for i, token := range tokens {
		stop := i == len(tokens)-1 && !req.Stop.IgnoreEOS && slices.Contains(s.card.EOS, token)
		if !stop {
			b.WriteString(s.Text(token))
		}
	}
	return b.String()
}

// testSchemaRefused checks that unsupported schemas are refused before the request is accepted.
func (s *suite) testSchemaRefused(t *testing.T) {
	e, ctx := s.startEngine(t)
	for name, change := range map[string]func(*engine.Request){
		"not JSON":            func(r *engine.Request) { r.OutputSchema.Schema = []byte("{") },
		"an unknown keyword":  func(r *engine.Request) { r.OutputSchema.Schema = []byte(`{"type":"string","frobnicate":1}`) },
		"nothing that begins": func(r *engine.Request) { r.OutputSchema.Schema = []byte(`{"$ref":"#"}`) },
	} {
		req := s.newRequest(1, 10, 5)
		req.OutputSchema = &engine.OutputSchema{}
		change(req)
		r := NewRecorder(req)
		err := e.Generate(ctx, req, r.Sink)
		if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Invalid || f.Param != engine.SchemaParam || r.Accepted {
			t.Errorf("%s: error %v, accepted %v, want Invalid about %s", name, err, r.Accepted, engine.SchemaParam)
		}
	}
	requireIdle(t, e, "after guides that were refused")
}
