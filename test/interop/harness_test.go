package interop

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// upModel is what "penstock up" serves; its weights are random.
const upModel = "penstock-tiny"

// up and recorded return clients of the two servers that run.sh starts.
func up(t *testing.T) openai.Client       { return connect(t, "PENSTOCK_UP_URL") }
func recorded(t *testing.T) openai.Client { return connect(t, "PENSTOCK_RECORDED_URL") }

func connect(t *testing.T, variable string) openai.Client {
	t.Helper()
	url := os.Getenv(variable)
	if url == "" {
		t.Fatal(variable + " is not set: run test/interop/run.sh, which starts the servers")
	}
	return openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey("unused"), option.WithMaxRetries(0))
}

// answer is what was said, whatever the API.
type answer struct {
	Reasoning, Content string
	Calls              []call
	Finish             string // stop, length or tool_calls
}

type call struct{ Name, Arguments, ID string }

// anonymous returns a without the ids of calls: each request has its own.
func (a answer) anonymous() answer {
	calls := a.Calls
	a.Calls = nil
	for _, c := range calls {
		a.Calls = append(a.Calls, call{Name: c.Name, Arguments: c.Arguments})
	}
	return a
}

func wantSame(t *testing.T, what string, got, want answer) {
	t.Helper()
	if got, want := got.anonymous(), want.anonymous(); !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v\nis not the whole: %+v", what, got, want)
	}
}

// recording is what stands beside one, for the request and for the answer.
type recording struct {
	model, name string

	Reasoning, Content string
	Calls              []struct {
		Name, ID  string
		Arguments any
	}
	Finish     string
	ToolChoice string `json:"tool_choice"`
	Schema     bool
	Effort     string
	Parallel   *bool
}

func (r *recording) prompt() string { return "Please play:" + r.name }

// check compares an answer to the recording.
func (r *recording) check(t *testing.T, got answer) {
	t.Helper()
	if got.Reasoning != r.Reasoning || got.Content != r.Content || got.Finish != r.Finish || len(got.Calls) != len(r.Calls) {
		t.Fatalf("got %+v, want %+v", got, r)
	}
	ids := map[string]bool{}
	for i, want := range r.Calls {
		c := got.Calls[i]
		var arguments any
		if err := json.Unmarshal([]byte(c.Arguments), &arguments); err != nil {
			t.Errorf("arguments %s: %v", c.Arguments, err)
		}
		if c.Name != want.Name || !reflect.DeepEqual(arguments, want.Arguments) || want.ID != "" && c.ID != want.ID {
			t.Errorf("call %d is %+v, want %+v", i, c, want)
		}
		if c.ID == "" || ids[c.ID] {
			t.Errorf("call %d has the id %q", i, c.ID)
		}
		ids[c.ID] = true
	}
}

// eachRecording runs f for every recording that is heard to its end.
func eachRecording(t *testing.T, f func(t *testing.T, r *recording)) {
	files, err := filepath.Glob("recordings/*/*.json")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		if r := readRecording(t, file); r.Finish != "" {
			t.Run(r.model+"/"+r.name, func(t *testing.T) { f(t, r) })
		}
	}
}

func recordingOf(t *testing.T, model, name string) *recording {
	return readRecording(t, filepath.Join("recordings", model, name+".json"))
}

func readRecording(t *testing.T, file string) *recording {
	t.Helper()
	r := &recording{model: filepath.Base(filepath.Dir(file)), name: strings.TrimSuffix(filepath.Base(file), ".json")}
	readJSON(t, file, r)
	return r
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// schema is that of the recordings' objects.
func schema(t *testing.T) (s map[string]any) {
	readJSON(t, "recordings/schema.json", &s)
	return s
}

// function is a tool of tools.json.
type function struct {
	Name, Description string
	Parameters        map[string]any
}

func functions(t *testing.T) (fs []function) {
	var tools []struct{ Function function }
	readJSON(t, "recordings/tools.json", &tools)
	for _, tool := range tools {
		fs = append(fs, tool.Function)
	}
	return fs
}

// wantCalls checks that there are calls, and that they are of known functions with
// the arguments that those require and no others.
func wantCalls(t *testing.T, calls []call) {
	t.Helper()
	if len(calls) == 0 {
		t.Error("no calls")
	}
	for _, c := range calls {
		var arguments map[string]any
		if err := json.Unmarshal([]byte(c.Arguments), &arguments); err != nil {
			t.Errorf("%s: arguments %s: %v", c.Name, c.Arguments, err)
		}
		known := false
		for _, f := range functions(t) {
			if f.Name == c.Name {
				known = true
				wantMembers(t, arguments, f.Parameters)
			}
		}
		if !known {
			t.Errorf("a call of %q", c.Name)
		}
	}
}

func wantMembers(t *testing.T, object, schema map[string]any) {
	t.Helper()
	properties := schema["properties"].(map[string]any)
	for name := range object {
		if properties[name] == nil {
			t.Errorf("%v has %q, which the schema has not", object, name)
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, ok := object[name.(string)]; !ok {
			t.Errorf("%v has no %q, which the schema requires", object, name)
		}
	}
}

// wantError returns the client's error, which has a status.
func wantError(t *testing.T, err error, status int) *openai.Error {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *openai.Error", err)
	}
	if e.StatusCode != status || e.Message == "" {
		t.Errorf("status %d, want %d; message %q", e.StatusCode, status, e.Message)
	}
	return e
}
