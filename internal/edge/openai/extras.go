package openai

import (
	"slices"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// Extras reads the fields that chat requests have beside those of the official
// clients, for another form of request that takes them as well: sampling as the
// servers in the field know it, variables of the chat template, cache_salt and
// nvext.
type Extras struct{ d decoder }

// NewExtras returns what reads such fields with r into q.
func NewExtras(r *strictjson.Reader, q *api.Request) *Extras {
	return &Extras{decoder{Reader: r, req: q}}
}

// ExtraFields lists the fields that Extras reads.
func ExtraFields() []api.Field {
	all := append(append(chatFields(), sharedFields()...), unusedFields()...)
	return slices.DeleteFunc(all, func(f api.Field) bool { return !isExtra(f.Name) })
}

func isExtra(key string) bool {
	switch key {
	case "min_tokens", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias",
		"stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "cache_salt", "nvext",
		"chat_template_kwargs", "include_reasoning", "priority", "request_id":
		return true
	}
	return false
}

// Field reads the value of a top-level key, which is not null, if the key is one
// of ExtraFields.
func (x *Extras) Field(key string) (known bool, err error) {
	if !isExtra(key) {
		return false, nil
	}
	for _, read := range []func(string) (bool, error){x.d.common, x.d.chat, x.d.unused} {
		if known, err = read(key); known || err != nil {
			break
		}
	}
	return known, err
}

// Effort reads how much the model should think, which chat requests have as
// reasoning_effort.
func (x *Extras) Effort() (string, error) {
	err := x.d.reasoningEffort()
	return x.d.effort, err
}

// Check judges the fields together once all of the request has been read.
func (x *Extras) Check() error {
	x.d.setTemplateArgs()
	return x.d.checkExt()
}

// checkExt judges the fields that nvext has under other names too.
func (d *decoder) checkExt() error {
	q := d.req
	if d.greed {
		if q.Temperature != nil && *q.Temperature != 0 {
			return fault.Param("nvext.greed_sampling", "'nvext.greed_sampling' contradicts 'temperature' (%v): give one of them", *q.Temperature)
		}
		q.Temperature = new(float64)
	}
	if !d.prioritized {
		q.Ext.Priority.Jump = d.sensitivity
	}
	switch {
	case d.extSalt == "":
	case q.CacheSalt == "":
		q.CacheSalt = d.extSalt
	case q.CacheSalt != d.extSalt:
		return fault.Param("nvext.cache_salt", "'nvext.cache_salt' and 'cache_salt' differ: give one of them")
	}
	return nil
}
