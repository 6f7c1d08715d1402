package openai

import (
	"math"
	"strings"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
)

const (
	maxAnnotations = 32
	maxAllowed     = 1024
	maxTokenHint   = math.MaxInt32
	// maxPriority is in seconds. Jumping ahead by an hour is enough to pass every waiting request.
	maxPriority       = 3600
	maxSessionTimeout = 86400 // seconds
)

// extTable has the members of nvext.
var extTable = api.NewTable([]fieldRow{
	{Name: "annotations", Read: (*requestDecoder).readAnnotations},
	{Name: "backend_instance_id", Read: (*requestDecoder).readWorker},
	{Name: "decode_worker_id", Read: (*requestDecoder).readWorker},
	{Name: "dp_rank", Read: func(d *requestDecoder) error { return d.readUint32(&d.Req.Ext.Rank) }},
	{Name: "prefill_worker_id", Read: func(d *requestDecoder) (err error) {
		d.Req.Ext.PrefillWorker, err = d.readWorkerID()
		return err
	}},
	{Name: "prefill_dp_rank", Read: func(d *requestDecoder) error { // the worker's rank is the router's choice
		var rank *uint32
		return d.readUint32(&rank)
	}},
	{Name: "token_data", Read: (*requestDecoder).readTokenData},
	{Name: "agent_hints", Read: agentHintTable.ReadObject},
	{Name: "allowed_worker_ids", Read: (*requestDecoder).readAllowedWorkers},
	{Name: "session_control", Read: (*requestDecoder).readSession},
	{Name: "router_config_override", Read: overrideTable.ReadObject},
	{Name: "cache_salt", Read: func(d *requestDecoder) error { return d.ReadSalt(&d.extSalt) }},
	{Name: "extra_fields", Read: (*requestDecoder).readExtraFields},
	{Name: "greed_sampling", Read: (*requestDecoder).readGreedSampling},
	{Name: "media_failure", Value: api.MediaFailure},
	{Name: "use_raw_prompt", Value: api.OnlyFalse},
	{Name: "agent_context", Value: api.AnyObject},                            // for traces
	{Name: "cache_control", Value: api.AnyObject},                            // a hint how long to keep the prompt's blocks
	{Name: "request_timestamp_ms", Value: api.AnyNumber(0, math.MaxFloat64)}, // for the replay of traces
	{Name: "max_thinking_tokens", Value: api.OnlyNull},
})

// readTokenData reads the tokens of the prompt.
func (d *requestDecoder) readTokenData() error {
	x := &d.Req.Ext
	err := d.readTokens(&x.Tokens)
	if err == nil && len(x.Tokens) == 0 {
		return d.InvalidError("must not be empty: leave it out for none")
	}
	return err
}

func (d *requestDecoder) readAnnotations() error {
	x := &d.Req.Ext
	return d.ReadArray("an array of strings", func(i int) error {
		if i >= maxAnnotations {
			return d.ParentInvalidError("must have at most %d entries", maxAnnotations)
		}
		s, err := d.ReadString()
		if err == nil && !x.Annotations.Add(s) {
			err = d.InvalidError("must be one of %s, not %.64q", strings.Join(api.AnnotationNames(), ", "), s)
		}
		return err
	})
}

// readWorker reads the id of the worker which must serve the request, under either of its two keys.
func (d *requestDecoder) readWorker() error {
	id, err := d.readWorkerID()
	if err != nil {
		return err
	}
	if have := d.Req.Ext.Worker; have != 0 && have != id {
		return d.InvalidError("contradicts the other worker id of 'nvext': give one of them")
	}
	d.Req.Ext.Worker = id
	return nil
}

func (d *requestDecoder) readWorkerID() (kv.WorkerID, error) {
	n, err := d.ReadInt()
	if err != nil {
		return 0, err
	}
	if n < 1 || n > int64(kv.MaxWorkerID) {
		return 0, d.InvalidError("must be a worker id between 1 and %d, not %d", kv.MaxWorkerID, n)
	}
	return kv.WorkerID(n), nil
}

