package openai

import (
	"math"
	"strings"
	"time"

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

// readExtField reads one field of nvext.
func (d *requestDecoder) readExtField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	x := &d.req.Ext
	switch key {
	case "annotations":
		return d.readAnnotations()
	case "backend_instance_id", "decode_worker_id":
		return d.readWorker()
	case "dp_rank":
		return d.readUint32(&x.Rank)
	case "prefill_worker_id": // there is no separate prefill
		_, err := d.readWorkerID()
		return err
	case "prefill_dp_rank": // there is no separate prefill
		var rank *uint32
		return d.readUint32(&rank)
	case "token_data":
		if err := d.readTokens(&x.Tokens); err != nil {
			return err
		}
		if len(x.Tokens) == 0 {
			return d.InvalidError("must not be empty: leave it out for none")
		}
		return nil
	case "agent_hints":
		return d.ReadObject(d.readAgentHint)
	case "allowed_worker_ids":
		return d.readAllowedWorkers()
	case "session_control":
		return d.readSession()
	case "router_config_override":
		return d.ReadObject(d.readOverrideField)
	case "cache_salt":
		return d.readCacheSalt(&d.extSalt)
	case "extra_fields":
		return d.readExtraFields()
	case "greed_sampling":
		return d.readGreedSampling()
	case "use_raw_prompt":
		return d.requireBool(false)
	case "agent_context", "cache_control": // for traces; and a hint how long to keep the prompt's blocks
		return d.ReadObject(func(string) error { return d.SkipValue() })
	case "request_timestamp_ms": // for the replay of traces
		var ms *float64
		return d.ReadNumberInto(&ms, 0, math.MaxFloat64)
	case "max_thinking_tokens":
		return d.refuseUnsupported()
	}
	return d.UnsupportedError()
}

func (d *requestDecoder) readAnnotations() error {
	x := &d.req.Ext
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
	if have := d.req.Ext.Worker; have != 0 && have != id {
		return d.InvalidError("contradicts the other worker id of 'nvext': give one of them")
	}
	d.req.Ext.Worker = id
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

func (d *requestDecoder) readAgentHint(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "osl":
		return d.ReadIntegerInto(&d.req.Ext.ExpectedOutput, 0, maxTokenHint)
	case "priority":
		seconds := 0
		err := d.ReadIntegerInto(&seconds, math.MinInt32, math.MaxInt32)
		d.req.Ext.Priority.Jump = time.Duration(min(max(0, seconds), maxPriority)) * time.Second
		d.hasPriority = true
		return err
	case "strict_priority":
		strict := 0
		err := d.ReadIntegerInto(&strict, 0, math.MaxUint32)
		d.req.Ext.Priority.Strict = uint32(strict)
		return err
	case "latency_sensitivity": // the former name of priority, used only if priority is not given
		var seconds *float64
		if err := d.ReadNumberInto(&seconds, 0, math.MaxInt32); err != nil {
			return err
		}
		d.sensitivity = time.Duration(min(*seconds, maxPriority) * float64(time.Second))
		return nil
	case "speculative_prefill":
		return d.readIgnoredBool()
	}
	return d.UnsupportedError()
}

// readAllowedWorkers reads the ids of the only workers which may serve the request.
func (d *requestDecoder) readAllowedWorkers() error {
	x := &d.req.Ext
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
	if err := d.ReadObject(d.readSessionField); err != nil {
		return err
	}
	if d.req.Ext.Session.ID == "" {
		return d.InvalidError("needs a session_id")
	}
	return nil
}

func (d *requestDecoder) readSessionField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	s := &d.req.Ext.Session
	switch key {
	case "session_id":
		id, err := d.ReadString()
		if err == nil && (id == "" || len(id) > route.MaxSessionID) {
			return d.InvalidError("must have between 1 and %d bytes, not %d", route.MaxSessionID, len(id))
		}
		s.ID = id
		return err
	case "action":
		action, err := d.ReadString()
		if err == nil && action != "bind" && action != "open" && action != "close" {
			return d.InvalidError("must be one of bind, open and close")
		}
		s.Last = action == "close"
		return err
	case "timeout": // the server's own timeout applies
		seconds := 0
		return d.ReadIntegerInto(&seconds, 0, maxSessionTimeout)
	}
	return d.UnsupportedError()
}

func (d *requestDecoder) readOverrideField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	o := &d.req.Ext.Override
	switch key {
	case "overlap_score_weight":
		return d.ReadNumberInto(&o.OverlapWeight, 0, 1e6)
	case "router_temperature":
		return d.ReadNumberInto(&o.Temperature, 0, 1e6)
	case "router_mode":
		return d.readRouterMode()
	case "assume_kv_reuse":
		return d.readOptionalFlag(&o.AssumeReuse)
	case "track_prefill_tokens":
		return d.readOptionalFlag(&o.TrackPrefill)
	case "moe_query":
		return d.readMoEQuery()
	}
	return d.UnsupportedError()
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
	d.req.Ext.Override.MoE = m
	if err := d.ReadObject(d.readMoEField); err != nil {
		return err
	}
	if m.Layer == nil {
		return d.InvalidError("needs a layer_id")
	}
	return nil
}

func (d *requestDecoder) readMoEField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	m := d.req.Ext.Override.MoE
	switch key {
	case "layer_id":
		return d.readUint32(&m.Layer)
	case "expert_group":
		return d.readUint32(&m.Group)
	case "fallback_to_unlabeled":
		return d.readOptionalFlag(&m.Fallback)
	case "expert_ids":
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
	return d.UnsupportedError()
}

// readUint32 reads an unsigned 32-bit integer.
func (d *requestDecoder) readUint32(dst **uint32) error {
	n := 0
	err := d.ReadIntegerInto(&n, 0, math.MaxUint32)
	*dst = new(uint32(n))
	return err
}

func (d *requestDecoder) readRouterMode() error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	mode := route.Mode(s)
	switch mode {
	case route.KV, route.Time, route.RoundRobin, route.Random, route.PowerOfTwo, route.LeastLoaded, route.Direct:
		d.req.Ext.Override.Mode = &mode
		return nil
	}
	return d.InvalidError("must be one of %s, %s, %s, %s, %s, %s and %s",
		route.KV, route.Time, route.RoundRobin, route.Random, route.PowerOfTwo, route.LeastLoaded, route.Direct)
}

func (d *requestDecoder) readExtraFields() error {
	return d.ReadArray("an array of strings", func(int) error {
		s, err := d.ReadString()
		switch {
		case err != nil:
			return err
		case s == "worker_id":
			d.req.Ext.WorkerFields = true
			return nil
		case s == "timing" || s == "routed_experts" || s == "engine_data" || s == "stop_reason":
			return d.refuseUnsupported()
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
