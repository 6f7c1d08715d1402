package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// maxEventLine bounds one line of the event stream, in bytes.
const maxEventLine = 4 << 20

func newEventsCommand() *cobra.Command {
	var t serverTarget
	var asJSON bool
	var count int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow the KV-cache events of the workers, decoded",
		Long: `Follow what workers store in and remove from their KV caches, as the router applies
it. Blocks are shown by their hashes; events never carry token ids. Where an engine
labels blocks with experts, they are shown as layer/expert or layer/expert@group.
Where blocks move through a pool of memory that workers share, their new state is shown.
An outcome in brackets says why an event was not applied; docs/router-api.md lists them.`,
		Example: "  penstock events\n  penstock events --count 10 --json",
		Args:    checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.newClient()
			if err != nil {
				return err
			}
			if err := c.requireEvents(cmd.Context()); err != nil {
				return err
			}
			resp, err := c.sendRequest(cmd.Context(), http.MethodGet, "/v1/router/events", nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			fmt.Fprintf(cmd.ErrOrStderr(), "connected to %s; events are shown as they come, until Ctrl-C\n", c.server)
			err = followEvents(resp.Body, cmd.OutOrStdout(), count, asJSON)
			if cmd.Context().Err() != nil {
				return nil // the user stopped following
			}
			return err
		},
	}
	addTargetFlags(cmd, &t)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per event")
	cmd.Flags().IntVar(&count, "count", 0, "stop after this many events; 0 goes on until Ctrl-C")
	return cmd
}

// requireEvents returns an error if the router follows no events: the stream would stay empty.
func (c *apiClient) requireEvents(ctx context.Context) error {
	var index struct {
		Events bool `json:"events"`
	}
	if err := c.getJSON(ctx, "/v1/router/index", &index); err != nil {
		return err
	}
	if !index.Events {
		return fmt.Errorf("the router at %s follows no cache events: it was started with --no-kv-events, an overlap weight of 0, or a --router-mode other than time and kv", c.server)
	}
	return nil
}

// eventLine is one event of the stream of /v1/router/events.
type eventLine struct {
	WorkerID uint64         `json:"worker_id"`
	DPRank   uint32         `json:"dp_rank"`
	Epoch    uint64         `json:"epoch"`
	Seq      uint64         `json:"seq"`
	Kind     string         `json:"kind"`
	Tier     string         `json:"tier"`
	Start    uint32         `json:"start"`
	Parent   string         `json:"parent"`
	Seqs     []string       `json:"seqs"`
	Outcome  string         `json:"outcome"`
	Dropped  uint64         `json:"dropped"`
	Labels   []*expertLabel `json:"labels"`

	Transition *transition `json:"cxl_state_transition"`
}

// transition is an event's change of state of blocks in a shared pool.
type transition struct {
	Blocks []string `json:"block_hashes"`
	State  string   `json:"new_state"`
	Pool   *uint32  `json:"pool_id"`
	Access *[]struct {
		WorkerID uint64 `json:"worker_id"`
		DPRank   uint32 `json:"dp_rank"`
	} `json:"accessible_workers"`
}

// String returns the transition as state, pool, blocks and the workers which can attach the pool.
func (t *transition) String() string {
	var b strings.Builder
	b.WriteString(t.State)
	if t.Pool != nil {
		fmt.Fprintf(&b, " pool %d", *t.Pool)
	}
	if len(t.Blocks) > 0 {
		b.WriteString("  " + abbreviateList(t.Blocks, "blocks"))
	}
	if t.Access != nil {
		names := make([]string, len(*t.Access))
		for i, w := range *t.Access {
			names[i] = fmt.Sprintf("%d.%d", w.WorkerID, w.DPRank)
		}
		b.WriteString("  for workers " + cmp.Or(abbreviateList(names, "workers"), "none"))
	}
	return b.String()
}

// expertLabel is an engine's label of a block: an expert of a layer.
type expertLabel struct {
	Layer  uint32  `json:"layer"`
	Expert uint32  `json:"expert"`
	Group  *uint32 `json:"group"`
}

// String returns the label as layer/expert, with its group.
func (l *expertLabel) String() string {
	switch {
	case l == nil:
		return "-"
	case l.Group != nil:
		return fmt.Sprintf("%d/%d@%d", l.Layer, l.Expert, *l.Group)
	}
	return fmt.Sprintf("%d/%d", l.Layer, l.Expert)
}

func followEvents(r io.Reader, w io.Writer, count int, asJSON bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventLine)
	seen := 0
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue // comments and blank lines of the stream
		}
		if err := printEvent(w, data, asJSON); err != nil {
			return err
		}
		if seen++; count > 0 && seen >= count {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return fmt.Errorf("the server ended the stream of events")
}

func printEvent(w io.Writer, data string, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintln(w, data)
		return err
	}
	var e eventLine
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	if e.Dropped > 0 {
		_, err := fmt.Fprintf(w, "… %d events not shown: this reader was too slow\n", e.Dropped)
		return err
	}
	what := e.Tier
	switch {
	case e.Transition != nil:
		what = e.Transition.String()
	case e.Kind == "stored":
		what += fmt.Sprintf(" from block %d", e.Start)
		if e.Parent != "" {
			what += " after " + e.Parent
		}
	}
	if e.Transition == nil {
		what += "  " + abbreviateList(e.Seqs, "blocks") + formatExperts(e.Labels)
	}
	outcome := ""
	if e.Outcome != "apply" {
		outcome = "  (" + e.Outcome + ")"
	}
	_, err := fmt.Fprintf(w, "worker %d rank %d  event %d  %-7s %s\n",
		e.WorkerID, e.DPRank, e.Seq, e.Kind, what+outcome)
	return err
}

// formatExperts lists the labels of an event as layer/expert, "-" for a block without one.
func formatExperts(labels []*expertLabel) string {
	if len(labels) == 0 {
		return ""
	}
	all := make([]string, len(labels))
	for i, l := range labels {
		all[i] = l.String()
	}
	return "  experts " + abbreviateList(all, "blocks")
}

// abbreviateList lists the first elements, followed by the total number if some are left out.
func abbreviateList(all []string, of string) string {
	const most = 4
	if len(all) <= most {
		return strings.Join(all, " ")
	}
	return fmt.Sprintf("%s … %d %s", strings.Join(all[:most], " "), len(all), of)
}
