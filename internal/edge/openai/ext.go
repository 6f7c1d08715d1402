package openai

import (
	"math"

	"penstock/core/kv"
	"penstock/core/route"
)

const (
	maxAnnotations = 32
	maxTokenHint   = math.MaxInt32
)

// ext reads one field of nvext.
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
	case "prefill_worker_id": // nothing is prefilled apart from decoding
		_, err := d.workerID()
		return err
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
	case "agent_context": // describes the client
		return d.Object(func(string) error { return d.Skip() })
	case "max_thinking_tokens", "session_control":
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
		x.Annotations = append(x.Annotations, s)
		return err
	})
}

// worker reads the id of the worker that must serve the request, under either of
// its names.
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
	case "priority", "strict_priority":
		_, err := d.Int()
		return err
	case "speculative_prefill":
		return d.either()
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
	}
	return d.Unsupported()
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

// greedy reads greed_sampling, which is temperature 0 by another name.
func (d *decoder) greedy() error {
	on, err := d.Bool()
	if on {
		d.greed = true
	}
	return err
}
