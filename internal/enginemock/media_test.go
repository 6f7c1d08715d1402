package enginemock_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"net/http"
	"strings"
	"testing"

	"penstock/core/media"
	"penstock/internal/enginemock"
)

// picture is a data: URI of a picture of one colour.
func picture(t *testing.T, width, height, colour int) string {
	t.Helper()
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file(t, width, height, colour))
}

func file(t *testing.T, width, height, colour int) []byte {
	t.Helper()
	p := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		p.Set(i%width, i/width, color.RGBA{uint8(colour), uint8(colour >> 8), 9, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// showing is the body of a conversation with pictures: each a URL, and after a # the client's UUID.
func showing(text string, pictures ...string) string {
	parts := fmt.Sprintf(`{"type":"text","text":%q}`, text)
	for _, p := range pictures {
		url, name, named := strings.Cut(p, "#")
		uuid := ""
		if named {
			uuid = fmt.Sprintf(`,"uuid":%q`, name)
		}
		shown := fmt.Sprintf(`{"url":%q}`, url)
		if url == "" {
			shown = "null"
		}
		parts += `,{"type":"image_url","image_url":` + shown + uuid + `}`
	}
	return `{"messages":[{"role":"user","content":[` + parts + `,{"type":"text","text":"` + strings.Repeat("and so on ", 12) + `"}]}],"max_tokens":2,"temperature":0}`
}

// usageOf sends a request and returns the prompt's tokens and how many of them were cached.
func usageOf(t *testing.T, s *enginemock.Server, path, body string) (prompt, cached int) {
	t.Helper()
	status, _, answer := ask(t, s, "POST", path, body)
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, status, answer)
	}
	a := decoded(t, answer)
	if meta, ok := a["meta_info"].(map[string]any); ok {
		n, _ := meta["cached_tokens"].(float64)
		return int(meta["prompt_tokens"].(float64)), int(n)
	}
	details, _ := at(t, a, "usage", "prompt_tokens_details").(map[string]any)
	n, _ := details["cached_tokens"].(float64)
	return int(at(t, a, "usage", "prompt_tokens").(float64)), int(n)
}

// TestPictures: a picture takes the tokens of the model's family, and its blocks are distinct.
func TestPictures(t *testing.T) {
	for _, d := range []enginemock.Dialect{enginemock.VLLM, enginemock.VLLMLegacy, enginemock.SGLang, enginemock.TRTLLM} {
		t.Run(string(d), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: d, Seed: 3})
			const chat = "/v1/chat/completions"
			larger, _ := usageOf(t, s, chat, showing("look", picture(t, 112, 112, 9)))
			one, _ := usageOf(t, s, chat, showing("look", picture(t, 112, 84, 1)))
			if larger-one != 4 { // 4 x 3 tokens, and 4 x 4
				t.Errorf("pictures of 112 x 84 and 112 x 112 make prompts of %d and %d tokens", one, larger)
			}
			_, again := usageOf(t, s, chat, showing("look", picture(t, 112, 84, 1)))
			_, other := usageOf(t, s, chat, showing("look", picture(t, 112, 84, 2)))
			if again < 32 || other >= 16 {
				t.Errorf("cached: %d of the same picture, %d of another", again, other)
			}
			_, first := usageOf(t, s, chat, showing("named", picture(t, 112, 84, 3)+"#it"))
			_, second := usageOf(t, s, chat, showing("named", picture(t, 112, 84, 4)+"#it"))
			if named := d != enginemock.SGLang; first >= 16 || named != (second >= 32) {
				t.Errorf("cached: %d of a named picture, %d of another by its name", first, second)
			}
		})
	}
}

