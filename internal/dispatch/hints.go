package dispatch

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// routingHints is the JSON of an engine request's hints: the client's wishes for the choice of a
// worker, for a router process that chooses in the frontend's place. Fields are only ever added.
type routingHints struct {
	Override       *route.Override `json:"router_config_override,omitempty"`
	Allowed        []kv.WorkerID   `json:"allowed_worker_ids,omitempty"`
	SessionID      string          `json:"session_id,omitempty"`
	SessionLast    bool            `json:"session_last,omitempty"`
	StrictPriority uint32          `json:"strict_priority,omitempty"`
	PriorityJump   time.Duration   `json:"priority_jump_ns,omitempty"`
	ExpectedOutput int             `json:"expected_output,omitempty"`
	Client         string          `json:"client,omitempty"` // 16 hexadecimal digits
	PrefillPin     kv.WorkerID     `json:"prefill_worker_id,omitempty"`
}

// EncodeHints returns req's wishes for the choice of a worker, without the pinned worker, in the form
// of an engine request's hints; nil if there are none.
func EncodeHints(req *route.Request) []byte {
	h := routingHints{
		Allowed: req.Allowed, SessionID: req.Session.ID, SessionLast: req.Session.Last,
		StrictPriority: req.Priority.Strict, PriorityJump: req.Priority.Jump, ExpectedOutput: req.ExpectedOutput,
		PrefillPin: req.PrefillPin,
	}
	if req.Client != 0 {
		h.Client = fmt.Sprintf("%016x", req.Client)
	}
	if req.Override != (route.Override{}) {
		h.Override = &req.Override
	}
	b, err := json.Marshal(&h)
	if err != nil || string(b) == "{}" { // numbers are finite: they were read from JSON
		return nil
	}
	return b
}

// ApplyHints sets in req what hints say. The router validates their values.
func ApplyHints(b []byte, req *route.Request) error {
	if len(b) == 0 {
		return nil
	}
	var h routingHints
	if err := json.Unmarshal(b, &h); err != nil {
		return fault.New(fault.Invalid, "the hints of a request are no JSON of theirs: %w", err)
	}
	if len(h.SessionID) > route.MaxSessionID {
		return fault.New(fault.Invalid, "the hints of a request have a session id of %d bytes, at most %d are allowed", len(h.SessionID), route.MaxSessionID)
	}
	if h.Client != "" {
		client, err := strconv.ParseUint(h.Client, 16, 64)
		if err != nil {
			return fault.New(fault.Invalid, "the hints of a request have a client that is no 64-bit number: %.20q", h.Client)
		}
		req.Client = client
	}
	if h.Override != nil {
		req.Override = *h.Override
	}
	req.Allowed, req.ExpectedOutput, req.PrefillPin = h.Allowed, max(0, h.ExpectedOutput), h.PrefillPin
	req.Priority = queue.Priority{Strict: h.StrictPriority, Jump: h.PriorityJump}
	req.Session = route.Session{ID: h.SessionID, Last: h.SessionLast}
	return nil
}
