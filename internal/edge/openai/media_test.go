package openai

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/media"
	"penstock/internal/edge/api"
)

// TestDecodeMedia: parts keep their order, in any order of their members.
func TestDecodeMedia(t *testing.T) {
	q, err := Decode(api.Chat, []byte(`{"model":"m","mm_processor_kwargs":{"max_pixels":1},"messages":[
		{"role":"system","content":[{"type":"text","text":"s"}]},
		{"role":"user","content":[
			{"type":"text","text":"a"},
			{"image_url":{"detail":"high","url":"https://x/a"},"uuid":"u1","type":"image_url"},
			{"type":"image","image":"http://x/b"},
			{"type":"input_image","image_url":"DATA:image/png;base64,AA==","detail":"low"},
			{"type":"text","text":"b"},
			{"type":"video_url","video_url":{"url":"http://x/v"}},
			{"type":"audio_url","audio_url":{"url":"http://x/s"}},
			{"type":"input_audio","input_audio":{"format":"wav","data":"AA=="}}]},
		{"role":"tool","tool_call_id":"c","content":[{"type":"image_url","image_url":{"url":"http://x/t"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	shown := func(kind media.Kind, typ, part, field, url, name string) api.Part {
		return api.Part{Media: &api.Media{Kind: kind, Type: typ, Part: part, Param: part + field, URL: url, Name: name}}
	}
	want := []api.Message{
		{Role: "system", Content: "s", Parts: []api.Part{{Text: "s"}}},
		{Role: "user", Content: "a\nb", Parts: []api.Part{
			{Text: "a"},
			shown(media.Image, "image_url", "messages[1].content[1]", ".image_url.url", "https://x/a", "u1"),
			shown(media.Image, "image", "messages[1].content[2]", ".image", "http://x/b", ""),
			shown(media.Image, "input_image", "messages[1].content[3]", ".image_url", "DATA:image/png;base64,AA==", ""),
			{Text: "b"},
			shown(media.Video, "video_url", "messages[1].content[5]", ".video_url.url", "http://x/v", ""),
			shown(media.Audio, "audio_url", "messages[1].content[6]", ".audio_url.url", "http://x/s", ""),
			shown(media.Audio, "input_audio", "messages[1].content[7]", ".input_audio.data", "data:audio/wav;base64,AA==", ""),
		}},
		{Role: "tool", ToolCallID: "c", Parts: []api.Part{
			shown(media.Image, "image_url", "messages[2].content[0]", ".image_url.url", "http://x/t", ""),
		}},
	}
	if diff := cmp.Diff(want, q.Messages); diff != "" {
		t.Error(diff)
	}
	if !q.ProcessorArgs || !q.HasMedia() || len(q.MediaObjects()) != 7 || q.MediaObjects()[6].URL != "http://x/t" {
		t.Errorf("%v %v", q.ProcessorArgs, q.MediaObjects())
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
