package family

import (
	"strings"
	"testing"

	"penstock/core/media"
)

// TestProcessorArguments: the arguments of an engine's processor override the checkpoint's files.
func TestProcessorArguments(t *testing.T) {
	vocab := spelling{"<|image_pad|>": 300, "<|video_pad|>": 301, "<|vision_start|>": 302, "<|vision_end|>": 303}
	qwen2 := CheckpointFiles{Config: []byte(`{"model_type":"qwen2_vl"}`), Preprocessor: []byte(`{"min_pixels":3136,"max_pixels":12845056}`)}
	sized := CheckpointFiles{Config: qwen2.Config, Preprocessor: []byte(`{"size":{"shortest_edge":3136,"longest_edge":12845056}}`)}
	bare := CheckpointFiles{Config: qwen2.Config, Preprocessor: []byte(`{}`)}
	qwen3 := CheckpointFiles{
		Config: []byte(`{"model_type":"qwen3_vl"}`), Preprocessor: []byte(`{"size":{"shortest_edge":65536,"longest_edge":16777216}}`),
		VideoPreprocessor: []byte(`{"size":{"shortest_edge":4096,"longest_edge":25165824}}`),
	}
	const whole = 36 * 36 // of 1,000 by 1,000 pixels, 28 each way
	for _, c := range []struct {
		files        CheckpointFiles
		args         string
		image, video int // tokens; 0 if the kind is refused
		why          string
	}{
		{qwen2, ``, whole, 2 * whole, ""},
		{qwen2, `{}`, whole, 2 * whole, ""},
		{qwen2, `{"max_pixels":200704}`, 16 * 16, 2 * 16 * 16, ""},
		{qwen2, `{"size":{"longest_edge":200704}}`, 16 * 16, 2 * 16 * 16, ""},
		{sized, `{"max_pixels":200704}`, 16 * 16, 2 * 16 * 16, ""},
		{sized, `{"size":{"longest_edge":200704}}`, 16 * 16, 2 * 16 * 16, ""},
		{qwen2, `{"images_kwargs":{"max_pixels":200704}}`, 16 * 16, 2 * whole, ""},
		{qwen2, `{"max_pixels":200704,"videos_kwargs":{"max_pixels":50176}}`, 16 * 16, 2 * 8 * 8, ""},
		{bare, `{"min_pixels":3136,"max_pixels":200704}`, 16 * 16, 2 * 16 * 16, ""},
		{qwen2, `{"do_normalize":false,"device":"cuda"}`, whole, 2 * whole, ""},
		{bare, ``, 0, 0, "shortest_edge"},
		{qwen2, `{"min_pixel":4}`, 0, 0, "min_pixel of mm-processor-kwargs is not modelled"},
		{qwen2, `{"do_resize":false}`, 0, 0, "do_resize"},
		{qwen2, `{"videos_kwargs":{"some":1}}`, whole, 0, "some of mm-processor-kwargs"},
		{qwen2, `{"audio_kwargs":{"some":1}}`, whole, 2 * whole, ""},
		{qwen2, `[]`, 0, 0, "mm-processor-kwargs is no JSON object"},
		// Four frames of two seconds: 31 by 31 tokens each pair, and 12 of text with two marks.
		{qwen3, ``, 31 * 31, 2 * (31*31 + len("<0.5 seconds>") + 2), ""},
		{qwen3, `{"videos_kwargs":{"num_frames":8}}`, 31 * 31, 0, "num_frames"},
	} {
		f, err := OpenFor(c.files, Serving{ProcessorArgs: c.args}, vocab)
		said := ""
		count := func(k media.Kind, s media.Size) int {
			if f == nil {
				said = err.Error()
				return 0
			}
			l, err := f.Layout(k, s)
			if err != nil {
				said = err.Error()
			}
			return l.CountTokens()
		}
		image := count(media.Image, media.Size{Width: 1000, Height: 1000})
		video := count(media.Video, media.Size{Width: 1000, Height: 1000, Frames: 4, Rate: 2})
		if image != c.image || video != c.video || !strings.Contains(said, c.why) || c.why == "" && said != "" {
			t.Errorf("%s: %d and %d tokens, want %d and %d; %q, want %q", c.args, image, video, c.image, c.video, said, c.why)
		}
	}
}

// TestBuiltinServed: the built-in model takes the same arguments, and the loader of another engine.
func TestBuiltinServed(t *testing.T) {
	vocab := spelling{"<|image|>": 300, "<|video|>": 301, "<|audio|>": 302}
	f, err := OpenBuiltinFor(Serving{Loader: VLLM, ProcessorArgs: `{"max_pixels":50176}`}, vocab)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := f.Layout(media.Image, media.Size{Width: 1000, Height: 1000}); err != nil || l.CountTokens() != 8*8 {
		t.Errorf("%d tokens: %v", l.CountTokens(), err)
	}
	if l, err := f.Layout(media.Video, media.Size{Width: 56, Height: 56, Frames: 40, Sequence: true}); err != nil || l.CountTokens() != 16*4 {
		t.Errorf("%d tokens: %v", l.CountTokens(), err)
	}
	if _, err := OpenBuiltinFor(Serving{ProcessorArgs: `{"some":1}`}, vocab); err == nil {
		t.Error("an argument that no rule knows is taken")
	}
}
