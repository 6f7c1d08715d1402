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

// report is what a run of the program found.
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

// result is what one scenario found.
type result struct {
	Scenario string  `json:"scenario"`
	Status   string  `json:"status"` // ok, failed or skipped
	Took     float64 `json:"took_s"`

	Sent       int `json:"sent"`
	Right      int `json:"right"`
	Failed     int `json:"failed"`
	Refused    int `json:"refused"` // with Retry-After
	Left       int `json:"left"`    // given up by the client
	Doomed     int `json:"doomed"`  // streams of a frontend that was killed, which cannot go on
	Duplicated int `json:"duplicated"`
	Missing    int `json:"missing"`
	Altered    int `json:"altered"`
	Moved      int `json:"moved"` // answers that changed their worker
	// Tokens that came twice or not at all, in all answers.
	DuplicatedTokens int `json:"duplicated_tokens"`
	MissingTokens    int `json:"missing_tokens"`

	Figures  []figure `json:"figures,omitempty"`
	Problems []string `json:"problems,omitempty"` // why it failed
	Notes    []string `json:"notes,omitempty"`

	excused string // lines of logs with this are as they must be; "" is none
}

// figure is a measured number; times are in milliseconds.
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

// times states a sample.
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

// count adds what became of requests.
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

// flawless counts requests of which each must have been answered, and right.
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

// right demands that every answer there is, is the one that is known.
func (r *result) right(t *fleet.Tally) {
	if t.Wrong() > 0 {
		r.problem("%d answers are not what they should be: %s", t.Wrong(), strings.Join(t.Differences, "\n"))
	}
}

// print writes the table, then what each scenario has to say.
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
