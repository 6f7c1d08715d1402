package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"penstock/test/fleet"
)

// chaosReport is the result of a run of the program.
type report struct {
	Date      string    `json:"date"`
	Commit    string    `json:"commit"`
	Machine   string    `json:"machine"`
	Go        string    `json:"go"`
	Seed      uint64    `json:"seed"`
	Form      string    `json:"form"` // long or short
	Scenarios []*result `json:"scenarios"`
}

func newReport(seed uint64, form string) *report {
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	return &report{
		Date: time.Now().UTC().Format(time.DateOnly), Commit: strings.TrimSpace(string(commit)),
		Machine: fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Go: runtime.Version(),
		Seed: seed, Form: form,
	}
}

// scenarioResult is the result of one scenario.
type result struct {
	Scenario string  `json:"scenario"`
	Status   string  `json:"status"` // ok, failed or skipped
	Took     float64 `json:"took_s"`

	Sent       int `json:"sent"`
	Right      int `json:"right"`
	Failed     int `json:"failed"`
	Refused    int `json:"refused"` // with Retry-After
	Left       int `json:"left"`    // aborted by the client
	Doomed     int `json:"doomed"`  // streams of a killed frontend, which cannot continue
	Duplicated int `json:"duplicated"`
	Missing    int `json:"missing"`
	Altered    int `json:"altered"`
	Moved      int `json:"moved"` // responses which changed their worker
	// Duplicated and missing tokens, in all responses.
	DuplicatedTokens int `json:"duplicated_tokens"`
	MissingTokens    int `json:"missing_tokens"`

	Figures  []figure `json:"figures,omitempty"`
	Problems []string `json:"problems,omitempty"` // why it failed
	Notes    []string `json:"notes,omitempty"`

	excused string // log lines with this are expected; "" is none
}

// reportFigure is a measured number; times are in milliseconds.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *result) figure(name string, v float64, unit string) {
	r.Figures = append(r.Figures, figure{name, math.Round(v*1000) / 1000, unit})
}

func (r *result) time(name string, d time.Duration) {
	r.figure(name, float64(d.Microseconds())/1000, "ms")
}

// addDurations adds the figures of a sample.
func (r *result) times(name string, d *fleet.Durations) {
	r.figure(name+", count", float64(d.Count()), "")
	r.time(name+", p50", d.Percentile(50))
	r.time(name+", p99", d.Percentile(99))
	r.time(name+", max", d.Max())
}

func (r *result) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// addCounts adds the outcomes of requests.
func (r *result) count(t *fleet.Tally) {
	r.Sent += t.Sent
	r.Right += t.Right
	r.Failed += t.Failed
	r.Refused += t.Refused
	r.Left += t.Left
	r.Duplicated += t.Duplicated
	r.Missing += t.Missing
	r.Altered += t.Altered
	r.Moved += t.Moved
	r.DuplicatedTokens += t.DuplicatedTokens
	r.MissingTokens += t.MissingTokens
}

// requireFlawless counts requests which all must have a right response.
func (r *result) flawless(t *fleet.Tally) {
	r.count(t)
	r.right(t)
	if t.Failed+t.Refused > 0 {
		r.problem("%d requests failed and %d were refused of %d: %v", t.Failed, t.Refused, t.Sent, t.Errors)
	}
	if t.Right == 0 {
		r.problem("no request was answered")
	}
}

// requireRight demands that every response is right.
func (r *result) right(t *fleet.Tally) {
	if t.Wrong() > 0 {
		r.problem("%d answers are not what they should be: %s", t.Wrong(), strings.Join(t.Differences, "\n"))
	}
}

// printTable writes the table, then the details of each scenario.
func (rep *report) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "SCENARIO\tSTATUS\tTOOK\tSENT\tRIGHT\tFAILED\tREFUSED\tLEFT\tDOOMED\tDUPLICATED\tMISSING\tALTERED\tMOVED\t")
	for _, r := range rep.Scenarios {
		fmt.Fprintf(table, "%s\t%s\t%.0fs\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Scenario, r.Status, r.Took,
			r.Sent, r.Right, r.Failed, r.Refused, r.Left, r.Doomed, r.Duplicated, r.Missing, r.Altered, r.Moved)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range rep.Scenarios {
		fmt.Fprintf(w, "\n%s: %s\n", r.Scenario, r.Status)
		for _, f := range r.Figures {
			fmt.Fprintf(w, "  %-60s %g %s\n", f.Name, f.Value, f.Unit)
		}
		for _, n := range r.Notes {
			fmt.Fprintf(w, "  note: %s\n", indent(n))
		}
		for _, p := range r.Problems {
			fmt.Fprintf(w, "  PROBLEM: %s\n", indent(p))
		}
	}
	return nil
}

func indent(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ") }

func (rep *report) write(file string) error {
	data, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

func (rep *report) failed() (names []string) {
	for _, r := range rep.Scenarios {
		if r.Status == "failed" {
			names = append(names, r.Scenario)
		}
	}
	return names
}
