package engine

import "fmt"

// Role is the part of requests that a worker is for. It is part of the model card as its text, where
// [RoleAggregated] is absent.
type Role string

// The roles. Only aggregated and decode workers are sent whole requests. They ask encode workers, and decode workers ask
// prefill workers. Prefill workers are sent prefill legs, if their engines move KV blocks themselves (Card.KVConnector).
const (
	// RoleAggregated is prefill and decode on one worker.
	RoleAggregated Role = ""
	// RolePrefill computes prompts for decode workers.
	RolePrefill Role = "prefill"
	// RoleDecode computes outputs. It computes a prompt too where no prefill worker does.
	RoleDecode Role = "decode"
	// RoleEncode encodes media.
	RoleEncode Role = "encode"
)

// aggregatedName is the name of RoleAggregated outside of cards.
const aggregatedName = "aggregated"

// ParseRole returns the role of a name as String writes it.
func ParseRole(name string) (Role, error) {
	if name == aggregatedName {
		return RoleAggregated, nil
	}
	if r := Role(name); r != RoleAggregated && r.isKnown() {
		return r, nil
	}
	return "", fmt.Errorf("%.100q is not a role: aggregated, prefill, decode or encode", name)
}

// String returns the name of the role: "aggregated", "prefill", "decode" or "encode".
func (r Role) String() string {
	if r == RoleAggregated {
		return aggregatedName
	}
	return string(r)
}

// TakesRequests reports whether workers of the role are sent whole requests. The others register under
// kinds of their own, so that no router sends them one.
func (r Role) TakesRequests() bool { return r == RoleAggregated || r == RoleDecode }

func (r Role) isKnown() bool {
	switch r {
	case RoleAggregated, RolePrefill, RoleDecode, RoleEncode:
		return true
	}
	return false
}

// UnusedRoleWarning returns the warning about a worker of this card whose role serves nothing; ok is false for a
// worker which is sent requests, and for one which encodes media or computes prompts for others.
func (c *Card) UnusedRoleWarning() (w Warning, ok bool) {
	w = Warning{Code: WarnRoleUnused, Remedy: "start it with --role aggregated to have it serve requests"}
	switch {
	case c.Role == RoleEncode && c.Encoder == "":
		w.Detail = "role encode serves nothing with this engine, which encodes no media for others: nothing is sent to the worker"
	case c.Role == RolePrefill && c.Exchange == nil && c.KVConnector == "":
		w.Detail = "role prefill serves nothing with this engine, which gives no KV blocks to others: nothing is sent to the worker"
	default:
		return Warning{}, false
	}
	return w, true
}

// NoDecodeWarning is the warning about a prefill worker while there is no decode worker which could ask it.
func NoDecodeWarning() Warning {
	return Warning{
		Code: WarnRoleUnused, Detail: "role prefill serves nothing now: no decode worker which can take its blocks is registered",
		Remedy: "start workers of the same model and build with --role decode",
	}
}
