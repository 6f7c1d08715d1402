package responses

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// object is a kind of accepted object inside a request.
type object struct {
	around  string            // a request with %s in place of the object
	members string            // accepted; the object has all of them
	refused map[string]string // members refused by name, with a value
}

// objects are the accepted objects of the official client, by their path in the list of the client's fields.
var objects = map[string]object{
	"input[]{message}": {around: `"input":[%s]`, members: `"type":"message","role":"user","content":"x","status":"completed","phase":"final_answer"`},
	"input[]{assistant}": {
		around: `"input":[%s]`, members: `"type":"message","role":"assistant","id":"msg_1","status":"completed","phase":"commentary","content":[]`,
	},
	"input[]{function_call}": {
		around:  `"input":[%s]`,
		members: `"type":"function_call","call_id":"c","name":"f","arguments":"{}","id":"fc_1","status":"completed","caller":{"type":"direct"},"async":false`,
		refused: map[string]string{"namespace": `"n"`},
	},
	"input[]{function_call_output}": {
		around:  `"input":[%s]`,
		members: `"type":"function_call_output","call_id":"c","name":"f","output":"x","id":"fco_1","status":"completed","caller":{"type":"direct"}`,
		refused: map[string]string{"namespace": `"n"`},
	},
	"input[]{reasoning}": {
		around:  `"input":[%s]`,
		members: `"type":"reasoning","id":"rs_1","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"x"}],"encrypted_content":"x"`,
	},
	"input[]{reasoning}.content[]{reasoning_text}": {around: `"input":[{"type":"reasoning","content":[%s]}]`, members: `"type":"reasoning_text","text":"x"`},
	"input[]{reasoning}.summary[]{summary_text}":   {around: `"input":[{"type":"reasoning","summary":[%s]}]`, members: `"type":"summary_text","text":"x"`},
	"input[]{message}.content[]{input_text}": {
		around: `"input":[{"role":"user","content":[%s]}]`, members: `"type":"input_text","text":"x","prompt_cache_breakpoint":{"mode":"explicit"}`,
	},
	"input[]{message}.content[]{input_image}": {
		around: `"input":[{"role":"user","content":[%s]}]`, members: `"type":"input_image","image_url":"http://x","detail":"low","prompt_cache_breakpoint":{"mode":"explicit"}`,
		refused: map[string]string{"file_id": `"f"`},
	},
	"input[]{function_call_output}.output[]{input_image}": {
		around:  `"input":[{"type":"function_call_output","call_id":"c","output":[%s]}]`,
		members: `"type":"input_image","image_url":"http://x","detail":"low","prompt_cache_breakpoint":{"mode":"explicit"}`,
		refused: map[string]string{"file_id": `"f"`},
	},
	"input[]{function_call_output}.output[]{input_text}": {
		around:  `"input":[{"type":"function_call_output","call_id":"c","output":[%s]}]`,
		members: `"type":"input_text","text":"x","prompt_cache_breakpoint":{"mode":"explicit"}`,
	},
	"input[]{function_call_output}.caller{direct}":  {around: `"input":[{"type":"function_call_output","output":"x","caller":%s}]`, members: `"type":"direct"`},
	"input[]{function_call_output}.caller{program}": {around: `"input":[{"type":"function_call_output","output":"x","caller":%s}]`, members: `"type":"program","caller_id":"x"`},
	"input[]{assistant}.content[]{output_text}": {
		around: `"input":[{"role":"assistant","content":[%s]}]`, members: `"type":"output_text","text":"x","annotations":[],"logprobs":[]`,
	},
	"input[]{assistant}.content[]{refusal}": {around: `"input":[{"role":"assistant","content":[%s]}]`, members: `"type":"refusal","refusal":"x"`},
	"tools[]{function}": {
		around:  `"input":"x","tools":[%s]`,
		members: `"type":"function","name":"f","description":"d","parameters":{},"strict":true,"async":false,"defer_loading":false,"allowed_callers":["direct"]`,
		refused: map[string]string{"output_schema": `{}`},
	},
	"tool_choice{function}": {around: `"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":%s`, members: `"type":"function","name":"f"`},
	"tool_choice{allowed_tools}": {
		around:  `"input":"x","tools":[{"type":"function","name":"f"}],"tool_choice":%s`,
		members: `"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]`,
	},
	"text":                     {around: `"input":"x","text":%s`, members: `"format":{"type":"text"},"verbosity":"medium"`},
	"text.format{text}":        {around: `"input":"x","text":{"format":%s}`, members: `"type":"text"`},
	"text.format{json_object}": {around: `"input":"x","text":{"format":%s}`, members: `"type":"json_object"`},
	"text.format{json_schema}": {around: `"input":"x","text":{"format":%s}`, members: `"type":"json_schema","name":"n","schema":{},"description":"d","strict":true`},
	"reasoning": {
		around:  `"input":"x","reasoning":%s`,
		members: `"effort":"low","summary":"auto","generate_summary":"auto","context":"auto","mode":"standard"`,
	},
	"stream_options": {around: `"input":"x","stream":true,"stream_options":%s`, members: `"include_obfuscation":true`},
	"image":          {around: `"input":"x","image":%s`, members: `"context_compression":"auto"`},
	"prompt_cache_options": {
		around: `"input":"x","prompt_cache_options":%s`, members: `"mode":"implicit","ttl":"30m","prewarm":false`,
		refused: map[string]string{"comparison_response_id": `"resp_1"`},
	},
}

