package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/edge/prep"
)

// phi3Vision is a template which knows texts only, as that of Phi-3-vision.
const phi3Vision = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// beginning is a tokenizer which begins every prompt with a token, as that of Phi-3-vision.
type beginning struct {
	prep.Tokenizer
	begin kv.Token
}

func (b beginning) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if opts.AddSpecial {
		dst = append(dst, b.begin)
	}
	return b.Tokenizer.Encode(dst, text, opts)
}

// phiPipeline is the pipeline of a checkpoint of Phi-3-vision.
func phiPipeline(t *testing.T) *prep.Pipeline {
	t.Helper()
	files := seeing(t, phi3Vision)
	files[modelFile] = []byte(`{"model_type":"phi3_v","architectures":["Phi3VForCausalLM"],"img_processor":{"num_img_tokens":144}}`)
	files[imageFile] = []byte(`{"image_processor_type":"Phi3VImageProcessor","num_crops":4,"num_img_tokens":144}`)
	p, err := Open(Ref{Kind: "dir", Dir: checkpoint(t, files)})
	if err != nil {
		t.Fatal(err)
	}
	begin, _ := p.Tokenizer.ID("<|endoftext|>")
	pad, _ := p.Tokenizer.ID("<|image_pad|>")
	p.Tokenizer = beginning{p.Tokenizer, begin}
	f, err := family.Open(family.CheckpointFiles{Config: files[modelFile], Preprocessor: files[imageFile]}, padVocabulary{pad})
	if err != nil {
		t.Fatal(err)
	}
	p.SetFamily(f)
	return p
}

// padVocabulary is a vocabulary in which the image token of Phi-3-vision is another one.
type padVocabulary struct{ pad kv.Token }

func (v padVocabulary) ID(text string) (kv.Token, bool) { return v.pad, text == "<|image|>" }

// TestNumberedImages: each image of a conversation is a numbered text before the text of its message. The prompt is
// split there; each text between is encoded by itself, with what begins a prompt, and the image's token is between.
func TestNumberedImages(t *testing.T) {
	p := phiPipeline(t)
	image := string(prep.AppendMediaPart(nil, media.Image))
	text := func(s string) string { return string(prep.AppendTextPart(nil, s)) }
	parts := func(all ...string) []byte { return []byte("[" + strings.Join(all, ",") + "]") }
	c := &prep.Chat{AddGenerationPrompt: true, Messages: []prep.Message{
		{Role: "user", Parts: parts(text("What is here?"), image)},
		{Role: "assistant", Content: "A lake."},
		{Role: "user", Parts: parts(image, image, text("And here?"))},
	}}
	got, err := p.EncodeChat(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	pad, _ := p.Family.Placeholder(media.Image)
	var want []kv.Token
	for i, chunk := range []string{
		"<|im_start|>user\n", "\nWhat is here?<|im_end|>\n<|im_start|>assistant\nA lake.<|im_end|>\n<|im_start|>user\n", "\n", "\nAnd here?<|im_end|>\n<|im_start|>assistant\n",
	} {
		if i > 0 {
			want = append(want, pad)
		}
		want = p.Tokenizer.Encode(want, chunk, prep.RawPrompt())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the prompt is\n%v, want\n%v", got, want)
	}
	layout, err := p.Family.Layout(media.Image, media.Size{Width: 500, Height: 500})
	if err != nil || layout.CountTokens() != 757 {
		t.Fatalf("%v, %v", layout, err)
	}
	objects := slices.Repeat([]media.PromptObject{{Placeholder: pad, Layout: layout}}, 3)
	expanded, places, err := media.ExpandPrompt(nil, nil, got, p.Family.Placeholders(), objects, media.MaxExpanded)
	if err != nil || len(places) != 3 || len(expanded) != len(got)+3*756 {
		t.Errorf("%d tokens, %v, %v", len(expanded), places, err)
	}
	if string(c.Messages[0].Parts) != string(parts(text("What is here?"), image)) {
		t.Error("the caller's conversation was changed")
	}

	// Without images nothing begins a prompt of a conversation, as for every other model.
	plain, err := p.EncodeChat(nil, &prep.Chat{Messages: []prep.Message{{Role: "user", Content: "Hello"}}})
	if want := p.Tokenizer.Encode(nil, "<|im_start|>user\nHello<|im_end|>\n", prep.EncodeOptions{ParseSpecial: true}); err != nil || !slices.Equal(plain, want) {
		t.Errorf("a text is %v, %v, want %v", plain, err, want)
	}
}

// TestNumberedImagesInText: a client cannot write the text of an image.
func TestNumberedImagesInText(t *testing.T) {
	p := phiPipeline(t)
	spelled, _ := json.Marshal([]map[string]string{{"type": "text", "text": "<|image_1|>"}})
	for _, m := range []prep.Message{{Role: "user", Content: "Look: <|image_1|>"}, {Role: "user", Parts: spelled}} {
		if _, err := p.EncodeChat(nil, &prep.Chat{Messages: []prep.Message{m}}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), "stands for media") {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
