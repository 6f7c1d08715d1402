package router

import (
	"math"
	"net/http"

	"penstock/core/fault"
	"penstock/core/route"
)

// busyThreshold is the path of the busy thresholds. It is not below the router API: operators of other
// servers expect it here.
const busyThreshold = "/busy_threshold"

// busyBody is the body of POST /busy_threshold. A missing or null field keeps its value; a body without
// values only reads.
type busyBody struct {
	Model         string   `json:"model"`
	DecodeBlocks  *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens *int     `json:"active_prefill_tokens_threshold"`
}

// busyRow is the JSON of a model's thresholds; null is an unset one.
type busyRow struct {
	Model         string   `json:"model"`
	DecodeBlocks  *float64 `json:"active_decode_blocks_threshold"`
	PrefillTokens *int     `json:"active_prefill_tokens_threshold"`
}

func newBusyRow(p *modelPool) busyRow {
	row := busyRow{Model: p.model}
	b := p.router.BusyThresholds()
	if b.DecodeBlocks > 0 {
		row.DecodeBlocks = &b.DecodeBlocks
	}
	if b.PrefillTokens > 0 {
		row.PrefillTokens = &b.PrefillTokens
	}
	return row
}

// serveBusyThreshold reads and changes the thresholds above which the workers of a model are busy. They apply
// from the next decision on.
func (r *Router) serveBusyThreshold(w http.ResponseWriter, req *http.Request) error {
	s := modelSettings[busyBody, busyRow]{
		path: busyThreshold, model: func(b *busyBody) string { return b.Model }, validate: (*busyBody).validate, row: newBusyRow, change: r.changeBusyLocked,
	}
	return s.serve(r, w, req)
}

// validate refuses values out of bounds, naming the field.
func (b *busyBody) validate() error {
	if v := b.DecodeBlocks; v != nil && !(*v >= 0 && *v <= 1) {
		return fault.InvalidParam("active_decode_blocks_threshold", "active_decode_blocks_threshold must be a share between 0 and 1, 0 for none")
	}
	if v := b.PrefillTokens; v != nil && (*v < 0 || *v > math.MaxInt32) {
		return fault.InvalidParam("active_prefill_tokens_threshold", "active_prefill_tokens_threshold must be between 0 and %d, 0 for none", math.MaxInt32)
	}
	return nil
}

// changeBusyLocked changes the thresholds that body gives.
func (r *Router) changeBusyLocked(p *modelPool, body *busyBody) error {
	b := p.router.BusyThresholds()
	if body.DecodeBlocks != nil {
		b.DecodeBlocks = *body.DecodeBlocks
	}
	if body.PrefillTokens != nil {
		b.PrefillTokens = *body.PrefillTokens
	}
	if b != p.router.BusyThresholds() {
		r.log.Info("busy thresholds changed", "model", p.model, "decode_blocks", b.DecodeBlocks, "prefill_tokens", b.PrefillTokens)
	}
	if err := p.router.SetBusyThresholds(b); err != nil {
		return err
	}
	if legs := r.findPoolLocked(poolKey{p.model, route.PrefillWorkers}); legs != nil {
		return legs.router.SetBusyThresholds(b)
	}
	return nil
}
