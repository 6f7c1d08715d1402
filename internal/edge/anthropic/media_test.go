package anthropic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/media"
	"penstock/internal/edge/api"
)

// TestDecodeMedia: images keep their places among texts, even if messages of one role are joined.
func TestDecodeMedia(t *testing.T) {
	const block = `{"type":"image","cache_control":null,"source":{"type":"url","url":"http://x/`
	q, err := Decode([]byte(`{"model":"m","max_tokens":1,"nvext":{"media_failure":"text_only"},"messages":[
		{"role":"user","content":[` + block + `a"}},{"type":"text","text":"a"},{"type":"text","text":"b"},
			{"uuid":"u","source":{"data":"AA==","media_type":"image/png","type":"base64"},"type":"image"}]},
		{"role":"user","content":[{"type":"text","text":"c"},` + block + `c"}}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"d"},` + block + `d"}}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	shown := func(part, field, url, name string) api.Part {
		return api.Part{Media: &api.Media{Kind: media.Image, Type: "image", Part: part, Param: part + field, URL: url, Name: name}}
	}
	want := []api.Message{
		{Role: "user", Content: "a\nb\nc", Parts: []api.Part{
			shown("messages[0].content[0]", ".source.url", "http://x/a", ""),
			{Text: "a\nb"},
			shown("messages[0].content[3]", ".source.data", "data:image/png;base64,AA==", "u"),
			{Text: "c"},
			shown("messages[1].content[1]", ".source.url", "http://x/c", ""),
		}},
		{Role: "assistant", NoContent: true, ToolCalls: []byte(`[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]`)},
		{Role: "tool", Name: "f", ToolCallID: "t", Content: "d", Parts: []api.Part{
			{Text: "d"},
			shown("messages[3].content[0].content[1]", ".source.url", "http://x/d", ""),
		}},
	}
	if diff := cmp.Diff(want, q.Messages); diff != "" {
		t.Error(diff)
	}
	if q.Ext.MediaFailure != api.TextOnly {
		t.Errorf("if one fails: %v", q.Ext.MediaFailure)
	}
	for _, ext := range []string{`{"media_failure":"text"}`, `{"token_data":[1]}`} {
		_, err := Decode([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}],"nvext":` + ext + `}`))
		if !strings.HasPrefix(param(err), "nvext.") {
			t.Errorf("%s: %v", ext, err)
		}
	}
}

// checkMedia checks the guarantees of Decode for media.
func checkMedia(t *testing.T, r *api.Request) {
	t.Helper()
	all := r.MediaObjects()
	if len(all) > api.MaxMedia || r.HasMedia() != (len(all) > 0) {
		t.Errorf("%d media objects", len(all))
	}
	for _, m := range all {
		url := strings.ToLower(m.URL)
		known := strings.HasPrefix(url, "http:") || strings.HasPrefix(url, "https:") || strings.HasPrefix(url, "data:")
		if m.Kind < media.Image || m.Kind > media.Audio || !known || m.Type == "" || !strings.HasPrefix(m.Part, "messages[") || !strings.HasPrefix(m.Param, m.Part+".") {
			t.Errorf("%+v", m)
		}
	}
}