// refusedFields are top-level fields which are refused with every value.
var refusedFields = []string{"access_programs", "context_management[]", "conversation", "moderation", "prompt"}

// TestOfficialClientObjects: for every object of the official client, every member is known, or the object is
// refused by its type.
func TestOfficialClientObjects(t *testing.T) {
	var client struct {
		Nested map[string][]string `json:"responses_nested"`
	}
	b, err := os.ReadFile("../testdata/client_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &client); err != nil {
		t.Fatal(err)
	}
	found := 0
	for path, members := range client.Nested {
		o, taken := objects[path]
		switch {
		case taken:
			found++
			holdObject(t, path, o, members)
		case slices.Contains(refusedFields, path):
		default:
			refuseType(t, path)
		}
	}
	if found != len(objects) {
		t.Errorf("%d of %d objects are the client's", found, len(objects))
	}
}

// holdObject decodes an object with every member which the client can send.
func holdObject(t *testing.T, path string, o object, members []string) {
	t.Helper()
	var given map[string]json.RawMessage
	if err := json.Unmarshal([]byte("{"+o.members+"}"), &given); err != nil {
		t.Fatal(path, err)
	}
	for name := range o.refused {
		given[name] = nil
	}
	var names []string
	for name := range given {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(members, names); diff != "" {
		t.Errorf("%s (-client +known)\n%s", path, diff)
	}
	if _, err := Decode([]byte(`{"model":"m",` + fmt.Sprintf(o.around, "{"+o.members+"}") + `}`)); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	for name, value := range o.refused {
		with := "{" + o.members + `,"` + name + `":` + value + "}"
		_, err := Decode([]byte(`{"model":"m",` + fmt.Sprintf(o.around, with) + `}`))
		if f := api.AsFault(err); err == nil || f.Code != fault.Invalid || !strings.HasSuffix(f.Param, "."+name) || strings.Contains(f.Message, "Unsupported") {
			t.Errorf("%s.%s: %v", path, name, err)
		}
	}
}

// refuseType decodes an object with only a type.
func refuseType(t *testing.T, path string) {
	t.Helper()
	where, kind, _ := strings.Cut(strings.TrimSuffix(path, "}"), "{")
	switch path { // these have a type which their path does not contain
	case "input[]":
		kind = "item_reference"
	case "input[]{developer}":
		kind = "additional_tools"
	case "tools[]":
		kind = "web_search"
	case "tool_choice":
		kind = "file_search"
	}
	as := fmt.Sprintf(`{"type":%q}`, kind)
	if at := strings.LastIndex(kind, "{"); at >= 0 { // a part of an item
		as = fmt.Sprintf(`{"role":"user","content":[{"type":%q}]}`, kind[at+1:])
	}
	body := map[string]string{
		"input[]": `"input":[` + as + `]`, "tools[]": `"input":"x","tools":[` + as + `]`, "tool_choice": `"input":"x","tool_choice":` + as,
	}[where]
	_, err := Decode([]byte(`{"model":"m",` + body + `}`))
	f := api.AsFault(err)
	if err == nil || f.Code != fault.Invalid || !strings.HasPrefix(f.Param, strings.TrimSuffix(where, "[]")) {
		t.Errorf("%s: %s is answered with %v", path, body, err)
	}
}
