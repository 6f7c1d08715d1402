package openai

import (
	"math"
	"slices"
	"strconv"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

const (
	maxChoices = 128
	maxStops   = 32
)

// readAddGeneration reads add_generation_prompt.
func (d *requestDecoder) readAddGeneration() error {
	err := d.ReadBoolInto(&d.Req.AddGenerationPrompt)
	d.addGeneration = d.Req.AddGenerationPrompt
	return err
}

// readProcessorArgs reads mm_processor_kwargs.
func (d *requestDecoder) readProcessorArgs() error {
	return d.ReadObject(func(string) error {
		d.Req.ProcessorArgs = true
		return d.SkipValue()
	})
}

// readStreamOptions reads stream_options.
func (d *requestDecoder) readStreamOptions() error {
	d.streamOptions = true
	return streamOptionTable.ReadObject(d)
}

var streamOptionTable = api.NewTable([]fieldRow{
	{Name: "include_usage", Value: api.Bool(func(q *api.Request) *bool { return &q.IncludeUsage })},
	{Name: "include_obfuscation", Treatment: api.Accepted, Value: api.AnyBool},
	{Name: "continuous_usage_stats", Value: api.Bool(func(q *api.Request) *bool { return &q.ContinuousUsage })},
})

// readSeed reads seed.
func (d *requestDecoder) readSeed() error {
	n, err := d.ReadInt()
	seed := uint64(n)
	d.Req.Seed = &seed
	return err
}

// readModalities reads modalities. Only text is supported.
func (d *requestDecoder) readModalities() error {
	return d.ReadArray("an array of strings", func(int) error { return d.RequireString("text") })
}

// requireNoToolChoice reads a value which must be "none" or "auto", the values without effect if there are no
// tools; why is the reason for refusing another.
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

// requireDefaultToolChoice is requireNoToolChoice for requests which cannot have tools.
func (d *requestDecoder) requireDefaultToolChoice() error {
	return d.requireNoToolChoice(api.NotSupported)
}

// readRepetitionPenalty reads repetition_penalty: a factor in (0, 2].
func (d *requestDecoder) readRepetitionPenalty() error {
	if err := d.ReadNumberInto(&d.Req.RepetitionPenalty, 0, 2); err != nil {
		return err
	}
	if *d.Req.RepetitionPenalty == 0 {
		return d.InvalidError("must be greater than 0 and at most 2, not 0")
	}
	return nil
}

// appendDoubling appends v to a list which clients can make long. It doubles the capacity, where append would
// copy the list four times as often.
func appendDoubling[T any](list []T, v T) []T {
	if len(list) == cap(list) {
		grown := make([]T, len(list), max(8, 2*len(list)))
		copy(grown, list)
		list = grown
	}
	return append(list, v)
}

// readToken reads a token id.
func (d *requestDecoder) readToken() (kv.Token, error) {
	n, err := d.ReadInt()
	if err != nil {
		return 0, err
	}
	if n < 0 || n > math.MaxUint32 {
		return 0, d.InvalidError("must be a token id, not %d", n)
	}
	return kv.Token(n), nil
}

// readTokens reads an array of token ids. The result is not nil, even if it is empty.
func (d *requestDecoder) readTokens(dst *[]kv.Token) error {
	*dst = []kv.Token{}
	return d.ReadArray("an array of token ids", func(int) error {
		t, err := d.readToken()
		*dst = appendDoubling(*dst, t)
		return err
	})
}

// readStopTokens reads stop_token_ids, to which "stop" may add.
func (d *requestDecoder) readStopTokens() error {
	var tokens []kv.Token
	err := d.readTokens(&tokens)
	if len(d.Req.StopTokens) > 0 { // the tokens of "stop"
		tokens = slices.Concat(d.Req.StopTokens, tokens)
	}
	if len(tokens) > 0 {
		d.Req.StopTokens = tokens
	}
	return err
}

// readStop reads a stop string, or an array of stop strings and stop token ids.
func (d *requestDecoder) readStop() error {
	switch d.Kind() {
	case strictjson.StringKind:
		return d.readStopString()
	case strictjson.ArrayKind:
	default:
		return d.WrongTypeError("a string or an array of strings")
	}
	return d.ReadArray("a string or an array of strings", func(i int) error {
		if i >= maxStops {
			return d.ParentInvalidError("must have at most %d entries", maxStops)
		}
		if d.Kind() == strictjson.NumberKind {
			t, err := d.readToken()
			d.Req.StopTokens = append(d.Req.StopTokens, t)
			return err
		}
		return d.readStopString()
	})
}

func (d *requestDecoder) readStopString() error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	if s == "" {
		return d.InvalidError("must not be an empty string")
	}
	d.Req.Stop = append(d.Req.Stop, s)
	return nil
}

// readLogitBias reads logit_bias: an object from token ids to numbers.
func (d *requestDecoder) readLogitBias() error {
	err := d.ReadObject(func(key string) error {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return d.InvalidError("must have a token id as its key")
		}
		var b *float64
		if err := d.ReadNumberInto(&b, -100, 100); err != nil {
			return err
		}
		d.Req.Bias = append(d.Req.Bias, api.TokenBias{Token: kv.Token(id), Bias: float32(*b)})
		return nil
	})
	slices.SortFunc(d.Req.Bias, func(a, b api.TokenBias) int {
		return int(int64(a.Token) - int64(b.Token))
	})
	for i := 1; i < len(d.Req.Bias) && err == nil; i++ {
		if d.Req.Bias[i].Token == d.Req.Bias[i-1].Token { // "7" and "007"
			return d.InvalidError("names token %d twice", d.Req.Bias[i].Token)
		}
	}
	return err
}

// readPrompts reads at most most prompts: a string, an array of strings, an array of token ids, or an array
// of arrays of token ids.
func (d *requestDecoder) readPrompts(most int) error {
	const want = "a string, an array of strings, an array of token ids or an array of such arrays"
	q := d.Req
	if d.Kind() == strictjson.StringKind {
		q.Prompts = make([]api.Prompt, 1)
		return d.ReadStringInto(&q.Prompts[0].Text)
	}
	var all strictjson.Kind // of the first element, and so of all
	err := d.ReadArray(want, func(i int) error {
		k := d.Kind()
		if i == 0 {
			all = k
		}
		if k != all {
			return d.WrongTypeError(string(all) + " like the first element")
		}
		if k != strictjson.NumberKind && i >= most {
			return d.ParentInvalidError("must have at most %d prompts", most)
		}
		switch k {
		case strictjson.NumberKind:
			t, err := d.readToken()
			if i == 0 {
				q.Prompts = make([]api.Prompt, 1)
			}
			q.Prompts[0].Tokens = appendDoubling(q.Prompts[0].Tokens, t)
			return err
		case strictjson.StringKind:
			q.Prompts = append(q.Prompts, api.Prompt{})
			return d.ReadStringInto(&q.Prompts[i].Text)
		case strictjson.ArrayKind:
			q.Prompts = append(q.Prompts, api.Prompt{})
			return d.readTokens(&q.Prompts[i].Tokens)
		}
		return d.WrongTypeError("a string, a token id or an array of token ids")
	})
	if err == nil && len(q.Prompts) == 0 {
		return d.InvalidError("must not be an empty array")
	}
	return err
}
