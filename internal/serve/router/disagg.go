package router

import (
	"encoding/json"
	"net/http"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

var _ dispatch.SplitRouter = (*Router)(nil)

// SplitSettings implements dispatch.SplitRouter. What a request gives must be valid, see Route.
func (r *Router) SplitSettings(req *route.Request) disagg.SplitSettings {
	s, _ := parseSplit("", &req.Override.SplitOverride)
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, _ := r.poolLocked(req.Model); p != nil {
		s = s.Over(p.split)
	}
	return s.Over(r.cfg.Split)
}

// RecordSplit implements dispatch.SplitRouter.
func (r *Router) RecordSplit(id string, attempt uint32, s *engine.SplitReport) {
	r.decisions.recordSplit(id, attempt, s)
}

// parseSplit returns the settings which o gives. The error names the field, after prefix, and what may be there.
func parseSplit(prefix string, o *route.SplitOverride) (s disagg.SplitSettings, err error) {
	if o.DisaggPolicy != nil {
		policy, err := disagg.ParsePolicy(*o.DisaggPolicy)
		if err != nil {
			return s, fault.InvalidParam(prefix+"disagg_policy", "disagg_policy must be cost, threshold, always or never, not %.40q", *o.DisaggPolicy)
		}
		s.Policy = &policy
	}
	for _, limit := range []struct {
		name     string
		from, to **int
		most     int
	}{
		{"max_local_prefill_length", &o.MaxLocalPrefillLength, &s.MaxLocalPrefillLength, disagg.MaxLocalTokens},
		{"max_prefill_queue_size", &o.MaxPrefillQueueSize, &s.MaxPrefillQueueSize, disagg.MaxQueuedJobs},
	} {
		if *limit.to = *limit.from; *limit.from != nil && (**limit.from < 0 || **limit.from > limit.most) {
			return s, fault.InvalidParam(prefix+limit.name, "%s must be between 0 and %d, not %d", limit.name, limit.most, **limit.from)
		}
	}
	return s, nil
}

// splitValues is the JSON of settings; null is an unset one.
type splitValues struct {
	DisaggPolicy          *string `json:"disagg_policy"`
	MaxLocalPrefillLength *int    `json:"max_local_prefill_length"`
	MaxPrefillQueueSize   *int    `json:"max_prefill_queue_size"`
}

func newSplitValues(s *disagg.SplitSettings) splitValues {
	v := splitValues{MaxLocalPrefillLength: s.MaxLocalPrefillLength, MaxPrefillQueueSize: s.MaxPrefillQueueSize}
	if s.Policy != nil {
		v.DisaggPolicy = new(s.Policy.String())
	}
	return v
}

// disaggSettings is the path of what decode workers are asked for about where prompts are computed.
const disaggSettings = "/v1/router/disagg"

// disaggBody is the body of POST /v1/router/disagg. A missing or null field keeps its value; a body without values only
// reads. Reset drops earlier changes first.
type disaggBody struct {
	Model string `json:"model"`
	route.SplitOverride
	Reset bool `json:"reset"`
}

// disaggRow is the JSON of what the decode workers of a model are asked for, where it comes from, and null for what is as
// each has it.
type disaggRow struct {
	Model string `json:"model"`
	splitValues
	RunTime    splitValues `json:"run_time"`
	Configured splitValues `json:"configured"`
}

// serveDisagg reads and changes what the decode workers of a model are asked for, from the next request on.
func (r *Router) serveDisagg(w http.ResponseWriter, req *http.Request) error {
	s := modelSettings[disaggBody, disaggRow]{
		path: disaggSettings, model: func(b *disaggBody) string { return b.Model },
		validate: func(b *disaggBody) error {
			_, err := parseSplit("", &b.SplitOverride)
			return err
		},
		row: r.newDisaggRow, change: r.changeDisaggLocked,
	}
	return s.serve(r, w, req)
}

func (r *Router) newDisaggRow(p *modelPool) disaggRow {
	all := p.split.Over(r.cfg.Split)
	return disaggRow{p.model, newSplitValues(&all), newSplitValues(&p.split), newSplitValues(&r.cfg.Split)}
}

// changeDisaggLocked changes what body gives.
func (r *Router) changeDisaggLocked(p *modelPool, body *disaggBody) error {
	given, err := parseSplit("", &body.SplitOverride)
	if err != nil {
		return err
	}
	if body.Reset {
		p.split = disagg.SplitSettings{}
	}
	p.split = given.Or(p.split)
	if body.Reset || given != (disagg.SplitSettings{}) {
		values, err := json.Marshal(newSplitValues(&p.split))
		if err != nil {
			return err
		}
		r.log.Info("what decode workers are asked for was changed", "model", p.model, "run_time", string(values))
	}
	return nil
}

// explainedPrefill says which decode worker decides, when it gets the request, where its prompt is computed, and what it
// is asked for: null is as the worker has it.
type explainedPrefill struct {
	workerName
	splitValues
}

// prefillRow is the JSON of where the prompt of an attempt was computed, as its decode worker reported it.
type prefillRow struct {
	splitValues
	Remote         bool    `json:"remote"` // decided
	Rule           string  `json:"rule"`
	Failure        string  `json:"failure,omitempty"` // why the decode worker computed it all the same
	Tokens         int     `json:"tokens"`
	Cached         int     `json:"cached_tokens"`
	PrefillWorkers int     `json:"prefill_workers"`
	QueuedJobs     int     `json:"queued_jobs"`
	LocalMs        float64 `json:"local_ms"`
	RemoteMs       float64 `json:"remote_ms"`
	// WorkerID and Rank are the prefill worker; 0 if the decode worker computed the prompt.
	WorkerID uint64 `json:"prefill_worker_id,omitempty"`
	Rank     uint32 `json:"prefill_dp_rank,omitempty"`
}

// newPrefillRow returns the JSON of a report; nil if there is none.
func newPrefillRow(r *engine.SplitReport) *prefillRow {
	if r == nil {
		return nil
	}
	return &prefillRow{
		splitValues: newSplitValues(&disagg.SplitSettings{Policy: &r.Policy, MaxLocalPrefillLength: &r.MaxLocalPrefillLength, MaxPrefillQueueSize: &r.MaxPrefillQueueSize}),
		Remote:      r.Remote, Rule: r.Rule, Failure: r.Failure, Tokens: r.Tokens, Cached: r.Cached,
		PrefillWorkers: r.PrefillWorkers, QueuedJobs: r.QueuedJobs, LocalMs: roundMs(r.LocalMs), RemoteMs: roundMs(r.RemoteMs),
		WorkerID: uint64(r.By.ID), Rank: r.By.Rank,
	}
}
