package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// maxEventLine bounds one line of the event stream, in bytes.
const maxEventLine = 4 << 20

func newEvents() *cobra.Command {
	var t target
	var asJSON bool
	var count int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow the KV-cache events of the workers, decoded",
		Long: `Follow what workers store in and remove from their KV caches, as the router applies
it. Blocks are shown by their hashes; events never carry token ids. Where an engine
labels blocks with experts, they are shown as layer/expert or layer/expert@group.`,
		Example: "  penstock events\n  penstock events --count 10 --json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := t.client()
			if err != nil {
				return err
			}
			resp, err := c.open(cmd.Context(), http.MethodGet, "/v1/router/events", nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			err = followEvents(resp.Body, cmd.OutOrStdout(), count, asJSON)
			if cmd.Context().Err() != nil {
				return nil // Ctrl-C is how one stops following
			}
			return err
		},
	}
	addServerFlags(cmd, &t)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per event")
	cmd.Flags().IntVar(&count, "count", 0, "stop after this many events; 0 goes on until Ctrl-C")
	return cmd
}

// eventLine is one event of the stream of /v1/router/events.
type eventLine struct {
	WorkerID uint64   `json:"worker_id"`
	DPRank   uint32   `json:"dp_rank"`
	Epoch    uint64   `json:"epoch"`
	Seq      uint64   `json:"seq"`
	Kind     string   `json:"kind"`
	Tier     string   `json:"tier"`
	Start    uint32   `json:"start"`
	Parent   string   `json:"parent"`
	Seqs     []string `json:"seqs"`
	Outcome  string   `json:"outcome"`
	Dropped  uint64   `json:"dropped"`
	Labels   []*label `json:"labels"`
}

// label is what the engine says of a block, if it says anything: an expert of a layer.
type label struct {
	Layer  uint32  `json:"layer"`
	Expert uint32  `json:"expert"`
	Group  *uint32 `json:"group"`
}

// String returns the label as layer/expert, with its group.
func (l *label) String() string {
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
	at := ""
	if e.Kind == "stored" {
		at = fmt.Sprintf(" from block %d", e.Start)
		if e.Parent != "" {
			at += " after " + e.Parent
		}
	}
	outcome := ""
	if e.Outcome != "apply" {
		outcome = "  (" + e.Outcome + ")"
	}
	_, err := fmt.Fprintf(w, "worker %d rank %d  event %d  %-7s %s%s  %s%s%s\n",
		e.WorkerID, e.DPRank, e.Seq, e.Kind, e.Tier, at, abridge(e.Seqs), experts(e.Labels), outcome)
	return err
}

// experts lists the labels of an event as layer/expert, "-" for a block without one.
func experts(labels []*label) string {
	if len(labels) == 0 {
		return ""
	}
	all := make([]string, len(labels))
	for i, l := range labels {
		all[i] = l.String()
	}
	return "  experts " + abridge(all)
}

// abridge lists the first of what is said of blocks, and their number.
func abridge(hashes []string) string {
	const most = 4
	if len(hashes) <= most {
		return strings.Join(hashes, " ")
	}
	return fmt.Sprintf("%s … %d blocks", strings.Join(hashes[:most], " "), len(hashes))
}
