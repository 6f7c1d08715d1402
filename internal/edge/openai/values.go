package openai

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxChoices = 128
	maxStops   = 32
	maxSalt    = 1024 // bytes
)

// repetition reads repetition_penalty: a factor in (0, 2].
func (d *decoder) repetition() error {
	if err := d.Number(&d.req.RepetitionPenalty, 0, 2); err != nil {
		return err
	}
	if *d.req.RepetitionPenalty == 0 {
		return d.Refuse("must be greater than 0 and at most 2, not 0")
	}
	return nil
}

// token reads a token id.
func (d *decoder) token() (kv.Token, error) {
	n, err := d.Int()
	if err != nil {
		return 0, err
	}
	if n < 0 || n > math.MaxUint32 {
		return 0, d.Refuse("must be a token id, not %d", n)
	}
	return kv.Token(n), nil
}

// tokens reads an array of token ids; it may be empty, but is not nil then.
func (d *decoder) tokens(dst *[]kv.Token) error {
	*dst = []kv.Token{}
	return d.Array("an array of token ids", func(int) error {
		t, err := d.token()
		*dst = append(*dst, t)
		return err
	})
}

// stop reads one stop string, several, or an array of stop token ids.
func (d *decoder) stop() error {
	switch d.Kind() {
	case strictjson.StringKind:
		return d.stopString()
	case strictjson.ArrayKind:
	default:
		return d.Expected("a string or an array of strings")
	}
	n := 0
	err := d.Array("a string or an array of strings", func(i int) error {
		if n = i + 1; n > maxStops {
			return d.RefuseParent("must have at most %d entries", maxStops)
		}
		if d.Kind() == strictjson.NumberKind {
			t, err := d.token()
			d.req.StopTokens = append(d.req.StopTokens, t)
			return err
		}
		return d.stopString()
	})
	if err == nil && n == 0 {
		return d.Refuse("must not be empty: leave it out for none")
	}
	return err
}

func (d *decoder) stopString() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	if s == "" {
		return d.Refuse("must not be an empty string")
	}
	d.req.Stop = append(d.req.Stop, s)
	return nil
}

// bias reads logit_bias: an object from token ids to numbers.
func (d *decoder) bias() error {
	err := d.Object(func(key string) error {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return d.Refuse("must have a token id as its key")
		}
		var b *float64
		if err := d.Number(&b, -100, 100); err != nil {
			return err
		}
		d.req.Bias = append(d.req.Bias, api.TokenBias{Token: kv.Token(id), Bias: float32(*b)})
		return nil
	})
	slices.SortFunc(d.req.Bias, func(a, b api.TokenBias) int {
		return int(int64(a.Token) - int64(b.Token))
	})
	for i := 1; i < len(d.req.Bias) && err == nil; i++ {
		if d.req.Bias[i].Token == d.req.Bias[i-1].Token { // "7" and "007"
			return d.Refuse("names token %d twice", d.req.Bias[i].Token)
		}
	}
	return err
}

func (d *decoder) salt(dst *string) error {
	s, err := d.String()
	if err != nil {
		return err
	}
	if s == "" || len(s) > maxSalt {
		return d.Refuse("must have between 1 and %d bytes, not %d", maxSalt, len(s))
	}
	*dst = s
	return nil
}

// prompts reads a string, an array of strings, an array of token ids, or an
// array of arrays of token ids: at most so many prompts.
func (d *decoder) prompts(most int) error {
	const want = "a string, an array of strings, an array of token ids or an array of such arrays"
	q := d.req
	if d.Kind() == strictjson.StringKind {
		q.Prompts = make([]api.Prompt, 1)
		return d.Text(&q.Prompts[0].Text)
	}
	var all strictjson.Kind // of the first element, and so of all
	err := d.Array(want, func(i int) error {
		k := d.Kind()
		if i == 0 {
			all = k
		}
		if k != all {
			return d.Expected(string(all) + " like the first element")
		}
		if k != strictjson.NumberKind && i >= most {
			return d.RefuseParent("must have at most %d prompts", most)
		}
		switch k {
		case strictjson.NumberKind:
			t, err := d.token()
			if i == 0 {
				q.Prompts = make([]api.Prompt, 1)
			}
			q.Prompts[0].Tokens = append(q.Prompts[0].Tokens, t)
			return err
		case strictjson.StringKind:
			q.Prompts = append(q.Prompts, api.Prompt{})
			return d.Text(&q.Prompts[i].Text)
		case strictjson.ArrayKind:
			q.Prompts = append(q.Prompts, api.Prompt{})
			return d.tokens(&q.Prompts[i].Tokens)
		}
		return d.Expected("a string, a token id or an array of token ids")
	})
	if err == nil && len(q.Prompts) == 0 {
		return d.Refuse("must not be an empty array")
	}
	return err
}

// message reads one element of messages.
func (d *decoder) message(int) error {
	var m api.Message
	var role, content bool
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "role":
			role = true
			return d.role(&m.Role)
		case "content":
			content = true
			return d.content(&m.Content)
		case "name":
			return d.Text(&m.Name)
		case "tool_calls":
			return d.emptyArray()
		case "function_call", "audio":
			return d.notSupported()
		case "tool_call_id", "refusal", "annotations", "reasoning", "reasoning_content":
			// A tool's answer is told by its role; what a client echoes of an
			// earlier answer beside its content is not part of the prompt.
			return d.Skip()
		}
		return d.Unsupported()
	})
	switch {
	case err != nil:
		return err
	case !role:
		return d.Refuse("needs a 'role'")
	case !content:
		return d.Refuse("needs 'content'")
	}
	d.req.Messages = append(d.req.Messages, m)
	return nil
}

func (d *decoder) role(dst *string) error {
	if err := d.Text(dst); err != nil {
		return err
	}
	switch *dst {
	case "system", "developer", "user", "assistant", "tool", "function":
		return nil
	}
	return d.Refuse("must be one of system, developer, user, assistant, tool and function")
}

// content reads a string or an array of text parts.
func (d *decoder) content(dst *string) error {
	const want = "a string or an array of content parts"
	if d.Kind() == strictjson.StringKind {
		return d.Text(dst)
	}
	var text strings.Builder
	err := d.Array(want, func(i int) error {
		if i > 0 {
			text.WriteByte('\n')
		}
		return d.part(&text)
	})
	*dst = text.String()
	return err
}

// part reads one content part. Its type may come after the rest, so that the
// text is judged at the end.
func (d *decoder) part(text *strings.Builder) error {
	var kind, s string
	var given bool
	err := d.Object(func(key string) error {
		switch key {
		case "type":
			return d.Text(&kind)
		case "text":
			given = true
			return d.Text(&s)
		}
		return d.Skip()
	})
	switch {
	case err != nil:
		return err
	case kind == "":
		return d.Refuse("needs a 'type'")
	case kind == "image_url" || kind == "image" || kind == "input_image" || kind == "input_audio" ||
		kind == "audio_url" || kind == "video_url" || kind == "file":
		return d.Refuse("is of type %.100q, which is not supported by this model: send text only", kind)
	case kind != "text":
		return d.Refuse("has an unknown type: the parts supported are of type \"text\"")
	case !given:
		return d.Refuse("needs 'text'")
	}
	text.WriteString(s)
	return nil
}
