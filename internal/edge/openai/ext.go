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
func (d *decoder) ext(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	x := &d.req.Ext
	switch key {
	case "annotations":
		return d.annotations()
	case "backend_instance_id", "decode_worker_id":
		return d.worker()
	case "dp_rank":
		return d.number32(&x.Rank)
	case "prefill_worker_id": // there is no separate prefill
		_, err := d.workerID()
		return err
	case "prefill_dp_rank": // there is no separate prefill
		var rank *uint32
		return d.number32(&rank)
	case "token_data":
		if err := d.tokens(&x.Tokens); err != nil {
			return err
		}
		if len(x.Tokens) == 0 {
			return d.Refuse("must not be empty: leave it out for none")
		}
		return nil
	case "agent_hints":
		return d.Object(d.hint)
	case "allowed_worker_ids":
		return d.allowed()
	case "session_control":
		return d.session()
	case "router_config_override":
		return d.Object(d.override)
	case "cache_salt":
		return d.salt(&d.extSalt)
	case "extra_fields":
		return d.extraFields()
	case "greed_sampling":
		return d.greedy()
	case "use_raw_prompt":
		return d.only(false)
	case "agent_context", "cache_control": // for traces; and a hint how long to keep the prompt's blocks
		return d.Object(func(string) error { return d.Skip() })
	case "request_timestamp_ms": // for the replay of traces
		var ms *float64
		return d.Number(&ms, 0, math.MaxFloat64)
	case "max_thinking_tokens":
		return d.notSupported()
	}
	return d.Unsupported()
}

func (d *decoder) annotations() error {
	x := &d.req.Ext
	return d.Array("an array of strings", func(i int) error {
		if i >= maxAnnotations {
			return d.RefuseParent("must have at most %d entries", maxAnnotations)
		}
		s, err := d.String()
		if err == nil && !x.Annotations.Add(s) {
			err = d.Refuse("must be one of %s, not %.64q", strings.Join(api.AnnotationNames(), ", "), s)
		}
		return err
	})
}

// readWorker reads the id of the worker which must serve the request, under either of its two keys.
func (d *decoder) worker() error {
	id, err := d.workerID()
	if err != nil {
		return err
	}
	if have := d.req.Ext.Worker; have != 0 && have != id {
		return d.Refuse("contradicts the other worker id of 'nvext': give one of them")
	}
	d.req.Ext.Worker = id
	return nil
}

func (d *decoder) workerID() (kv.WorkerID, error) {
	n, err := d.Int()
	if err != nil {
		return 0, err
	}
	if n < 1 || n > int64(kv.MaxWorkerID) {
		return 0, d.Refuse("must be a worker id between 1 and %d, not %d", kv.MaxWorkerID, n)
	}
	return kv.WorkerID(n), nil
}

func (d *decoder) hint(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	switch key {
	case "osl":
		return d.Integer(&d.req.Ext.ExpectedOutput, 0, maxTokenHint)
	case "priority":
		seconds := 0
		err := d.Integer(&seconds, math.MinInt32, math.MaxInt32)
		d.req.Ext.Priority.Jump = time.Duration(min(max(0, seconds), maxPriority)) * time.Second
		d.prioritized = true
		return err
	case "strict_priority":
		strict := 0
		err := d.Integer(&strict, 0, math.MaxUint32)
		d.req.Ext.Priority.Strict = uint32(strict)
		return err
	case "latency_sensitivity": // the former name of priority, used only if priority is not given
		var seconds *float64
		if err := d.Number(&seconds, 0, math.MaxInt32); err != nil {
			return err
		}
		d.sensitivity = time.Duration(min(*seconds, maxPriority) * float64(time.Second))
		return nil
	case "speculative_prefill":
		return d.either()
	}
	return d.Unsupported()
}

// readAllowedWorkers reads the ids of the only workers which may serve the request.
func (d *decoder) allowed() error {
	x := &d.req.Ext
	err := d.Array("an array of worker ids", func(i int) error {
		if i >= maxAllowed {
			return d.RefuseParent("must have at most %d entries", maxAllowed)
		}
		id, err := d.workerID()
		x.Allowed = append(x.Allowed, id)
		return err
	})
	if err == nil && len(x.Allowed) == 0 {
		return d.Refuse("must not be empty: leave it out to allow all")
	}
	return err
}

