package openai

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// readUnusedField reads the fields which other servers define and this one does not implement. It accepts a
// field if ignoring it cannot change the answer, and else refuses it by name.
func (d *decoder) unused(key string) (known bool, err error) {
	switch key {
	case "store":
		return true, d.either()
	case "metadata":
		return true, d.Object(func(string) error { return d.Skip() })
	case "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id", "rid", "session_id",
		"guided_decoding_backend":
		_, err := d.String()
		return true, err
	case "verbosity": // a hint for the length of the answer
		return true, d.verbosity()
	case "prediction": // a hint for speed
		return true, d.Skip()
	case "prompt_cache_options": // hints too: the prefix cache needs none
		return true, d.Object(func(string) error { return d.Skip() })
	case "priority", "stream_interval": // stream_interval is the number of tokens per event: here tokens which arrive together share one
		_, err := d.Int()
		return true, err
	case "length_penalty": // of beam search
		var f *float64
		return true, d.Number(&f, -2, 2)
	case "bad_words", "logits_processors", "documents", "bad_words_token_ids":
		return true, d.noElements(notSupported)
	case "modalities":
		return true, d.modalities()
	case "echo", "use_beam_search", "return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "no_stop_trim":
		return true, d.only(false)
	case "detokenize", "spaces_between_special_tokens", "separate_reasoning", "stream_reasoning":
		return true, d.only(true)
	case "add_special_tokens":
		return true, d.only(d.req.Endpoint == api.Completion)
	case "chat_template":
		return true, d.usual("")
	case "kv_transfer_params":
		return true, d.noMembers()
	case "audio", "web_search_options", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "allowed_token_ids",
		"guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern":
		return true, d.notSupported()
	}
	return false, nil
}

// Reasons for refused fields. OpenAI's older fields for tools are refused, because clients which use them
// expect another form of tool calls in the answer.
const (
	notSupported  = "is not supported by this server: leave it out"
	nowTools      = "is not supported by this server: use 'tools'"
	nowToolCalls  = "is not supported by this server: use 'tool_calls'"
	nowToolChoice = "is not supported by this server: use 'tool_choice'"
)

// refuseUnsupported refuses the value being read: ignoring it would change the answer. The status is 400 and
// not 501, which clients would treat as a server error and retry.
func (d *decoder) notSupported() error {
	return d.Refuse(notSupported)
}

// readIgnoredBool reads a boolean which has no effect.
func (d *decoder) either() error {
	_, err := d.Bool()
	return err
}

// requireBool reads a boolean which must equal ok.
func (d *decoder) only(ok bool) error {
	b, err := d.Bool()
	if err == nil && b != ok {
		return d.notSupported()
	}
	return err
}

// requireString reads a string which must equal ok, the value for the only supported behavior.
func (d *decoder) usual(ok string) error {
	s, err := d.String()
	if err == nil && s != ok {
		return d.notSupported()
	}
	return err
}

// readVerbosity reads the requested length of the answer.
func (d *decoder) verbosity() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	switch s {
	case "low", "medium", "high":
		return nil
	}
	return d.Refuse("must be one of low, medium and high")
}

// requireEmptyObject reads an object which must be empty.
func (d *decoder) noMembers() error {
	return d.Object(func(string) error { return d.RefuseParent(notSupported) })
}

// requireNoToolChoice reads a value which must be "none" or "auto", the values without effect if there are no
// tools.
func (d *decoder) noChoice(why string) error {
	if d.Kind() != strictjson.StringKind {
		return d.Refuse("%s", why)
	}
	s, err := d.String()
	if err == nil && s != "none" && s != "auto" {
		return d.Refuse("%s", why)
	}
	return err
}

func (d *decoder) noElements(why string) error {
	return d.Array("an array", func(int) error { return d.RefuseParent("%s", why) })
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
