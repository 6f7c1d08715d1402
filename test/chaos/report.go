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
type chaosReport struct {
	Date      string            `json:"date"`
	Commit    string            `json:"commit"`
	Machine   string            `json:"machine"`
	Go        string            `json:"go"`
	Seed      uint64            `json:"seed"`
	Form      string            `json:"form"` // long or short
	Scenarios []*scenarioResult `json:"scenarios"`
}

func newChaosReport(seed uint64, form string) *chaosReport {
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	return &chaosReport{
		Date: time.Now().UTC().Format(time.DateOnly), Commit: strings.TrimSpace(string(commit)),
		Machine: fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Go: runtime.Version(),
		Seed: seed, Form: form,
	}
}

// scenarioResult is the result of one scenario.
type scenarioResult struct {
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

	Figures  []reportFigure `json:"figures,omitempty"`
	Problems []string       `json:"problems,omitempty"` // why it failed
	Notes    []string       `json:"notes,omitempty"`

	excused string // log lines with this are expected; "" is none
}

// reportFigure is a measured number; times are in milliseconds.
type reportFigure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *scenarioResult) addFigure(name string, v float64, unit string) {
	r.Figures = append(r.Figures, reportFigure{name, math.Round(v*1000) / 1000, unit})
}

func (r *scenarioResult) addTime(name string, d time.Duration) {
	r.addFigure(name, float64(d.Microseconds())/1000, "ms")
}

// addDurations adds the figures of a sample.
func (r *scenarioResult) addDurations(name string, d *fleet.Durations) {
	r.addFigure(name+", count", float64(d.Count()), "")
	r.addTime(name+", p50", d.Percentile(50))
	r.addTime(name+", p99", d.Percentile(99))
	r.addTime(name+", max", d.Max())
}

func (r *scenarioResult) addProblem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *scenarioResult) addNote(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// addCounts adds the outcomes of requests.
func (r *scenarioResult) addCounts(t *fleet.OutcomeCounts) {
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
func (r *scenarioResult) requireFlawless(t *fleet.OutcomeCounts) {
	r.addCounts(t)
	r.requireRight(t)
	if t.Failed+t.Refused > 0 {
		r.addProblem("%d requests failed and %d were refused of %d: %v", t.Failed, t.Refused, t.Sent, t.Errors)
	}
	if t.Right == 0 {
		r.addProblem("no request was answered")
	}
}

// requireRight demands that every response is right.
func (r *scenarioResult) requireRight(t *fleet.OutcomeCounts) {
	if t.CountWrong() > 0 {
		r.addProblem("%d answers are not what they should be: %s", t.CountWrong(), strings.Join(t.Differences, "\n"))
	}
}

// printTable writes the table, then the details of each scenario.
func (rep *chaosReport) printTable(w io.Writer) error {
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
			fmt.Fprintf(w, "  note: %s\n", indentText(n))
		}
		for _, p := range r.Problems {
			fmt.Fprintf(w, "  PROBLEM: %s\n", indentText(p))
		}
	}
	return nil
}

func indentText(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ") }

func (rep *chaosReport) writeFile(file string) error {
	data, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

func (rep *chaosReport) failedScenarios() (names []string) {
	for _, r := range rep.Scenarios {
		if r.Status == "failed" {
			names = append(names, r.Scenario)
		}
	}
	return names
}