var agentHintTable = api.NewTable([]fieldRow{
	{Name: "osl", Value: api.Integer(0, maxTokenHint, func(q *api.Request) *int { return &q.Ext.ExpectedOutput })},
	{Name: "priority", Read: (*requestDecoder).readPriority},
	{Name: "strict_priority", Read: (*requestDecoder).readStrictPriority},
	{Name: "latency_sensitivity", Read: (*requestDecoder).readLatencySensitivity},
	{Name: "speculative_prefill", Value: api.AnyBool},
})

func (d *requestDecoder) readPriority() error {
	seconds := 0
	err := d.ReadIntegerInto(&seconds, math.MinInt32, math.MaxInt32)
	d.Req.Ext.Priority.Jump = time.Duration(min(max(0, seconds), maxPriority)) * time.Second
	d.hasPriority = true
	return err
}

func (d *requestDecoder) readStrictPriority() error {
	strict := 0
	err := d.ReadIntegerInto(&strict, 0, math.MaxUint32)
	d.Req.Ext.Priority.Strict = uint32(strict)
	return err
}

// readLatencySensitivity reads the former name of priority, which is used only if priority is not given.
func (d *requestDecoder) readLatencySensitivity() error {
	var seconds *float64
	if err := d.ReadNumberInto(&seconds, 0, math.MaxInt32); err != nil {
		return err
	}
	d.sensitivity = time.Duration(min(*seconds, maxPriority) * float64(time.Second))
	return nil
}

// readAllowedWorkers reads the ids of the only workers which may serve the request.
func (d *requestDecoder) readAllowedWorkers() error {
	x := &d.Req.Ext
	err := d.ReadArray("an array of worker ids", func(i int) error {
		if i >= maxAllowed {
			return d.ParentInvalidError("must have at most %d entries", maxAllowed)
		}
		id, err := d.readWorkerID()
		x.Allowed = append(x.Allowed, id)
		return err
	})
	if err == nil && len(x.Allowed) == 0 {
		return d.InvalidError("must not be empty: leave it out to allow all")
	}
	return err
}

// readSession reads the session to which the request belongs.
func (d *requestDecoder) readSession() error {
	if err := sessionTable.ReadObject(d); err != nil {
		return err
	}
	if d.Req.Ext.Session.ID == "" {
		return d.InvalidError("needs a session_id")
	}
	return nil
}

var sessionTable = api.NewTable([]fieldRow{
	{Name: "session_id", Read: (*requestDecoder).readSessionID},
	{Name: "action", Read: func(d *requestDecoder) error {
		action, err := d.ReadWord("bind", "open", "close")
		d.Req.Ext.Session.Last = action == "close"
		return err
	}},
	{Name: "timeout", Read: func(d *requestDecoder) error { // the server's own timeout applies
		seconds := 0
		return d.ReadIntegerInto(&seconds, 0, maxSessionTimeout)
	}},
})

func (d *requestDecoder) readSessionID() error {
	id, err := d.ReadString()
	if err == nil && (id == "" || len(id) > route.MaxSessionID) {
		return d.InvalidError("must have between 1 and %d bytes, not %d", route.MaxSessionID, len(id))
	}
	d.Req.Ext.Session.ID = id
	return err
}

// maxTargetMs is an hour: the router refuses more.
const maxTargetMs = 3.6e6

var overrideTable = api.NewTable([]fieldRow{
	{Name: "overlap_score_weight", Value: api.Number(0, 1e6, func(q *api.Request) **float64 { return &q.Ext.Override.OverlapWeight })},
	{Name: "router_temperature", Value: api.Number(0, 1e6, func(q *api.Request) **float64 { return &q.Ext.Override.Temperature })},
	{Name: "router_mode", Read: (*requestDecoder).readRouterMode},
	{Name: "assume_kv_reuse", Read: func(d *requestDecoder) error { return d.readOptionalFlag(&d.Req.Ext.Override.AssumeReuse) }},
	{Name: "track_prefill_tokens", Read: func(d *requestDecoder) error { return d.readOptionalFlag(&d.Req.Ext.Override.TrackPrefill) }},
	{Name: "ttft_target_ms", Value: api.Number(0, maxTargetMs, func(q *api.Request) **float64 { return &q.Ext.Override.TTFTTarget })},
	{Name: "itl_target_ms", Value: api.Number(0, maxTargetMs, func(q *api.Request) **float64 { return &q.Ext.Override.ITLTarget })},
	{Name: "moe_query", Read: (*requestDecoder).readMoEQuery},
	{Name: "disagg_policy", Read: (*requestDecoder).readDisaggPolicy},
	{Name: "max_local_prefill_length", Read: func(d *requestDecoder) error {
		return d.readOptionalInteger(&d.Req.Ext.Override.MaxLocalPrefillLength, disagg.MaxLocalTokens)
	}},
	{Name: "max_prefill_queue_size", Read: func(d *requestDecoder) error {
		return d.readOptionalInteger(&d.Req.Ext.Override.MaxPrefillQueueSize, disagg.MaxQueuedJobs)
	}},
})

