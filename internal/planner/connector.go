package planner

import (
	"context"

	"penstock/core/plan"
)

// Connector carries out decisions. Its methods are called by one goroutine.
type Connector interface {
	// ApplyDecision makes workers exist as ordered, or says which could not be told to. It is called in each interval, also
	// with a decision which it was given before, and does not wait until workers are ready or have drained. leaving are
	// the workers of the server's table, of each role in the order in which they should leave.
	ApplyDecision(ctx context.Context, d *FleetDecision, leaving []FleetWorker) error
	// DescribeFleet returns the workers which the connector knows, in the order of roles, and what is wrong in words. nil are not
	// known.
	DescribeFleet(ctx context.Context, roles []plan.WorkerRole) (fleet []plan.RoleFleet, problems []string)
	// Close ends what the connector has started.
	Close() error
}

// mergeFleets joins the workers of the server's table with the ones which a connector knows. The connector knows starting
// workers before they register, and draining ones after they have left the table. Which of them serve is in the table, if
// there is one.
func mergeFleets(table, connector []plan.RoleFleet) []plan.RoleFleet {
	switch {
	case table == nil:
		return connector
	case connector == nil:
		return table
	}
	fleet := make([]plan.RoleFleet, len(table))
	for i := range table {
		t, c := &table[i], &connector[i]
		fleet[i] = plan.RoleFleet{
			Ready: t.Ready, Starting: max(t.Starting, c.Starting), Draining: max(t.Draining, c.Draining), Refused: c.Refused,
		}
	}
	return fleet
}
