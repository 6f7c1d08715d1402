package remote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
)

// TestEditMedia checks that the media get the given names in their order, and no names that the client chose.
func TestEditMedia(t *testing.T) {
	for _, c := range []struct {
		what, body, want string
		names            []string
		told             bool
	}{
		{
			"two pictures, one of which the client named",
			`{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}}, {"uuid":"mine","image_url":{"url":"u"},"type":"image_url"}]}]}`,
			`{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"uuid":"K1","type":"image_url","image_url":{"url":"data:x"}}, {"uuid":"K2","image_url":{"url":"u"},"type":"image_url"}]}]}`,
			[]string{"K1", "K2"},
			true,
		},
		{
			"in the order of messages, whatever stands before them",
			`{"messages":[{"content":[{"input_audio":{"data":"x","format":"wav"},"type":"input_audio"}],"role":"user"},{"content":"no"},{"role":"user","content":[{"type":"video_url","video_url":{"url":"v"}}]}],"model":"x"}`,
			`{"messages":[{"content":[{"uuid":"K1","input_audio":{"data":"x","format":"wav"},"type":"input_audio"}],"role":"user"},{"content":"no"},{"role":"user","content":[{"uuid":"K2","type":"video_url","video_url":{"url":"v"}}]}],"model":"tiny"}`,
			[]string{"K1", "K2"},
			true,
		},
		{
			"named by the client, unknown here",
			`{"model":"tiny","messages":[{"content":[{"type":"image_url","image_url":null,"uuid":"mine"}]}]}`,
			`{"model":"tiny","messages":[{"content":[{"type":"image_url","image_url":null,"uuid":null}]}]}`,
			nil, false,
		},
		{
			"more than are known",
			`{"model":"tiny","messages":[{"content":[{"type":"image_url","uuid":"a"},{"type":"image_url"}]}]}`,
			`{"model":"tiny","messages":[{"content":[{"type":"image_url","uuid":null},{"type":"image_url"}]}]}`,
			[]string{"K1"},
			false,
		},
		{
			"twice, and where no name belongs",
			`{"model":"tiny","mm_hashes":["aa"],"messages":[{"content":[{"type":"image_url","uuid":"a","uuid":"b","image_url":{"url":"u","content_hash":"c"}},{"type":"text","text":"t","uuid":"d"}]}]}`,
			`{"model":"tiny","mm_hashes":null,"messages":[{"content":[{"type":"image_url","uuid":"K1","uuid":"K1","image_url":{"url":"u","content_hash":null}},{"type":"text","text":"t","uuid":null}]}]}`,
			[]string{"K1"},
			true,
		},
		{"an empty part", `{"model":"tiny","messages":[{"content":[{"image_url":""},{}]}]}`, `{"model":"tiny","messages":[{"content":[{"uuid":"K1","image_url":""},{}]}]}`, []string{"K1"}, true},
	} {
		got, err := editRequestBody([]byte("before"), []byte(c.body), &editOptions{model: "tiny", names: c.names})
		if err != nil || string(got.body) != "before"+c.want || got.namesMedia != c.told {
			t.Errorf("%s: %v, told %v\n got %s\nwant %s", c.what, err, got.namesMedia, got.body, c.want)
		}
	}
	for _, body := range []string{`{"messages":[{"content":[{"type":"image_url","\u0075uid":"a"}]}]}`, `{"messages":[{"cont\u0065nt":[]}]}`, `{"messages":[{"content":[{"image_url":{"content_h\u0061sh":"a"}}]}]}`} {
		if got, err := editRequestBody(nil, []byte(body), &editOptions{model: "m"}); err == nil {
			t.Errorf("%s became %s", body, got.body)
		}
	}
}

// FuzzEditMedia checks that the result differs only in names, and has none of the client's.
func FuzzEditMedia(f *testing.F) {
	f.Add([]byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"x"},"uuid":"secret"},{"type":"text","text":"secret"}]}]}`), 1)
	f.Add([]byte(`{"input":[{"content":[{"uuid":"secret","uuid":{"a":1}}]}],"mm_hashes":[]}`), 0)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		var names []string
		for i := range max(0, min(n, 9)) {
			names = append(names, fmt.Sprintf("K%d", i))
		}
		got, err := editRequestBody(nil, body, &editOptions{model: "m", names: names})
		var before, after map[string]any
		if json.Unmarshal(body, &before) != nil || before == nil || err != nil {
			return
		}
		if err := json.Unmarshal(got.body, &after); err != nil {
			t.Fatalf("%s became %s: %v", body, got.body, err)
		}
		for _, v := range []any{before, after} {
			nameless(v)
		}
		delete(before, "model")
		delete(after, "model")
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%s became %s", body, got.body)
		}
	})
}

// nameless removes the names of media from a decoded body.
func nameless(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range []string{"uuid", "content_hash", "hash", "mm_hashes", "mm_content_hashes", "multi_modal_uuids"} {
			delete(v, key)
		}
		for _, e := range v {
			nameless(e)
		}
	case []any:
		for _, e := range v {
			nameless(e)
		}
	}
}

// TestPassMedia checks that the keys reach an engine that takes them, and that only then the prompt after the
// media is known to the cache.
func TestPassMedia(t *testing.T) {
	key := media.URLKey("https://example.com/cat.jpg", 0)
	objects := []media.Object{{Kind: media.Image, Key: key}}
	prompt := make([]kv.Token, 32)
	for _, c := range []struct {
		way, path string
		told      bool
	}{{engine.MediaKeysUUID, pathChat, true}, {"", pathChat, false}, {engine.MediaKeysUUID, "/v1/messages", false}} {
		var body string
		b := base(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			body = string(raw)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{}],"usage":{"prompt_tokens":32,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":16}}}`)
		}).URL, func(cfg *Config) {
			cfg.Card.MediaKeys, cfg.PassthroughPaths = c.way, []string{pathChat, "/v1/messages"}
		})
		_, _, err := passed(b, &engine.PassthroughRequest{
			ID: "p", Attempt: 1, Model: "m", Path: c.path, Body: []byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"u"},"uuid":"mine"}]}]}`),
			Prompt: prompt, Media: []kv.Media{{Hash: key.Hash, Start: 5, End: 30}}, Objects: objects,
		})
		if err != nil || strings.Contains(body, "mine") || strings.Contains(body, `"uuid":"`+key.UUID()+`"`) != c.told {
			t.Errorf("%s %s: %v, %s", c.way, c.path, err, body)
		}
		if s := b.Stats(); c.told && s.Reported != 16 || !c.told && s.Reported > 5 {
			t.Errorf("%s %s: %+v", c.way, c.path, s)
		}
	}
}

// TestEditLarge checks that a body is copied once, for any content.
func TestEditLarge(t *testing.T) {
	body := joined(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`, strings.Repeat("A", 1<<20), `"}}]}],"model":"m"}`)
	dst := make([]byte, 0, len(body)+1024)
	w := &editOptions{model: "m", names: []string{"k"}}
	if n := testing.AllocsPerRun(10, func() {
		if got, err := editRequestBody(dst, body, w); err != nil || !got.namesMedia || &got.body[0] != &dst[:1][0] {
			t.Fatal(err)
		}
	}); n > 20 {
		t.Errorf("%v allocations", n)
	}
}

func joined(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		b.WriteString(p)
	}
	return b.Bytes()
}