// TestFrames: of a GIF vLLM samples two frames a second, at least four and an even number, and of a JPEG
// sequence it uses the first 32; two frames are one token high. Each can be switched off.
func TestFrames(t *testing.T) {
	film := func(frames int) string {
		g := &gif.GIF{}
		for range frames {
			g.Image, g.Delay = append(g.Image, image.NewPaletted(image.Rect(0, 0, 112, 84), color.Palette{color.Black, color.White})), append(g.Delay, 4)
		}
		var b bytes.Buffer
		if err := gif.EncodeAll(&b, g); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(showing("look", "data:image/gif;base64,"+base64.StdEncoding.EncodeToString(b.Bytes())), "image_url", "video_url")
	}
	sequence := func(frames int) string {
		var b bytes.Buffer
		if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 112, 84)), nil); err != nil {
			t.Fatal(err)
		}
		frame := base64.StdEncoding.EncodeToString(b.Bytes())
		return strings.ReplaceAll(showing("look", "data:video/jpeg;base64,"+strings.Repeat(frame+",", frames-1)+frame), "image_url", "video_url")
	}
	const pair = 12
	for _, c := range []struct {
		off  enginemock.Features
		body func(int) string
		want map[int]int // pairs by frames
	}{
		{enginemock.Features{}, film, map[int]int{4: 2, 7: 2, 60: 2, 150: 6}},
		{enginemock.Features{Sampling: enginemock.Off}, film, map[int]int{4: 2, 7: 4, 60: 30}},
		{enginemock.Features{}, sequence, map[int]int{4: 2, 7: 4, 32: 16, 40: 16}},
		{enginemock.Features{Sequences: enginemock.Off}, sequence, map[int]int{4: 2, 40: 20}},
	} {
		s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3, Features: c.off})
		two, _ := usageOf(t, s, "/v1/chat/completions", c.body(2))
		for frames, pairs := range c.want {
			if n, _ := usageOf(t, s, "/v1/chat/completions", c.body(frames)); n != two+(pairs-1)*pair {
				t.Errorf("%+v: %d frames make a prompt of %d tokens, two one of %d", c.off, frames, n, two)
			}
		}
	}
	status, _, answer := ask(t, start(t, enginemock.Config{Dialect: enginemock.SGLang, Seed: 3}), "POST", "/v1/chat/completions", sequence(4))
	if status != http.StatusBadRequest {
		t.Errorf("SGLang takes a JPEG sequence: %d %s", status, answer)
	}
}

// TestPicturesRefused: vLLM's errors for what it does not accept.
func TestPicturesRefused(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3, MediaLimits: map[media.Kind]int{media.Image: 2}, Fetch: func(_ context.Context, url string) ([]byte, error) {
		if strings.HasSuffix(url, "cat.png") {
			return file(t, 56, 56, 1), nil
		}
		return nil, fmt.Errorf("404, message='Not Found'")
	}})
	p := picture(t, 56, 56, 1)
	for body, want := range map[string]string{
		showing("x", p, p, p):                           "At most 2 image(s) may be provided in one prompt.",
		showing("x", "data:image/png;base64,AAAA"):      "Failed to load image",
		showing("x", "#unknown"):                        "Cache miss for image at index 0 but data is not provided.",
		showing("x", "https://example.com/dog.png"):     "Failed to load image: 404",
		showing("x", "https://example.com/cat.png#cat"): "",
		showing("x", "data:image/png,raw"):              "Only base64 data URLs",
	} {
		status, _, answer := ask(t, s, "POST", "/v1/chat/completions", body)
		if want == "" && status != http.StatusOK || want != "" && (status != http.StatusBadRequest || !strings.Contains(answer, want)) {
			t.Errorf("%.120s: %d %s, want %q", body, status, answer, want)
		}
	}
	if prompt, cached := usageOf(t, s, "/v1/chat/completions", showing("x", "#cat")); prompt < 20 || cached < 16 {
		t.Errorf("what was shown before: %d tokens, %d cached", prompt, cached)
	}
	blind := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3, Features: enginemock.Features{UUIDs: enginemock.Off}})
	_, _ = usageOf(t, blind, "/v1/chat/completions", showing("x", p+"#a"))
	if _, cached := usageOf(t, blind, "/v1/chat/completions", showing("x", picture(t, 56, 56, 2)+"#a")); cached >= 16 {
		t.Errorf("names count, and are off: %d cached", cached)
	}
}

// TestRenderPictures: render and tokenize show the prompt of a conversation with pictures.
func TestRenderPictures(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	body := showing("x", picture(t, 56, 56, 1)+"#"+strings.Repeat("ab", 32))
	for _, bare := range []bool{true, false} {
		sent := body
		if bare {
			sent = strings.Replace(body, "{", `{"mm_payload":"none",`, 1)
		}
		_, _, answer := ask(t, s, "POST", "/v1/chat/completions/render", sent)
		r := decoded(t, answer)
		tokens := at(t, r, "token_ids").([]any)
		offset, length := int(at(t, r, "features", "mm_placeholders", "image", 0, "offset").(float64)), int(at(t, r, "features", "mm_placeholders", "image", 0, "length").(float64))
		if length != 4 || tokens[offset] != tokens[offset+3] || at(t, r, "features", "mm_hashes", "image", 0) != strings.Repeat("ab", 32) {
			t.Errorf("%s", answer)
		}
		if data := at(t, r, "features", "kwargs_data"); (data == nil) != bare {
			t.Errorf("bare %v: %v", bare, data)
		}
		_, _, plain := ask(t, s, "POST", "/tokenize", body)
		if count := at(t, decoded(t, plain), "count").(float64); int(count) != len(tokens) {
			t.Errorf("%v tokens, rendered %d", count, len(tokens))
		}
	}
}