// readDisaggPolicy reads how a decode worker decides where the prompt is computed.
func (d *requestDecoder) readDisaggPolicy() error {
	s, err := d.ReadWord(disagg.PolicyNames()...)
	if err == nil {
		d.Req.Ext.Override.DisaggPolicy = &s
	}
	return err
}

// readOptionalInteger reads an integer between 0 and hi whose absence has a meaning.
func (d *requestDecoder) readOptionalInteger(dst **int, hi int64) error {
	*dst = new(int)
	return d.ReadIntegerInto(*dst, 0, hi)
}

// readOptionalFlag reads a boolean whose absence has a meaning.
func (d *requestDecoder) readOptionalFlag(dst **bool) error {
	on, err := d.ReadBool()
	*dst = &on
	return err
}

// readMoEQuery reads the experts which the request is expected to use.
func (d *requestDecoder) readMoEQuery() error {
	m := &route.MoEQuery{}
	d.Req.Ext.Override.MoE = m
	if err := moeTable.ReadObject(d); err != nil {
		return err
	}
	if m.Layer == nil {
		return d.InvalidError("needs a layer_id")
	}
	return nil
}

var moeTable = api.NewTable([]fieldRow{
	{Name: "layer_id", Read: func(d *requestDecoder) error { return d.readUint32(&d.Req.Ext.Override.MoE.Layer) }},
	{Name: "expert_group", Read: func(d *requestDecoder) error { return d.readUint32(&d.Req.Ext.Override.MoE.Group) }},
	{Name: "fallback_to_unlabeled", Read: func(d *requestDecoder) error { return d.readOptionalFlag(&d.Req.Ext.Override.MoE.Fallback) }},
	{Name: "expert_ids", Read: (*requestDecoder).readExperts},
})

func (d *requestDecoder) readExperts() error {
	m := d.Req.Ext.Override.MoE
	return d.ReadArray("an array of expert ids", func(i int) error {
		if i >= route.MaxExperts {
			return d.ParentInvalidError("must have at most %d entries", route.MaxExperts)
		}
		var id *uint32
		if err := d.readUint32(&id); err != nil {
			return err
		}
		m.Experts = append(m.Experts, *id)
		return nil
	})
}

// readUint32 reads an unsigned 32-bit integer.
func (d *requestDecoder) readUint32(dst **uint32) error {
	n := 0
	err := d.ReadIntegerInto(&n, 0, math.MaxUint32)
	*dst = new(uint32(n))
	return err
}

func (d *requestDecoder) readRouterMode() error {
	s, err := d.ReadWord(string(route.KV), string(route.Time), string(route.RoundRobin), string(route.Random), string(route.PowerOfTwo), string(route.LeastLoaded), string(route.Direct))
	if err == nil {
		d.Req.Ext.Override.Mode = new(route.Mode(s))
	}
	return err
}

func (d *requestDecoder) readExtraFields() error {
	return d.ReadArray("an array of strings", func(int) error {
		s, err := d.ReadString()
		switch {
		case err != nil:
			return err
		case s == "worker_id":
			d.Req.Ext.WorkerFields = true
			return nil
		case s == "timing" || s == "routed_experts" || s == "engine_data" || s == "stop_reason":
			return d.RefuseUnsupported()
		}
		return d.InvalidError("must be the name of an extra field: worker_id")
	})
}

// readGreedSampling reads greed_sampling, which means temperature 0.
func (d *requestDecoder) readGreedSampling() error {
	on, err := d.ReadBool()
	if on {
		d.greedSampling = true
	}
	return err
}

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
