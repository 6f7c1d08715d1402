package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/node"
	"penstock/internal/planner"
)

func newPlannerCommand() *cobra.Command {
	cmd := newRoleCommand(config.PlannerCommand, node.RunPlanner, &cobra.Command{
		Short: "Size a fleet: find how many workers its targets need, and start and drain them",
		Long: `Read the metrics of a fleet every interval, and decide how many workers of each role keep
ttft-target and itl-target: "penstock plan" shows the plan and its reasons. Without --apply
that is all. With it, the connector starts and drains workers until they are as many.

SIGTERM or Ctrl-C ends it. Workers which connector process has started drain then.`,
		Example: `  penstock planner                                        # a dry run for the fleet at http://127.0.0.1:8000
  penstock planner --server http://10.0.0.5:8000 --ttft-target 300ms --itl-target 30ms --planner-workers aggregated=2..16
  penstock planner --nats nats://127.0.0.1:4222 --engine sim --connector process --apply
  penstock planner --connector virtual --data-dir ./planner --apply      # an agent applies ./planner/decisions/decision.json
  penstock planner --connector webhook --planner-webhook http://127.0.0.1:9000/scale --apply
  penstock planner --server= --planner-metrics http://10.0.0.7:8000/metrics --connector virtual --data-dir ./planner --apply`,
	})
	aliases := config.PlannerAliases()
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if long, ok := aliases[name]; ok {
			name = long
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// defaultPlanner is where "penstock planner" listens.
const defaultPlanner = "http://127.0.0.1:8090"

func newPlanCommand() *cobra.Command {
	var t serverTarget
	var asJSON bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a running planner would do, or does, and why",
		Long: `Ask a running planner for its last plan. Of each role, DESIRED is how many workers the targets
need, FEASIBLE how many of them floor, ceiling, budget and machines permit, ACTUAL how many
serve, and ORDER how many are to exist. A planner which has just started has its first plan
when an interval is over: that is waited for. The planner of "penstock up --planner" is at the
address of up.`,
		Example: "  penstock plan\n  penstock plan --server http://127.0.0.1:8000    # of penstock up --planner\n  penstock plan --server http://127.0.0.1:8091 --json",
		Args:    checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.newClient()
			if err != nil {
				return err
			}
			c.runs = "penstock planner"
			raw, err := awaitPlan(cmd.Context(), c, wait, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), string(raw))
				return err
			}
			var r planner.PlanReport
			if err := json.Unmarshal(raw, &r); err != nil {
				return fmt.Errorf("answer of the planner: %w", err)
			}
			return printPlan(cmd.OutOrStdout(), &r)
		},
	}
	t.addServerFlag(cmd, "server", defaultPlanner, "URL of the planner to ask")
	t.addKeyFileFlag(cmd)
	t.addCAFlag(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "time to wait for the first plan; 0s does not wait")
	return cmd
}

// planExample returns the command which shows the plan of a planner. The server which is the default of other commands is not
// the one of plan.
func planExample(url string, a node.Access) string {
	return "penstock plan" + cmp.Or(serverFlags(url, a), " --server "+a.URLOf(url))
}

const (
	// planInterval is how often awaitPlan asks.
	planInterval = 500 * time.Millisecond
	// plannerStart is how long a planner which was started just before may take until it listens.
	plannerStart = 3 * time.Second
)

// awaitPlan returns the last plan of a planner. It waits for the first one, and says so.
func awaitPlan(ctx context.Context, c *apiClient, wait time.Duration, stderr io.Writer) (raw json.RawMessage, err error) {
	begin := time.Now()
	for until, said := begin.Add(wait), false; ; said = true {
		err := c.getJSON(ctx, "/v1/plan", &raw)
		refusal := (*statusError)(nil)
		switch {
		case ctx.Err() != nil:
			return nil, errors.New("plan: interrupted before the planner had its first plan")
		case errors.Is(err, syscall.ECONNREFUSED) && time.Since(begin) < min(wait, plannerStart):
			refusal = &statusError{message: "nothing listens there yet"}
		case !errors.As(err, &refusal) || refusal.status != http.StatusServiceUnavailable:
			return raw, err
		case !time.Now().Before(until):
			return nil, exitCodeError{err, exitNotReady}
		}
		if !said {
			fmt.Fprintf(stderr, "waiting up to %v: %s\n", wait, printable(refusal.message))
		}
		select {
		case <-time.After(planInterval):
		case <-ctx.Done():
		}
	}
}

// printPlan writes a plan for people.
func printPlan(w io.Writer, r *planner.PlanReport) error {
	does := fmt.Sprintf("connector %s carries it out (decision %d)", printable(r.Connector), r.DecisionID)
	if r.Connector == config.ConnectorNone {
		does = "dry run: nothing is started or drained"
	}
	fmt.Fprintf(w, "plan of %s for namespace %s, every %.0f s; %s\n", printable(r.Time), printable(r.Namespace), r.Interval, does)
	if t := r.Traffic; t != nil {
		fmt.Fprintf(w, "traffic: %.2f requests/s, %.0f prompt tokens (%.0f %% cached), %.0f output tokens, TTFT %.0f ms, ITL %.1f ms\n",
			t.Arrivals, t.InputTokens, 100*t.CachedShare, t.OutputTokens, t.TTFT, t.ITL)
	} else {
		fmt.Fprintln(w, "traffic: not known")
	}
	if r.Forecast.Method != "" {
		fmt.Fprintf(w, "forecast by %s: %.2f requests/s, sized for %.2f\n", printable(r.Forecast.Method), r.Forecast.Expected, r.Forecast.Raised)
	}
	if r.Hold != "" {
		fmt.Fprintf(w, "hold: %s\n", printable(r.Hold))
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROLE\tDESIRED\tFEASIBLE\tACTUAL\tORDER\tATTAINMENT\tREASON")
	for i := range r.Roles {
		role := &r.Roles[i]
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%.1f %%\t%s\n", role.Role, role.Desired, role.Feasible, role.Actual, role.Order, 100*role.Attainment, printable(role.Reason))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, role := range slices.Sorted(maps.Keys(r.Leave)) {
		ids := make([]string, len(r.Leave[role]))
		for i, id := range r.Leave[role] {
			ids[i] = fmt.Sprint(uint64(id))
		}
		fmt.Fprintf(w, "leaving first of role %s: %s\n", printable(role), abbreviateList(ids, "workers"))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", printable(strings.TrimSpace(p)))
	}
	return nil
}
