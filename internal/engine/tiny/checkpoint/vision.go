package checkpoint

import (
	"fmt"
	"maps"
)

// Vision holds the fields of vision_config that define what a picture encoder computes, in Qwen2-VL's names.
// A field missing in the file is zero.
type Vision struct {
	Depth      int
	Dim        int     // embed_dim
	Hidden     int     // hidden_size, which is the decoder's
	Heads      int     // num_heads
	MLPRatio   float64 // mlp_ratio
	Channels   int     // in_channels or in_chans
	Patch      int     // patch_size
	Merge      int     // spatial_merge_size
	Temporal   int     // temporal_patch_size
	Activation string  // hidden_act
	Rope       Rope    // rope_parameters
}

// decodeMedia reads a configuration's fields about media.
func (c *Config) decodeMedia(obj jsonObject) error {
	if err := obj.decodeFields(map[string]any{"image_token_id": &c.ImageToken, "video_token_id": &c.VideoToken}); err != nil {
		return err
	}
	const key = "vision_config"
	if !obj.has(key) {
		return nil
	}
	vision, err := parseObject(obj[key])
	if err == nil {
		v := &Vision{}
		c.Vision = v
		err = vision.decodeFields(map[string]any{
			"depth":               &v.Depth,
			"embed_dim":           &v.Dim,
			"hidden_size":         &v.Hidden,
			"num_heads":           &v.Heads,
			"mlp_ratio":           &v.MLPRatio,
			"in_channels":         &v.Channels,
			"in_chans":            &v.Channels,
			"patch_size":          &v.Patch,
			"spatial_merge_size":  &v.Merge,
			"temporal_patch_size": &v.Temporal,
			"hidden_act":          &v.Activation,
		})
		if err == nil && vision.has("rope_parameters") {
			var rope jsonObject
			if rope, err = parseObject(vision["rope_parameters"]); err == nil {
				err = rope.decodeFields(map[string]any{"rope_theta": &v.Rope.Theta, "rope_type": &v.Rope.Type})
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// textConfig returns the object with the decoder's fields: text_config, in newer files of vision models,
// merged with the fields around it; else obj itself.
func textConfig(obj jsonObject) (jsonObject, error) {
	const key = "text_config"
	if !obj.has(key) {
		return obj, nil
	}
	text, err := parseObject(obj[key])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	all := maps.Clone(obj)
	for _, name := range sortedKeys(text) {
		// The outer object names the model's architecture, and either may say that the head is tied.
		if name != "architectures" && (name != "tie_word_embeddings" || !obj.has(name)) {
			all[name] = text[name]
		}
	}
	return all, nil
}
