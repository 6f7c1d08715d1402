package checkpoint

import (
	"fmt"

	"penstock/core/kv"
)

const (
	configFile = "config.json"
	// maxConfig bounds the JSON files next to the weights.
	maxConfig = 4 << 20
)

// Config holds the fields of config.json that define what a decoder computes, under the file's names unless a
// comment says otherwise. Older and newer files spell some of them differently; both spellings are read. A
// field missing in the file is zero here: the model's builder knows which ones it needs. A field in an
// unknown form is an error, unlike in Facts read alone.
type Config struct {
	Facts
	Architectures []string
	HiddenSize    int
	Layers        int // num_hidden_layers
	Heads         int // num_attention_heads
	KVHeads       int // num_key_value_heads
	HeadDim       int // head_dim
	Intermediate  int // intermediate_size
	RMSEps        float64
	Activation    string // hidden_act
	AttentionBias bool
	MLPBias       bool
	TieEmbeddings bool // tie_word_embeddings
	Rope          Rope
	// SlidingWindow is in tokens; 0 if there is none or use_sliding_window is
	// false. LayerTypes has one name for each layer, or is nil.
	SlidingWindow int
	LayerTypes    []string
	// Quantization is the quant_method of quantization_config: "unnamed" if that has none, "" if the weights
	// are not quantized.
	Quantization string
	// Vision is vision_config; nil if there is none.
	Vision *Vision
	// ImageToken and VideoToken are the placeholder tokens of pictures and videos (image_token_id,
	// video_token_id); nil if there is none.
	ImageToken, VideoToken *kv.Token
}

// Rope holds rope_theta and rope_scaling, or rope_parameters of newer files.
type Rope struct {
	Theta                float64
	Type                 string // rope_type or type; "" if the file has none
	Factor               float64
	LowFreqFactor        float64
	HighFreqFactor       float64
	OriginalMaxPositions int     // original_max_position_embeddings
	Partial              float64 // partial_rotary_factor; 0 if the file has none
	Sections             []int   // mrope_section: how many pairs rotate by time, height and width; nil if the file has none
}

// ReadConfig reads config.json in dir.
func ReadConfig(dir string) (Config, error) {
	data, err := readSmall(dir, configFile, maxConfig)
	if err != nil {
		return Config{}, err
	}
	cfg, err := decodeConfig(data)
	if err != nil {
		return Config{}, fmt.Errorf("checkpoint %s: %w", configFile, err)
	}
	return cfg, nil
}

func decodeConfig(data []byte) (Config, error) {
	obj, err := parseObject(data)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if c.Facts, err = obj.readFacts(); err != nil {
		return Config{}, err
	}
	if err := c.decodeMedia(obj); err != nil {
		return Config{}, err
	}
	if obj, err = textConfig(obj); err != nil {
		return Config{}, err
	}
	err = obj.decodeFields(map[string]any{
		"architectures":         &c.Architectures,
		"hidden_size":           &c.HiddenSize,
		"num_hidden_layers":     &c.Layers,
		"num_attention_heads":   &c.Heads,
		"num_key_value_heads":   &c.KVHeads,
		"head_dim":              &c.HeadDim,
		"intermediate_size":     &c.Intermediate,
		"rms_norm_eps":          &c.RMSEps,
		"hidden_act":            &c.Activation,
		"attention_bias":        &c.AttentionBias,
		"mlp_bias":              &c.MLPBias,
		"tie_word_embeddings":   &c.TieEmbeddings,
		"sliding_window":        &c.SlidingWindow,
		"layer_types":           &c.LayerTypes,
		"rope_theta":            &c.Rope.Theta,
		"partial_rotary_factor": &c.Rope.Partial,
	})
	if err != nil {
		return Config{}, err
	}
	useWindow := true
	if err := obj.get("use_sliding_window", &useWindow); err != nil {
		return Config{}, err
	}
	if !useWindow {
		c.SlidingWindow = 0
	}
	if c.Quantization, err = decodeQuantization(obj); err != nil {
		return Config{}, err
	}
	return c, decodeRope(&c.Rope, obj)
}

// decodeRope reads either of the two spellings. It refuses an unknown key, which could change the positions
// of every token.
func decodeRope(r *Rope, obj jsonObject) error {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if !obj.has(key) {
			continue
		}
		rope, err := parseObject(obj[key])
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		known := map[string]any{
			"rope_theta":                       &r.Theta,
			"type":                             &r.Type,
			"rope_type":                        &r.Type,
			"factor":                           &r.Factor,
			"low_freq_factor":                  &r.LowFreqFactor,
			"high_freq_factor":                 &r.HighFreqFactor,
			"original_max_position_embeddings": &r.OriginalMaxPositions,
			"partial_rotary_factor":            &r.Partial,
			"mrope_section":                    &r.Sections,
		}
		if err := rope.decodeFields(known); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if r.Type != "" && !isKnownRope(r.Type) {
			continue // its keys are specific to it; the type is refused by name
		}
		for _, field := range sortedKeys(rope) {
			if _, ok := known[field]; !ok {
				return fmt.Errorf("%s: unknown key %.100q", key, field)
			}
		}
	}
	return nil
}

// isKnownRope reports whether all keys of a type of scaling are fields of Rope.
func isKnownRope(typ string) bool {
	return typ == "default" || typ == "linear" || typ == "llama3" || typ == "mrope"
}

func decodeQuantization(obj jsonObject) (string, error) {
	const key = "quantization_config"
	if !obj.has(key) {
		return "", nil
	}
	quant, err := parseObject(obj[key])
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	method := "unnamed"
	if err := quant.get("quant_method", &method); err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return method, nil
}
