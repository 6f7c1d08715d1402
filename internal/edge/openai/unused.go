package openai

import (
	"strings"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// unused reads the fields that the field's servers define and this one does not
// act on: accepted where ignoring them cannot change the answer, refused by name
// where it would.
func (d *decoder) unused(key string) (known bool, err error) {
	switch key {
	case "user":
		return true, d.user()
	case "store", "parallel_tool_calls", "include_reasoning":
		return true, d.either()
	case "metadata":
		return true, d.Object(func(string) error { return d.Skip() })
	case "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id":
		_, err := d.String()
		return true, err
	case "prediction": // a hint for speed
		return true, d.Skip()
	case "prompt_cache_options": // hints too: what can be reused is found by itself
		return true, d.Object(func(string) error { return d.Skip() })
	case "priority":
		_, err := d.Int()
		return true, err
	case "length_penalty": // of beam search
		var f *float64
		return true, d.Number(&f, -2, 2)
	case "tools", "functions", "bad_words", "logits_processors", "documents",
		"bad_words_token_ids":
		return true, d.emptyArray()
	case "tool_choice", "function_call":
		return true, d.toolChoice()
	case "response_format":
		return true, d.responseFormat()
	case "modalities":
		return true, d.modalities()
	case "echo", "use_beam_search", "return_tokens_as_token_ids", "return_token_ids":
		return true, d.only(false)
	case "detokenize", "spaces_between_special_tokens":
		return true, d.only(true)
	case "add_special_tokens":
		return true, d.only(d.req.Endpoint == api.Completion)
	case "reasoning_effort":
		return true, d.usual("none")
	case "verbosity":
		return true, d.usual("medium")
	case "audio", "web_search_options", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "allowed_token_ids", "chat_template", "chat_template_kwargs",
		"mm_processor_kwargs", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
		"guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern",
		"kv_transfer_params":
		return true, d.notSupported()
	}
	return false, nil
}

const notSupported = "is not supported by this server: leave it out"

// notSupported refuses the value being read: ignoring it would change the answer.
// The status is 400 and not 501, which clients take for a server's trouble and
// try again.
func (d *decoder) notSupported() error {
	return d.Refuse(notSupported)
}

// either reads a boolean that does not matter.
func (d *decoder) either() error {
	_, err := d.Bool()
	return err
}

// only reads a boolean that must be ok.
func (d *decoder) only(ok bool) error {
	b, err := d.Bool()
	if err == nil && b != ok {
		return d.notSupported()
	}
	return err
}

// usual reads a string that must be the one that asks for what happens anyway.
func (d *decoder) usual(ok string) error {
	s, err := d.String()
	if err == nil && s != ok {
		return d.notSupported()
	}
	return err
}

func (d *decoder) emptyArray() error {
	return d.Array("an array", func(int) error {
		return d.RefuseParent(notSupported)
	})
}

func (d *decoder) user() error {
	s, err := d.String()
	if err == nil && strings.TrimSpace(s) == "" {
		return d.Refuse("must not be blank: leave it out for none")
	}
	return err
}

// toolChoice accepts what means no tool where there are none.
func (d *decoder) toolChoice() error {
	if d.Kind() != strictjson.StringKind {
		return d.notSupported()
	}
	s, err := d.String()
	if err == nil && s != "none" && s != "auto" {
		return d.notSupported()
	}
	return err
}

func (d *decoder) responseFormat() error {
	var kind string
	err := d.Object(func(key string) error {
		if key == "type" {
			return d.Text(&kind)
		}
		return d.Skip()
	})
	switch {
	case err != nil:
		return err
	case kind == "text":
		return nil
	case kind == "json_object" || kind == "json_schema":
		return d.notSupported()
	}
	return d.Refuse("needs a 'type' of text, json_object or json_schema")
}

func (d *decoder) modalities() error {
	return d.Array("an array of strings", func(int) error {
		s, err := d.String()
		if err == nil && s != "text" {
			return d.notSupported()
		}
		return err
	})
}
