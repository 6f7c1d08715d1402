package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"text/tabwriter"

	"penstock/internal/engine"
	"penstock/internal/node/engines"

	"github.com/spf13/cobra"
)

func newWorkersCommand() *cobra.Command {
	var t serverTarget
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers: model, engine, state, load, cached blocks, health of the event feed, warnings",
		Long: `List the workers that a running process sends requests to. Below a router process, indented, are the
workers behind it, as it knows them. NAME is --worker-name of a process, or its host; ADDRESS is where
it is called. Of the sequences that are running or waiting, ENCODING need media which are being encoded,
the other ones that wait are READY, and ACTIVE ones are computed.`,
		Example: "  penstock workers\n  penstock workers --server http://127.0.0.1:9000 --json",
		Args:    checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var raw json.RawMessage
			c, err := t.newClient()
			if err != nil {
				return err
			}
			if err := c.getJSON(cmd.Context(), "/v1/router/workers", &raw); err != nil {
				return err
			}
			if asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), string(raw))
				return err
			}
			return printWorkers(cmd.OutOrStdout(), raw, c.engineNames(cmd.Context()))
		},
	}
	addTargetFlags(cmd, &t)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// engineNames returns the display name of each worker's engine, for the remote engines which the server
// follows itself: the URL, with the data-parallel rank if there are several. It returns nil on an error: the
// table then shows only the engines' kinds.
func (c *apiClient) engineNames(ctx context.Context) map[uint64]string {
	var health struct {
		Engines []engines.Status `json:"engines"`
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+"/health", nil)
	if err != nil {
		return nil
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	// The body is the same whatever the status.
	if json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&health) != nil {
		return nil
	}
	names := map[uint64]string{}
	for i := range health.Engines {
		e := &health.Engines[i]
		for rank, id := range e.Workers {
			names[id] = e.Name()
			if len(e.Workers) > 1 {
				names[id] += fmt.Sprintf("#%d", rank)
			}
		}
	}
	return names
}