// readSession reads the session to which the request belongs.
func (d *decoder) session() error {
	if err := d.Object(d.sessionField); err != nil {
		return err
	}
	if d.req.Ext.Session.ID == "" {
		return d.Refuse("needs a session_id")
	}
	return nil
}

func (d *decoder) sessionField(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	s := &d.req.Ext.Session
	switch key {
	case "session_id":
		id, err := d.String()
		if err == nil && (id == "" || len(id) > route.MaxSessionID) {
			return d.Refuse("must have between 1 and %d bytes, not %d", route.MaxSessionID, len(id))
		}
		s.ID = id
		return err
	case "action":
		action, err := d.String()
		if err == nil && action != "bind" && action != "open" && action != "close" {
			return d.Refuse("must be one of bind, open and close")
		}
		s.Last = action == "close"
		return err
	case "timeout": // the server's own timeout applies
		seconds := 0
		return d.Integer(&seconds, 0, maxSessionTimeout)
	}
	return d.Unsupported()
}

func (d *decoder) override(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	o := &d.req.Ext.Override
	switch key {
	case "overlap_score_weight":
		return d.Number(&o.OverlapWeight, 0, 1e6)
	case "router_temperature":
		return d.Number(&o.Temperature, 0, 1e6)
	case "router_mode":
		return d.mode()
	case "assume_kv_reuse":
		return d.flag(&o.AssumeReuse)
	case "track_prefill_tokens":
		return d.flag(&o.TrackPrefill)
	case "moe_query":
		return d.moe()
	}
	return d.Unsupported()
}

// readOptionalFlag reads a boolean whose absence has a meaning.
func (d *decoder) flag(dst **bool) error {
	on, err := d.Bool()
	*dst = &on
	return err
}

// readMoEQuery reads the experts which the request is expected to use.
func (d *decoder) moe() error {
	m := &route.MoEQuery{}
	d.req.Ext.Override.MoE = m
	if err := d.Object(d.moeField); err != nil {
		return err
	}
	if m.Layer == nil {
		return d.Refuse("needs a layer_id")
	}
	return nil
}

func (d *decoder) moeField(key string) error {
	if none, err := d.Null(); none || err != nil {
		return err
	}
	m := d.req.Ext.Override.MoE
	switch key {
	case "layer_id":
		return d.number32(&m.Layer)
	case "expert_group":
		return d.number32(&m.Group)
	case "fallback_to_unlabeled":
		return d.flag(&m.Fallback)
	case "expert_ids":
		return d.Array("an array of expert ids", func(i int) error {
			if i >= route.MaxExperts {
				return d.RefuseParent("must have at most %d entries", route.MaxExperts)
			}
			var id *uint32
			if err := d.number32(&id); err != nil {
				return err
			}
			m.Experts = append(m.Experts, *id)
			return nil
		})
	}
	return d.Unsupported()
}

// readUint32 reads an unsigned 32-bit integer.
func (d *decoder) number32(dst **uint32) error {
	n := 0
	err := d.Integer(&n, 0, math.MaxUint32)
	*dst = new(uint32(n))
	return err
}

func (d *decoder) mode() error {
	s, err := d.String()
	if err != nil {
		return err
	}
	mode := route.Mode(s)
	switch mode {
	case route.KV, route.RoundRobin, route.Random, route.PowerOfTwo, route.LeastLoaded, route.Direct:
		d.req.Ext.Override.Mode = &mode
		return nil
	}
	return d.Refuse("must be one of %s, %s, %s, %s, %s and %s",
		route.KV, route.RoundRobin, route.Random, route.PowerOfTwo, route.LeastLoaded, route.Direct)
}

func (d *decoder) extraFields() error {
	return d.Array("an array of strings", func(int) error {
		s, err := d.String()
		switch {
		case err != nil:
			return err
		case s == "worker_id":
			d.req.Ext.WorkerFields = true
			return nil
		case s == "timing" || s == "routed_experts" || s == "engine_data" || s == "stop_reason":
			return d.notSupported()
		}
		return d.Refuse("must be the name of an extra field: worker_id")
	})
}

// readGreedSampling reads greed_sampling, which means temperature 0.
func (d *decoder) greedy() error {
	on, err := d.Bool()
	if on {
		d.greed = true
	}
	return err
}
