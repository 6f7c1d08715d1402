package chat

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
)

// qwenVL is a template with the loop over parts that models of Qwen2-VL have.
const qwenVL = `{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}` +
	`{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}<|vision_start|><|image_pad|><|vision_end|>` +
	`{% elif content['type'] == 'video' or 'video' in content %}<|vision_start|><|video_pad|><|vision_end|>` +
	`{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// imagesFirst is one with the loops of LLaVA: all images of a message, then its texts.
const imagesFirst = `{% for message in messages %}{{ message['role'] | upper }}: ` +
	`{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<|image_pad|>\n' }}{% endfor %}` +
	`{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %} {% endfor %}` +
	`{% if add_generation_prompt %}ASSISTANT:{% endif %}`

const qwenConfig = `{"model_type":"qwen2_vl","architectures":["Qwen2VLForConditionalGeneration"],"vision_start_token_id":151652,"vision_end_token_id":151653,"image_token_id":151655,"video_token_id":151656,` +
	`"vision_config":{"model_type":"qwen2_vl","patch_size":14,"spatial_merge_size":2,"temporal_patch_size":2}}`

const qwenProcessor = `{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":3136,"max_pixels":12845056,"patch_size":14,"temporal_patch_size":2,"merge_size":2}`

// seeing are the files of a checkpoint that sees.
func seeing(t *testing.T, template string) map[string][]byte {
	t.Helper()
	var tok map[string]any
	if err := json.Unmarshal(fixture(t, "qwen2"), &tok); err != nil {
		t.Fatal(err)
	}
	added, _ := tok["added_tokens"].([]any)
	for i, name := range []string{"<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"} {
		added = append(added, map[string]any{"id": 151652 + i, "content": name, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	tok["added_tokens"] = added
	b, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		tokenizerFile: b, configFile: []byte(`{}`), templateFile: []byte(template),
		modelFile: []byte(qwenConfig), imageFile: []byte(qwenProcessor),
	}
}

func openFiles(t *testing.T, files map[string][]byte) *prep.Pipeline {
	t.Helper()
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, files)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fixedSize resolves every object to one size, or fails.
type fixedSize struct {
	size     media.Size
	err      error
	released *int
}

func (f fixedSize) Resolve(_ context.Context, c *prep.Chat, _ *family.Family) ([]media.Object, func(), error) {
	if f.err != nil {
		return nil, nil, f.err
	}
	var all []media.Object
	for _, m := range c.Media {
		all = append(all, media.Object{Kind: m.Kind, Part: m.Part, Source: m.URL, Key: media.URLKey(m.URL, 0), Size: f.size})
	}
	return all, func() { *f.released++ }, nil
}

// asked is a conversation whose user shows images between texts.
func asked(urls ...string) *prep.Chat {
	parts := prep.AppendTextPart([]byte{'['}, "What ")
	c := &prep.Chat{AddGenerationPrompt: true}
	for _, u := range urls {
		parts = prep.AppendMediaPart(parts, media.Image)
		c.Media = append(c.Media, prep.Media{Kind: media.Image, URL: u, Part: "messages[1].content[1]"})
	}
	parts = append(prep.AppendTextPart(parts, "is it?"), ']')
	c.Messages = []prep.Message{{Role: "system", Content: "You see."}, {Role: "user", Parts: parts}}
	return c
}

// TestPromptsThatShow: the placeholder that the template writes becomes the object's tokens, where
// the template has it.
func TestPromptsThatShow(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"in place": {qwenVL, "<|im_start|>system\nYou see.<|im_end|>\n<|im_start|>user\nWhat <|vision_start|>IMG<|vision_end|><|vision_start|>IMG<|vision_end|>is it?<|im_end|>\n<|im_start|>assistant\n"},
		"first":    {strings.Replace(imagesFirst, "{% for message in messages %}", "{% for message in messages[1:] %}", 1), "USER: IMG\nIMG\nWhat is it? ASSISTANT:"},
	} {
		p := openFiles(t, seeing(t, c.template))
		if p.Family == nil || p.Family.Name() != "qwen2_vl" || p.NoFamilyReason != "" {
			t.Fatalf("there is no family: %s", p.NoFamilyReason)
		}
		released := 0
		local := prep.LocalEncoder{Pipeline: p, Media: fixedSize{size: media.Size{Width: 84, Height: 56}, released: &released}}
		got, err := local.EncodeChat(t.Context(), asked("http://a", "http://b"))
		if err != nil || len(got.Media) != 2 || len(got.Objects) != 2 || got.TextOnlyReason != media.NoReason {
			t.Fatalf("%s: %+v %v", name, got, err)
		}
		pad, _ := p.Tokenizer.ID("<|image_pad|>")
		text := strings.ReplaceAll(c.want, "IMG", strings.Repeat("<|image_pad|>", 6))
		if want := p.Tokenizer.Encode(nil, text, prep.EncodeOptions{ParseSpecial: true}); !slices.Equal(got.Tokens, want) {
			t.Errorf("%s: %v, want %v", name, got.Tokens, want)
		}
		for i, m := range got.Media {
			key := media.URLKey([]string{"http://a", "http://b"}[i], 0)
			if m.End-m.Start != 6 || m.Hash != key.Hash || m.Digest != key.Digest || !slices.Equal(got.Tokens[m.Start:m.End], slices.Repeat([]kv.Token{pad}, 6)) {
				t.Errorf("%s: object %d is %+v", name, i, m)
			}
		}
		got.Free()
		if released != 1 {
			t.Errorf("%s: released %d times", name, released)
		}
	}
}

// TestPromptsByTheirText: what cannot be resolved leaves the tokens before the first object, and
// says why.
func TestPromptsByTheirText(t *testing.T) {
	seen := openFiles(t, seeing(t, qwenVL))
	other := seeing(t, qwenVL)
	other[modelFile] = []byte(`{"model_type":"something_new"}`)
	strange := openFiles(t, other)
	if strange.Family != nil || !strings.Contains(strange.NoFamilyReason, "something_new") {
		t.Fatalf("there is no family: %s", strange.NoFamilyReason)
	}
	blind := openFiles(t, seeing(t, "{% for m in messages %}<|im_start|>{{ m.role }}\n<|im_end|>{% endfor %}"))
	const before = "<|im_start|>system\nYou see.<|im_end|>\n<|im_start|>user\nWhat <|vision_start|>"
	good := fixedSize{size: media.Size{Width: 84, Height: 56}}
	args := asked("http://a")
	args.ProcessorArgs = true
	for _, c := range []struct {
		what   string
		pipe   *prep.Pipeline
		media  prep.Resolver
		chat   *prep.Chat
		reason media.Reason
		want   string
	}{
		{"a family that is not known", strange, good, asked("http://a"), media.UnsupportedModel, strings.TrimSuffix(before, " <|vision_start|>")},
		{"nothing that resolves", seen, nil, asked("http://a"), media.UnsupportedModel, before},
		{"arguments", seen, good, args, media.ProcessorOverridden, before},
		{"what is not there", seen, fixedSize{err: prep.NewUnresolvedError(media.DimensionsUnknown, "messages[1].content[1]", "no")}, asked("http://a"), media.DimensionsUnknown, before},
		{"a template that shows nothing", blind, good, asked("http://a"), media.PlaceholderMismatch, "<|im_start|>system\n<|im_end|><|im_start|>user\n<|im_end|>"},
	} {
		released := 0
		if f, ok := c.media.(fixedSize); ok {
			f.released = &released
			c.media = f
		}
		got, err := prep.LocalEncoder{Pipeline: c.pipe, Media: c.media}.EncodeChat(t.Context(), c.chat)
		if err != nil || got.TextOnlyReason != c.reason || got.TextOnlyError == nil || got.Media != nil || got.Objects != nil || got.Release != nil {
			t.Errorf("%s: %+v %v", c.what, got, err)
			continue
		}
		if want := c.pipe.Tokenizer.Encode(nil, c.want, prep.EncodeOptions{ParseSpecial: true}); !slices.Equal(got.Tokens, want) {
			text := []byte{}
			for _, id := range got.Tokens {
				text, _ = c.pipe.Tokenizer.AppendBytes(text, id)
			}
			t.Errorf("%s: the text before is %q", c.what, text)
		}
		if f, ok := c.media.(fixedSize); ok && f.err == nil && c.reason != media.UnsupportedModel && c.reason != media.ProcessorOverridden && released != 1 {
			t.Errorf("%s: released %d times", c.what, released)
		}
	}
}

// TestRefusedPictures: a picture that the model's processor refuses is refused by its place, and goes to no engine.
func TestRefusedPictures(t *testing.T) {
	seen := openFiles(t, seeing(t, qwenVL))
	released := 0
	chat := asked("http://a")
	_, err := prep.LocalEncoder{Pipeline: seen, Media: fixedSize{size: media.Size{Width: 9000, Height: 3}, released: &released}}.EncodeChat(t.Context(), chat)
	var refused *prep.RefusedError
	if !errors.As(err, &refused) || refused.Err.Code != fault.Invalid || refused.Err.Param != chat.Media[0].Part || !strings.Contains(err.Error(), "more than 200 times the other, and this one has 9000 by 3 pixels") {
		t.Errorf("%v", err)
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

// TestSpelledPlaceholders: a placeholder which is spelled in text makes no place for an object, wherever it is.
func TestSpelledPlaceholders(t *testing.T) {
	p := openFiles(t, seeing(t, qwenVL+"{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].tool_calls }}"))
	const spelled = "<|image_pad|>"
	hidden, _ := json.Marshal(spelled) // with escapes, as JSON may have it
	user := prep.Message{Role: "user", Content: "x"}
	for param, c := range map[string]*prep.Chat{
		"messages[1]":          {Messages: []prep.Message{user, {Role: "user", Content: "a" + spelled}}},
		"messages[0]":          {Messages: []prep.Message{{Role: "user", Parts: append(prep.AppendTextPart([]byte{'['}, "<|video_pad|>"), ']')}}},
		"tools":                {Messages: []prep.Message{user}, Tools: []byte(`[{"a":"` + spelled + `"}]`)},
		"chat_template_kwargs": {Messages: []prep.Message{user}, Args: []byte(`{"a":"` + spelled + `"}`)},
		"messages[2]":          {Messages: []prep.Message{user, user, {Role: "assistant", Content: "x", ToolCalls: []byte(`[{"function":{"name":` + string(hidden) + `}}]`)}}},
		"messages[3]":          {Messages: []prep.Message{user, user, user, {Role: "tool", Content: "x", ToolCallID: spelled}}},
		"messages":             {Messages: []prep.Message{{Role: "user", Parts: append(prep.AppendTextPart(prep.AppendTextPart([]byte{'['}, spelled[:5]), spelled[5:]), ']')}}}, // by two parts
	} {
		_, err := prep.LocalEncoder{Pipeline: p}.EncodeChat(t.Context(), c)
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	if _, err := (prep.LocalEncoder{Pipeline: p}).EncodeText(t.Context(), "a"+spelled, prep.RawPrompt()); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a prompt: %v", err)
	}
	if _, err := (prep.LocalEncoder{Pipeline: p}).EncodeText(t.Context(), "a<|vision_start|>", prep.RawPrompt()); err != nil {
		t.Errorf("a prompt without a place: %v", err)
	}
}

// TestFilesOfModelsThatSee: they count for the digest, where they say how a prompt is made, and the
// template may be where processors have it.
func TestFilesOfModelsThatSee(t *testing.T) {
	files := seeing(t, qwenVL)
	first := openFiles(t, files)
	more := maps.Clone(files)
	more[imageFile] = []byte(strings.Replace(qwenProcessor, "12845056", "1003520", 1))
	if p := openFiles(t, more); p.Digest == first.Digest {
		t.Error("another processor has the same digest")
	}
	text := maps.Clone(files)
	text[modelFile] = []byte(`{"model_type":"qwen2"}`)
	plain := openFiles(t, text)
	delete(text, imageFile)
	text[modelFile] = []byte(`{"model_type":"llama"}`)
	if p := openFiles(t, text); p.Digest != plain.Digest || p.Family != nil {
		t.Error("the digest of a text model depends on its configuration")
	}
	delete(files, templateFile)
	files[processorTemplateFile], _ = json.Marshal(map[string]string{"chat_template": qwenVL})
	p := openFiles(t, files)
	want, err := first.EncodeChat(nil, asked("http://a"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.EncodeChat(nil, asked("http://a"))
	if err != nil || !slices.Equal(got, want) || p.Digest == first.Digest {
		t.Errorf("%v %v", got, err)
	}
	files[processorTemplateFile] = []byte("{")
	if _, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, files)}); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("%v", err)
	}
}

// TestTextCostsNoMore: a conversation without media costs no memory for media.
func TestTextCostsNoMore(t *testing.T) {
	p := openFiles(t, seeing(t, qwenVL))
	local := prep.LocalEncoder{Pipeline: p, Media: fixedSize{}}
	c := &prep.Chat{Messages: []prep.Message{{Role: "user", Content: strings.Repeat("word ", 1000)}}}
	tokens, err := p.EncodeChat(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		if got, err := local.CompletePrompt(ctx, c, tokens); err != nil || len(got.Tokens) != len(tokens) {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