// workerRow is one row of the answer of /v1/router/workers.
type workerRow struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
	Name     string `json:"name"`
	Role     string `json:"role"`
	Addr     string `json:"addr"`
	Model    string `json:"model"`
	Engine   string `json:"engine"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	State    string `json:"state"`
	Problem  string `json:"problem"`
	Load     struct {
		ActiveRequests int `json:"active_requests"`
		Reported       *struct {
			Running     int `json:"running"`
			Waiting     int `json:"waiting"`
			Encoding    int `json:"encoding"`
			Ready       int `json:"ready"`
			Active      int `json:"active"`
			UsedBlocks  int `json:"used_blocks"`
			TotalBlocks int `json:"total_blocks"`
		} `json:"reported"`
	} `json:"load"`
	// Speed is what the router learned, in ms; null of a router process.
	Speed *struct {
		Prefill float64 `json:"prefill_ms_per_1000_tokens"`
		Step    float64 `json:"step_ms"`
	} `json:"speed"`
	CachedBlocks int              `json:"cached_blocks"`
	Warnings     []engine.Warning `json:"warnings"`
	Feed         struct {
		State     string  `json:"state"`
		Guessed   bool    `json:"guessed"`
		LastSeq   uint64  `json:"last_seq"`
		Missing   uint64  `json:"missing"`
		Gaps      uint64  `json:"gaps"`
		Repaired  uint64  `json:"repaired"`
		Described uint64  `json:"described"`
		Orphans   uint64  `json:"orphans"`
		Lagging   bool    `json:"lagging"`
		LagFor    float64 `json:"lag_seconds"`
	} `json:"feed"`
	// Behind are the workers behind a router process; BehindError says why they are not known.
	Behind      []workerRow `json:"behind"`
	BehindError string      `json:"behind_error"`
}

// describeFeed describes the health of a worker's event feed.
func (r *workerRow) describeFeed() string {
	s := r.Feed.State
	if r.Feed.Guessed {
		s += " (guessed)"
	}
	if r.Feed.LastSeq > 0 {
		s += fmt.Sprintf(", event %d", r.Feed.LastSeq)
	}
	if r.Feed.Missing > 0 {
		s += fmt.Sprintf(", %d missing", r.Feed.Missing)
	}
	if r.Feed.Gaps > 0 {
		s += fmt.Sprintf(", %d gaps (%d repaired, %d described)", r.Feed.Gaps, r.Feed.Repaired, r.Feed.Described)
	}
	if r.Feed.Orphans > 0 {
		s += fmt.Sprintf(", %d orphans", r.Feed.Orphans)
	}
	for _, w := range r.Warnings { // the worker's feed can be healthy while its engine's is not
		if !r.Feed.Guessed && w.ConcernsEvents() {
			s += ", " + printable(w.Code)
		}
	}
	if r.Feed.Lagging {
		s += fmt.Sprintf(", lagging for %.0f s", r.Feed.LagFor)
	}
	return s
}

// reportedLoad returns the worker's last report: running and waiting sequences, used and total blocks.
func (r *workerRow) reportedLoad() (running, waiting, used, total string) {
	l := r.Load.Reported
	if l == nil {
		return "?", "?", "?", "?"
	}
	return strconv.Itoa(l.Running), strconv.Itoa(l.Waiting), strconv.Itoa(l.UsedBlocks), strconv.Itoa(l.TotalBlocks)
}

// reportedStates returns the sequences of the worker's last report by state: encoding, ready and active; "-" if its
// engine reports none.
func (r *workerRow) reportedStates() (encoding, ready, active string) {
	l := r.Load.Reported
	switch {
	case l == nil:
		return "?", "?", "?"
	case l.Encoding+l.Ready+l.Active == 0 && l.Running+l.Waiting > 0:
		return "-", "-", "-"
	}
	return strconv.Itoa(l.Encoding), strconv.Itoa(l.Ready), strconv.Itoa(l.Active)
}

// learnedSpeed returns the ms of 1,000 prompt tokens and of a step.
func (r *workerRow) learnedSpeed() (prefill, step string) {
	if r.Speed == nil {
		return "-", "-"
	}
	return fmt.Sprintf("%.1f", r.Speed.Prefill), fmt.Sprintf("%.1f", r.Speed.Step)
}

// printWorkers writes the table of workers. engines names some of their engines.
func printWorkers(w io.Writer, raw []byte, engines map[uint64]string) error {
	var table struct {
		Rows []workerRow `json:"rows"`
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		return fmt.Errorf("answer of the router: %w", err)
	}
	if len(table.Rows) == 0 {
		fmt.Fprintln(w, "no workers")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WORKER\tNAME\tADDRESS\tPID\tRANK\tROLE\tMODEL\tENGINE\tSTATE\tREQUESTS\tRUNNING\tWAITING\tENCODING\tREADY\tACTIVE\tUSED\tCACHED\tBLOCKS\tMS/1K TOKENS\tMS/STEP\tFEED")
	printWorkerRows(tw, table.Rows, engines, "")
	if err := tw.Flush(); err != nil {
		return err
	}
	printProblems(w, table.Rows, "")
	return nil
}

// printWorkerRows writes one line per row, followed by one indented line per worker behind it.
func printWorkerRows(w io.Writer, rows []workerRow, engines map[uint64]string, indent string) {
	for i := range rows {
		r := &rows[i]
		running, waiting, used, total := r.reportedLoad()
		encoding, ready, active := r.reportedStates()
		prefill, step := r.learnedSpeed()
		fmt.Fprintf(w, "%s%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", indent, r.WorkerID,
			cmp.Or(printable(r.Name), r.Host), cmp.Or(printable(r.Addr), "-"), r.PID, r.DPRank, r.Role, r.Model,
			cmp.Or(printable(engines[r.WorkerID]), r.Engine), r.State, r.Load.ActiveRequests, running, waiting, encoding, ready, active, used, r.CachedBlocks, total, prefill, step, r.describeFeed())
		printWorkerRows(w, r.Behind, nil, indent+"  ")
	}
}

// printProblems writes the problems of workers and of those behind them. through names the routers on the
// way.
func printProblems(w io.Writer, rows []workerRow, through string) {
	for i := range rows {
		r := &rows[i]
		worker := fmt.Sprintf("worker %d rank %d%s", r.WorkerID, r.DPRank, through)
		if r.Problem != "" {
			fmt.Fprintf(w, "\n%s: %s\n", worker, r.Problem)
		}
		if r.BehindError != "" {
			fmt.Fprintf(w, "\n%s: what is behind it is not known: %s\n", worker, printable(r.BehindError))
		}
		for _, of := range r.Warnings {
			fmt.Fprintf(w, "\n%s: %s: %s\n", worker, printableLines(of.Code), printableLines(of.Detail))
			if of.Remedy != "" {
				fmt.Fprintf(w, "  -> %s\n", printableLines(of.Remedy))
			}
		}
		printProblems(w, r.Behind, fmt.Sprintf("%s behind router %d", through, r.WorkerID))
	}
}
