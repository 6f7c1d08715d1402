package engines

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"penstock/core/media"
	"penstock/internal/config"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/reload"
)

// ExportBuiltin writes the built-in model to a directory and returns the settings with which it is served from
// there.
func ExportBuiltin(cfg *config.Loaded, dir, family string) (*config.Loaded, error) {
	v, err := builtinVocabulary()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("export-model: %w", err)
	}
	facts := map[string]any{"vocab_size": v.Size, "max_position_embeddings": cmp.Or(cfg.Simulation.ContextLength, longContext), "eos_token_id": v.EOS}
	processor, err := familyFacts(family, facts)
	if err != nil {
		return nil, err
	}
	described, err := json.MarshalIndent(facts, "", "  ")
	if err != nil {
		return nil, err
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	for _, f := range []struct {
		name string
		data []byte
	}{{"tokenizer.json", tokenizer}, {"tokenizer_config.json", tokenizerConfig}, {"config.json", append(described, '\n')}, {"preprocessor_config.json", processor}} {
		if f.data == nil {
			continue
		}
		if err := replaceSharedFile(filepath.Join(dir, f.name), f.data); err != nil {
			return nil, fmt.Errorf("export-model: %w", err)
		}
	}
	own := *cfg
	own.Engine.ModelPath = dir
	if len(own.Engine.ServedModelName) == 0 {
		own.Engine.ServedModelName = []string{cfg.ModelName()}
	}
	return &own, nil
}

// FamilyQwen2VL is the family of an exported model with media.
const FamilyQwen2VL = "qwen2-vl"

// familyFacts adds to a model's facts what makes it a model of the media family, with the built-in model's
// tokens, and returns the settings of its processor; nil for a text-only model.
func familyFacts(family string, facts map[string]any) ([]byte, error) {
	if family != FamilyQwen2VL {
		return nil, nil
	}
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		return nil, err
	}
	image, _ := pipe.Family.Placeholder(media.Image)
	video, _ := pipe.Family.Placeholder(media.Video)
	facts["model_type"], facts["architectures"] = "qwen2_vl", []string{"Qwen2VLForConditionalGeneration"}
	facts["image_token_id"], facts["video_token_id"] = image, video
	facts["vision_config"] = map[string]any{"model_type": "qwen2_vl", "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
	return []byte(`{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":3136,"max_pixels":1003520,"patch_size":14,"merge_size":2,"temporal_patch_size":2}` + "\n"), nil
}

// replaceSharedFile writes a file which several processes read and write concurrently: no reader sees a part
// of it.
func replaceSharedFile(path string, data []byte) error {
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
		return nil
	}
	if err := reload.ReplaceFile(path, data); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}
