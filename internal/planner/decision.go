package planner

import (
	"encoding/json"
	"fmt"

	"penstock/core/kv"
	"penstock/core/plan"
)

// formatVersion is the version of decisions and acknowledgements, docs/format/decision.md.
const formatVersion = 1

// FleetDecision is what a planner orders: how many workers of each role are to exist. docs/format/decision.md has its JSON.
type FleetDecision struct {
	Version int `json:"version"`
	// ID ascends. A decision which is repeated keeps its id.
	ID        uint64 `json:"id"`
	Namespace string `json:"namespace"`
	// Time is when it was decided, in RFC 3339.
	Time  string         `json:"time"`
	Roles []RoleDecision `json:"roles"`
}

// RoleDecision is the part of a decision for one role.
type RoleDecision struct {
	Role string `json:"role"`
	// Workers is how many are to exist: ready or starting, and not draining.
	Workers int `json:"workers"`
	// Leave are the workers which are to drain if more exist, in this order.
	Leave []kv.WorkerID `json:"leave"`
	// Reason says why, in words.
	Reason string `json:"reason"`
}

// isSameOrder reports whether two decisions order the same workers.
func (d *FleetDecision) isSameOrder(o *FleetDecision) bool {
	if len(d.Roles) != len(o.Roles) {
		return false
	}
	for i := range d.Roles {
		if d.Roles[i].Role != o.Roles[i].Role || d.Roles[i].Workers != o.Roles[i].Workers {
			return false
		}
	}
	return true
}

// leavingWorkers returns the workers which are to drain, by role.
func (d *FleetDecision) leavingWorkers() map[string][]kv.WorkerID {
	leave := map[string][]kv.WorkerID{}
	for i := range d.Roles {
		if r := &d.Roles[i]; len(r.Leave) > 0 {
			leave[r.Role] = r.Leave
		}
	}
	return leave
}

const (
	// maxAck bounds a decision or an acknowledgement, in bytes.
	maxAck = 64 << 10
	// maxLeave bounds the workers of a role which a decision names, so that it has at most maxAck bytes.
	maxLeave = 1024
)

// Ack is what an agent which applies decisions says. docs/format/decision.md has its JSON.
type Ack struct {
	Version int `json:"version"`
	// ID is the last decision which the agent has applied, or begun to apply.
	ID uint64 `json:"id"`
	// Error says why it could not be applied, "" if it was.
	Error string `json:"error"`
	// Roles are the workers which the agent knows.
	Roles []AckRole `json:"roles"`
}

// AckRole are the workers of a role, as an agent knows them.
type AckRole struct {
	Role     string `json:"role"`
	Ready    int    `json:"ready"`
	Starting int    `json:"starting"`
	Draining int    `json:"draining"`
	// Refused counts workers which were ordered and for which there is no machine.
	Refused int `json:"refused"`
}

// parseAck reads an acknowledgement.
func parseAck(data []byte) (*Ack, error) {
	if len(data) > maxAck {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(data), maxAck)
	}
	var a Ack
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, err
	}
	if a.Version != formatVersion {
		return nil, fmt.Errorf("it has version %d, and this planner reads version %d", a.Version, formatVersion)
	}
	seen := map[string]bool{}
	for _, r := range a.Roles {
		if _, known := plan.ParseRole(r.Role); !known || seen[r.Role] {
			return nil, fmt.Errorf("role %.40q is unknown, or there twice", r.Role)
		}
		seen[r.Role] = true
		if min(r.Ready, r.Starting, r.Draining, r.Refused) < 0 || max(r.Ready, r.Starting, r.Draining, r.Refused) > maxWorkers {
			return nil, fmt.Errorf("the workers of role %s are not between 0 and %d", r.Role, maxWorkers)
		}
	}
	return &a, nil
}

// fleetOf returns the workers of each role, in the order of roles. The workers which an earlier decision than the last one,
// decision, could not have are not refused: the agent has not tried the last one.
func (a *Ack) fleetOf(roles []plan.WorkerRole, decision uint64) []plan.RoleFleet {
	fleet := make([]plan.RoleFleet, len(roles))
	for i, role := range roles {
		for _, r := range a.Roles {
			if r.Role == role.String() {
				fleet[i] = plan.RoleFleet{Ready: r.Ready, Starting: r.Starting, Draining: r.Draining}
				if a.ID >= decision {
					fleet[i].Refused = r.Refused
				}
			}
		}
	}
	return fleet
}
