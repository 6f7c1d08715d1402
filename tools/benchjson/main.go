// Command benchjson turns the output of "go test -bench" on standard input into one JSON document with the
// machine, the Go version and the commit, as kept under bench/results.
//
//	go test -run '^$' -bench . ./core/kv | go run ./tools/benchjson >result.json
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// Document is the record of one run.
type Document struct {
	Commit     string `json:"commit"`
	Go         string `json:"go"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	Experiment string `json:"goexperiment,omitempty"`
	Rows       []Row  `json:"rows"`
	Latency    any    `json:"latency,omitempty"` // the output of test/latency
}

// Row is one benchmark.
type Row struct {
	Package string             `json:"package"`
	Name    string             `json:"name"`
	Runs    int                `json:"runs"`
	Metrics map[string]float64 `json:"metrics"` // by unit
}

func main() {
	doc := Document{
		Commit: headCommit(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), Experiment: os.Getenv("GOEXPERIMENT"),
	}
	if err := doc.readBenchmarks(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "benchjson:", err)
		os.Exit(1)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", " ")
	if err := enc.Encode(doc); err != nil {
		fmt.Fprintln(os.Stderr, "benchjson:", err)
		os.Exit(1)
	}
}

func headCommit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// readBenchmarks reads the lines of a benchmark run, and lines of JSON as the latency.
func (d *Document) readBenchmarks(in io.Reader) error {
	pkg := ""
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "pkg: "):
			pkg = strings.TrimPrefix(line, "pkg: ")
		case strings.HasPrefix(line, "cpu: "):
			d.CPU = strings.TrimPrefix(line, "cpu: ")
		case strings.HasPrefix(line, "{"):
			if err := json.Unmarshal([]byte(line), &d.Latency); err != nil {
				return err
			}
		case strings.HasPrefix(line, "Benchmark"):
			if row, ok := parseBenchLine(pkg, line); ok {
				d.Rows = append(d.Rows, row)
			}
		case strings.HasPrefix(line, "FAIL"), strings.HasPrefix(line, "--- FAIL"):
			return fmt.Errorf("a benchmark failed: %s", line)
		}
	}
	return lines.Err()
}

// parseBenchLine reads "BenchmarkName-4 runs value unit value unit …".
func parseBenchLine(pkg, line string) (Row, bool) {
	f := strings.Fields(line)
	if len(f) < 4 {
		return Row{}, false
	}
	runs, err := strconv.Atoi(f[1])
	if err != nil {
		return Row{}, false
	}
	row := Row{Package: pkg, Name: strings.TrimPrefix(f[0], "Benchmark"), Runs: runs, Metrics: map[string]float64{}}
	for i := 2; i+1 < len(f); i += 2 {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return Row{}, false
		}
		row.Metrics[f[i+1]] = v
	}
	return row, true
}
