package openai

import (
	"slices"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// Extras reads the fields which chat requests have in addition to the official ones, for another API which
// accepts them too: sampling fields of other servers, chat template variables, cache_salt and nvext.
type Extras struct{ d requestDecoder }

// NewExtras returns a reader of such fields, from r into q.
func NewExtras(r *strictjson.Reader, q *api.Request) *Extras {
	return &Extras{requestDecoder{Reader: r, req: q}}
}

// ExtraFields lists the fields which Extras reads.
func ExtraFields() []api.Field {
	all := append(append(chatFields(), sharedFields()...), unusedFields()...)
	return slices.DeleteFunc(all, func(f api.Field) bool { return !isExtraField(f.Name) })
}

func isExtraField(key string) bool {
	switch key {
	case "min_tokens", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias",
		"stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "cache_salt", "nvext",
		"chat_template_kwargs", "include_reasoning", "priority", "request_id":
		return true
	}
	return false
}

// ReadField reads the value of a top-level key, which is not null, if the key is one of ExtraFields.
func (x *Extras) ReadField(key string) (known bool, err error) {
	if !isExtraField(key) {
		return false, nil
	}
	for _, read := range []func(string) (bool, error){x.d.readCommonField, x.d.readChatField, x.d.readUnusedField} {
		if known, err = read(key); known || err != nil {
			break
		}
	}
	return known, err
}

// ReadEffort reads the reasoning effort, which is reasoning_effort in chat requests.
func (x *Extras) ReadEffort() (string, error) {
	err := x.d.readReasoningEffort()
	return x.d.effort, err
}

// Check validates the fields together after the whole request has been read.
func (x *Extras) Check() error {
	x.d.setTemplateArgs()
	return x.d.checkExt()
}

// checkExt validates and merges the fields which nvext has under other names too.
func (d *requestDecoder) checkExt() error {
	q := d.req
	if d.greedSampling {
		if q.Temperature != nil && *q.Temperature != 0 {
			return fault.InvalidParam("nvext.greed_sampling", "'nvext.greed_sampling' contradicts 'temperature' (%v): give one of them", *q.Temperature)
		}
		q.Temperature = new(float64)
	}
	if !d.hasPriority {
		q.Ext.Priority.Jump = d.sensitivity
	}
	switch {
	case d.extSalt == "":
	case q.CacheSalt == "":
		q.CacheSalt = d.extSalt
	case q.CacheSalt != d.extSalt:
		return fault.InvalidParam("nvext.cache_salt", "'nvext.cache_salt' and 'cache_salt' differ: give one of them")
	}
	return nil
}
