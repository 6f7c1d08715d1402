package remote

import (
	"strings"
	"testing"

	"penstock/core/kv"
	"penstock/core/media/family"
	"penstock/internal/engine"
)

// spelling is a vocabulary of a few tokens.
type spelling map[string]kv.Token

func (v spelling) ID(text string) (kv.Token, bool) {
	t, ok := v[text]
	return t, ok
}

// TestUncounted checks the warnings of media that are not counted, with reason and remedy, unless they have
// no consequence.
func TestUncounted(t *testing.T) {
	const why = `it is not known here whether and how models of type "gemma9" show media`
	pictures, err := family.Open(family.CheckpointFiles{
		Config: []byte(`{"model_type":"mistral3","image_token_index":1,"spatial_merge_size":2,"vision_config":{"model_type":"pixtral","patch_size":14}}`), Preprocessor: []byte(`{"size":{"longest_edge":1540}}`),
	}, spelling{"[IMG_BREAK]": 2, "[IMG_END]": 3})
	if err != nil {
		t.Fatal(err)
	}
	text, err := family.Open(family.CheckpointFiles{Config: []byte(`{"model_type":"ultravox","stack_factor":8,"audio_token_index":7}`)}, spelling{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o     OpenConfig
		sees  []string
		wants string
	}{
		"unknown":             {OpenConfig{NoFamilyReason: why}, []string{"image", "video"}, "requests with image, video are routed by their text alone: " + why},
		"long":                {OpenConfig{NoFamilyReason: strings.Repeat("é", 900)}, []string{"image"}, "éé"},
		"in part":             {OpenConfig{Family: pictures}, []string{"image", "video"}, "requests with video are routed by their text alone: models of the family pixtral take none"},
		"counted":             {OpenConfig{Family: pictures}, []string{"image"}, ""},
		"written as text":     {OpenConfig{Family: text}, []string{"audio"}, "is text and no token"},
		"a model of texts":    {OpenConfig{NoFamilyReason: why}, nil, ""},
		"prompts elsewhere":   {OpenConfig{NoFamilyReason: why, EnginePrompts: true}, []string{"image"}, ""},
		"tokenizer elsewhere": {OpenConfig{NoFamilyReason: why, Tokenizer: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}}, []string{"image"}, ""},
		"not to be told":      {OpenConfig{NoFamilyReason: why, MediaKeys: MediaKeysOff}, []string{"image"}, ""},
	} {
		got := c.o.UncountedMedia(&engine.Card{Media: c.sees}, UncountedRemedy)
		if c.wants == "" {
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Code != engine.WarnMediaUncounted || !strings.Contains(got[0].Detail, c.wants) || !strings.Contains(got[0].Remedy, "--preprocess engine") || len(got[0].Detail)+len(got[0].Remedy) > 400 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
