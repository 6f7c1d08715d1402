package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"penstock/core/fault"
)

// dialect is a model with its output format and recordings. Its file is dialect.json in a directory of its
// name.
type dialect struct {
	name string
	// ToolParser and ReasoningParser are the parsers in the model's card.
	ToolParser      string `json:"tool_parser"`
	ReasoningParser string `json:"reasoning_parser"`
	// Opening is the chat template's text before the assistant's response, Silent the same when the request
	// disables thinking.
	Opening string `json:"opening"`
	Silent  string `json:"silent"`

	recordings map[string]*recording
}

// recording is one response: NAME.txt has the text, byte for byte except for one final newline, and NAME.json
// the expected result of clients. This type has only the fields which the engine needs.
type recording struct {
	Text string `json:"-"`
	// Fail breaks the response; nil if it does not fail.
	Fail *failure `json:"fail"`
}

// failure says how a worker breaks a response.
type failure struct {
	// After is how many tokens come first; with 0 the worker refuses the request.
	After int `json:"after"`
	// Attempts is how many attempts fail; the next one, if there is one, does not.
	Attempts uint32 `json:"attempts"`
	// Code is a name of core/fault.
	Code string `json:"code"`

	code fault.Code
}

// loadDialects reads every directory. One without a dialect.json is an error: its recordings would never be served.
func loadDialects(files fs.FS) ([]*dialect, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("load recordings: %w", err)
	}
	var all []*dialect
	for _, e := range entries { // sorted
		if !e.IsDir() {
			continue
		}
		d, err := loadDialect(files, e.Name())
		if err != nil {
			return nil, fmt.Errorf("load recordings of %s: %w", e.Name(), err)
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, errors.New("load recordings: there is no directory with a dialect.json")
	}
	return all, nil
}

func loadDialect(files fs.FS, name string) (*dialect, error) {
	d := &dialect{name: name, recordings: map[string]*recording{}}
	if err := loadJSON(files, name+"/dialect.json", d); err != nil {
		return nil, err
	}
	texts, err := fs.Glob(files, name+"/*.txt")
	if err != nil {
		return nil, err
	}
	for _, file := range texts {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return nil, err
		}
		title := strings.TrimSuffix(file, ".txt")
		r := &recording{Text: strings.TrimSuffix(string(text), "\n")}
		if err := loadJSON(files, title+".json", r); err != nil {
			return nil, err
		}
		if r.Fail != nil {
			if r.Fail.code, err = parseCode(r.Fail.Code); err != nil {
				return nil, fmt.Errorf("%s.json: %w", title, err)
			}
		}
		d.recordings[path.Base(title)] = r
	}
	return d, nil
}

func loadJSON(files fs.FS, name string, v any) error {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func parseCode(name string) (fault.Code, error) {
	for c := fault.Internal; c <= fault.Draining; c++ {
		if c.String() == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("no fault is called %q", name)
}
