package openai

import (
	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// Extras decodes the fields which chat requests have in addition to the official ones, for another API which
// accepts them too: sampling fields of other servers, chat template variables, cache_salt and nvext. The
// decoder of that API embeds it.
type Extras struct{ requestDecoder }

// ExtraSource is a decoder which embeds Extras.
type ExtraSource interface {
	api.BodySource
	chatDecoder() *requestDecoder
}

func (x *Extras) chatDecoder() *requestDecoder { return &x.requestDecoder }

// ExtraRows returns the rows of these fields.
func ExtraRows[D ExtraSource]() []api.FieldRow[D] {
	return api.BorrowRows(chatTable, D.chatDecoder, "min_tokens", "min_p", "top_k", "presence_penalty", "frequency_penalty",
		"repetition_penalty", "seed", "logit_bias", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
		"skip_special_tokens", "cache_salt", "nvext", "chat_template_kwargs", "include_reasoning", "priority", "request_id")
}

// ReadEffort reads the reasoning effort, which is reasoning_effort in chat requests.
func (x *Extras) ReadEffort() (string, error) {
	err := x.readReasoningEffort()
	return x.effort, err
}

// CheckExtras validates the fields together after the whole request has been read.
func (x *Extras) CheckExtras() error {
	x.setTemplateArgs()
	return x.checkExt()
}

// checkExt validates and merges the fields which nvext has under other names too.
func (d *requestDecoder) checkExt() error {
	q := d.Req
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
