package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"penstock/internal/edge/parse"
)

const recordings = "../interop/recordings"

// expected is what stands beside a recording for the scripts of the clients.
type expected struct {
	Reasoning, Content string
	Calls              []call
	Finish             string
	ToolChoice         string `json:"tool_choice"` // required, or a function's name
	Schema             bool   // the request asks for schema.json
	Effort             string // of reasoning
	Parallel           *bool  // calls
	Fail               *failure
}

type call struct {
	Name      string
	Arguments any
	ID        string
}

// TestRecordings parses every recording as the frontend would and finds what is
// expected of it, so that a script that fails has found something else.
func TestRecordings(t *testing.T) {
	dialects, err := loadDialects(os.DirFS(recordings))
	if err != nil {
		t.Fatal(err)
	}
	formats := parse.Formats()
	for _, d := range dialects {
		formats = slices.DeleteFunc(formats, func(f string) bool { return f == d.ToolParser })
		for name, r := range d.recordings {
			t.Run(d.name+"/"+name, func(t *testing.T) {
				var want expected
				read(t, d.name+"/"+name+".json", &want)
				if want.Finish == "" {
					if r.Fail == nil {
						t.Fatal("no finish, and nothing fails")
					}
					return
				}
				if got := interpret(t, d, &want, r.Text); !reflect.DeepEqual(got, heard{want.Reasoning, want.Content, want.Calls}) {
					t.Errorf("got %+v,\nwant %+v", got, want)
				}
			})
		}
	}
	// json is what a guided engine writes, and has recordings with a tool_choice;
	// the others are close relatives of some that are recorded.
	if want := []string{"json", "deepseek_v41", "minimax_m1", "mimo", "longcat"}; !slices.Equal(formats, want) {
		t.Errorf("formats without a recording: %v, want %v", formats, want)
	}
}

type heard struct {
	reasoning, content string
	calls              []call
}

func interpret(t *testing.T, d *dialect, want *expected, text string) (h heard) {
	t.Helper()
	cfg := parse.Config{Functions: functions(t)}
	switch {
	case want.ToolChoice != "":
		cfg.Tools = "json"
	case want.Schema:
	default:
		cfg.Tools, cfg.Reasoning = parser(d.ToolParser), parser(d.ReasoningParser)
	}
	g, err := parse.CompileGrammar(cfg)
	if err != nil {
		t.Fatal(err)
	}
	opening := d.Opening
	if want.Effort == "none" {
		opening = d.Silent
	}
	p := g.NewParser(parse.StartAfter(cfg.Reasoning, "<|assistant|>"+opening), "seed")
	var arguments []string
	for _, e := range p.Close(p.Push(nil, []byte(text))) {
		switch e.Kind {
		case parse.Content:
			h.content += string(e.Text)
		case parse.Reasoning:
			h.reasoning += string(e.Text)
		case parse.CallBegin:
			c := call{Name: e.Name}
			if !strings.HasPrefix(e.ID, "call_") && len(e.ID) != 9 {
				c.ID = e.ID // the model's own
			}
			h.calls, arguments = append(h.calls, c), append(arguments, "")
		case parse.Arguments:
			arguments[e.Index] += string(e.Text)
		}
	}
	if want.Parallel != nil && !*want.Parallel && len(h.calls) > 1 {
		h.calls, arguments = h.calls[:1], arguments[:1]
	}
	for i := range h.calls {
		if err := json.Unmarshal([]byte(arguments[i]), &h.calls[i].Arguments); err != nil {
			t.Errorf("arguments %s: %v", arguments[i], err)
		}
	}
	return h
}

// parser is the parser that a card names.
func parser(name string) string {
	if name == "none" {
		return ""
	}
	return name
}

func functions(t *testing.T) []parse.Function {
	t.Helper()
	var tools []struct {
		Function struct {
			Name       string
			Parameters json.RawMessage
		}
	}
	read(t, "tools.json", &tools)
	var fs []parse.Function
	for _, tool := range tools {
		fs = append(fs, parse.Function{Name: tool.Function.Name, Parameters: tool.Function.Parameters})
	}
	return fs
}

// read reads a file of the recordings; a field that is not known is a mistake in it.
func read(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(recordings + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if strings.Contains(name, "/") {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestRecordingsRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"there is no directory": {"readme": ""},
		"open m/dialect.json":   {"hermes/dialect.json": "{}", "m/a.txt": ""},
		"m/dialect.json: ":      {"m/dialect.json": "{"},
		"m/a.json: no fault is": {"m/dialect.json": "{}", "m/a.txt": "", "m/a.json": `{"fail":{"code":"bad_luck"}}`},
		"open m/a.json":         {"m/dialect.json": "{}", "m/a.txt": ""},
	} {
		fs := fstest.MapFS{}
		for file, text := range files {
			fs[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if _, err := loadDialects(fs); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
