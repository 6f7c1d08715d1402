package openai

import (
	"slices"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// Extras reads the fields that chat requests have beside those of the official
// clients, for another form of request that takes them as well: sampling as the
// servers in the field know it, cache_salt and nvext.
type Extras struct{ d decoder }

// NewExtras returns what reads such fields with r into q.
func NewExtras(r *strictjson.Reader, q *api.Request) *Extras {
	return &Extras{decoder{Reader: r, req: q}}
}

// ExtraFields lists the fields that Extras reads.
func ExtraFields() []Field {
	all := append(sharedFields(), unusedFields()...)
	return slices.DeleteFunc(all, func(f Field) bool { return !isExtra(f.Name) })
}

func isExtra(key string) bool {
	switch key {
	case "min_tokens", "min_p", "top_k", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "logit_bias",
		"stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "cache_salt", "nvext",
		"priority", "request_id":
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
	if known, err = x.d.common(key); known || err != nil {
		return known, err
	}
	return x.d.unused(key)
}

// Check judges the fields together once all of the request has been read.
func (x *Extras) Check() error { return x.d.checkExt() }

// checkExt judges the fields that nvext has under other names too.
func (d *decoder) checkExt() error {
	q := d.req
	if d.greed {
		if q.Temperature != nil && *q.Temperature != 0 {
			return fault.Param("nvext.greed_sampling", "'nvext.greed_sampling' contradicts 'temperature' (%v): give one of them", *q.Temperature)
		}
		q.Temperature = new(float64)
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