// TestGeneratePictures: SGLang's own API accepts keys with its pictures.
func TestGeneratePictures(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.SGLang, Seed: 3})
	_, _, models := ask(t, s, "GET", "/model_info", "")
	if at(t, decoded(t, models), "has_image_understanding") != true {
		t.Errorf("%s", models)
	}
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	place, ok := pipe.Family.Placeholder(media.Image)
	if !ok {
		t.Fatal("the built-in model sees nothing")
	}
	ids := fmt.Sprint(prompt(1, 10), place, prompt(2, 40))
	ids = "[" + strings.Join(strings.Fields(strings.NewReplacer("[", " ", "]", " ").Replace(ids)), ",") + "]"
	one := func(picture, hash string) (int, int) {
		return usageOf(t, s, "/generate", fmt.Sprintf(`{"input_ids":%s,"image_data":[%q],"mm_hashes":[%q],"sampling_params":{"max_new_tokens":2,"temperature":0}}`, ids, picture, hash))
	}
	n, cached := one(picture(t, 112, 84, 1), "00112233445566aa")
	if n != 50+12 || cached != 0 {
		t.Errorf("%d tokens, %d cached", n, cached)
	}
	if _, cached = one(picture(t, 112, 84, 2), "00112233445566aa"); cached < 48 {
		t.Errorf("%d cached by the same key", cached)
	}
	if _, cached = one(picture(t, 112, 84, 1), "00112233445566ab"); cached >= 16 {
		t.Errorf("%d cached by another key", cached)
	}
}

// TestProcessedPictures: one server continues from the media which another one processed, and reports as vLLM
// does what it cannot use.
func TestProcessedPictures(t *testing.T) {
	s, other := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3}), start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	body := showing("x", picture(t, 112, 84, 1))
	_, _, answer := ask(t, s, "POST", "/v1/chat/completions/render", body)
	var rendered struct {
		Tokens   json.RawMessage `json:"token_ids"`
		Features map[string]any  `json:"features"`
	}
	if err := json.Unmarshal([]byte(answer), &rendered); err != nil {
		t.Fatal(err)
	}
	generate := func(change func(features map[string]any), stream bool) (int, string) {
		t.Helper()
		features := map[string]any{}
		for k, v := range rendered.Features {
			features[k] = v
		}
		change(features)
		b, err := json.Marshal(map[string]any{
			"token_ids": rendered.Tokens, "features": features, "stream": stream, "sampling_params": map[string]any{"max_tokens": 2, "temperature": 0},
		})
		if err != nil {
			t.Fatal(err)
		}
		status, _, answer := ask(t, other, "POST", "/inference/v1/generate", string(b))
		return status, answer
	}
	for what, x := range map[string]struct {
		change func(map[string]any)
		stream bool
		status int
		says   string
	}{
		"all of it":         {func(map[string]any) {}, false, 200, "token_ids"},
		"no data":           {func(f map[string]any) { f["kwargs_data"] = nil }, false, 500, "Internal server error"},
		"no data, a stream": {func(f map[string]any) { f["kwargs_data"] = nil }, true, 200, `{"error":`},
		"one is missing":    {func(f map[string]any) { f["kwargs_data"] = map[string]any{"image": []any{nil}} }, false, 500, "Internal server error"},
		"of another shape":  {func(f map[string]any) { f["kwargs_data"] = map[string]any{"image": []any{"AAAA"}} }, false, 500, "shape"},
		"fewer names":       {func(f map[string]any) { f["mm_hashes"] = map[string]any{"image": []any{}} }, false, 400, "same length"},
		"beyond the prompt": {func(f map[string]any) {
			f["mm_placeholders"] = map[string]any{"image": []any{map[string]any{"offset": 1 << 20, "length": 12}}}
		}, false, 400, "must remain within"},
	} {
		if status, answer := generate(x.change, x.stream); status != x.status || !strings.Contains(answer, x.says) {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	if n := other.Processed(); n != 1 {
		t.Errorf("%d requests with processed media were taken", n)
	}
	if err := other.Faults().Set(enginemock.Fault{Kind: enginemock.FaultFeatures, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if status, answer := generate(func(map[string]any) {}, true); status != 500 {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := generate(func(map[string]any) {}, true); status != 200 || other.Processed() != 2 {
		t.Errorf("%d %s, %d taken", status, answer, other.Processed())
	}
}
