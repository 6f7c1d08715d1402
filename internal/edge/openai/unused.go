package openai

import (
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// readUnusedField reads the fields which other servers define and this one does not implement. It accepts a
// field if ignoring it cannot change the answer, and else refuses it by name.
func (d *requestDecoder) readUnusedField(key string) (known bool, err error) {
	switch key {
	case "store":
		return true, d.readIgnoredBool()
	case "metadata":
		return true, d.ReadObject(func(string) error { return d.SkipValue() })
	case "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id", "rid", "session_id",
		"guided_decoding_backend":
		_, err := d.ReadString()
		return true, err
	case "verbosity": // a hint for the length of the answer
		return true, d.readVerbosity()
	case "prediction": // a hint for speed
		return true, d.SkipValue()
	case "prompt_cache_options": // hints too: the prefix cache needs none
		return true, d.ReadObject(func(string) error { return d.SkipValue() })
	case "priority", "stream_interval": // stream_interval is the number of tokens per event: here tokens which arrive together share one
		_, err := d.ReadInt()
		return true, err
	case "length_penalty": // of beam search
		var f *float64
		return true, d.ReadNumberInto(&f, -2, 2)
	case "bad_words", "logits_processors", "documents", "bad_words_token_ids":
		return true, d.requireEmptyArray(notSupported)
	case "modalities":
		return true, d.readModalities()
	case "echo", "use_beam_search", "return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "no_stop_trim":
		return true, d.requireBool(false)
	case "detokenize", "spaces_between_special_tokens", "separate_reasoning", "stream_reasoning":
		return true, d.requireBool(true)
	case "add_special_tokens":
		return true, d.requireBool(d.req.Endpoint == api.Completion)
	case "chat_template":
		return true, d.requireString("")
	case "kv_transfer_params":
		return true, d.requireEmptyObject()
	case "audio", "web_search_options", "moderation", "prompt_logprobs",
		"truncate_prompt_tokens", "allowed_token_ids",
		"guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern":
		return true, d.refuseUnsupported()
	}
	return false, nil
}

// Reasons for refused fields. OpenAI's older fields for tools are refused, because clients which use them
// expect another form of tool calls in the answer.
const (
	notSupported  = "is not supported by this server: leave it out"
	useTools      = "is not supported by this server: use 'tools'"
	useToolCalls  = "is not supported by this server: use 'tool_calls'"
	useToolChoice = "is not supported by this server: use 'tool_choice'"
)

// refuseUnsupported refuses the value being read: ignoring it would change the answer. The status is 400 and
// not 501, which clients would treat as a server error and retry.
func (d *requestDecoder) refuseUnsupported() error {
	return d.InvalidError(notSupported)
}

// readIgnoredBool reads a boolean which has no effect.
func (d *requestDecoder) readIgnoredBool() error {
	_, err := d.ReadBool()
	return err
}

// requireBool reads a boolean which must equal ok.
func (d *requestDecoder) requireBool(ok bool) error {
	b, err := d.ReadBool()
	if err == nil && b != ok {
		return d.refuseUnsupported()
	}
	return err
}

// requireString reads a string which must equal ok, the value for the only supported behavior.
func (d *requestDecoder) requireString(ok string) error {
	s, err := d.ReadString()
	if err == nil && s != ok {
		return d.refuseUnsupported()
	}
	return err
}

// readVerbosity reads the requested length of the answer.
func (d *requestDecoder) readVerbosity() error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	switch s {
	case "low", "medium", "high":
		return nil
	}
	return d.InvalidError("must be one of low, medium and high")
}

// requireEmptyObject reads an object which must be empty.
func (d *requestDecoder) requireEmptyObject() error {
	return d.ReadObject(func(string) error { return d.ParentInvalidError(notSupported) })
}

// requireNoToolChoice reads a value which must be "none" or "auto", the values without effect if there are no
// tools.
func (d *requestDecoder) requireNoToolChoice(why string) error {
	if d.Kind() != strictjson.StringKind {
		return d.InvalidError("%s", why)
	}
	s, err := d.ReadString()
	if err == nil && s != "none" && s != "auto" {
		return d.InvalidError("%s", why)
	}
	return err
}

func (d *requestDecoder) requireEmptyArray(why string) error {
	return d.ReadArray("an array", func(int) error { return d.ParentInvalidError("%s", why) })
}

func (d *requestDecoder) readModalities() error {
	return d.ReadArray("an array of strings", func(int) error {
		s, err := d.ReadString()
		if err == nil && s != "text" {
			return d.refuseUnsupported()
		}
		return err
	})
}
