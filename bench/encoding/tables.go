package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"penstock/core/media"
)

// The sizes of the published description: rows of a picture and of a video of 30 frames for a model of width 4,096, of a
// video of 120 frames for one of width 8,192, in elements of 2 bytes.
const (
	pictureRows, videoRows, longVideoRows = 1024, 3840, 7680
	rowBytes, longRowBytes                = 4096 * 2, 8192 * 2
)

// videoRequests are 100 requests with a video of 120 frames each: 125,829,120 bytes of rows.
func videoRequests() []objectRequest {
	all := make([]objectRequest, 100)
	for i := range all {
		all[i] = objectRequest{media.Video, longVideoRows, longRowBytes}
	}
	return all
}

// mixedRequests are 64 requests with 38 GB of K and V: at tokenKV that is 1,812 tokens of each on average, which 18
// videos of 30 frames and 46 pictures have.
func mixedRequests() []objectRequest {
	var all []objectRequest
	for i := range 64 {
		if i*18/64 != (i+1)*18/64 {
			all = append(all, objectRequest{media.Video, videoRows, rowBytes})
		} else {
			all = append(all, objectRequest{media.Image, pictureRows, rowBytes})
		}
	}
	return all
}

// tokenKV is the size of K and V of a token of Llama 70B: 80 layers with 8 heads of 128 elements of 2 bytes.
const tokenKV = 2 * 80 * 8 * 128 * 2

// residentSlack is how much more than its mapped rows the process may hold resident: its own heap and stacks.
const residentSlack = 32 << 20

// chartRow is one bar of the published chart of 64 requests, in GB; Ours is -1 where nothing here has it.
type chartRow struct {
	What      string  `json:"what"`
	Published float64 `json:"published_gb"`
	Ours      float64 `json:"ours_gb"`
	How       string  `json:"how"`
}

// chartOf puts a run of the mixed requests beside the chart.
func chartOf(all []objectRequest, f *memoryFigures) []chartRow {
	tokens := 0
	for _, r := range all {
		tokens += r.tokens
	}
	const gb = 1e9
	return []chartRow{
		{"weights", 140, -1, "no part of this"},
		{"KV cache, text", 12, float64(64*256*tokenKV) / gb, "256 tokens of each request"},
		{"KV cache, media", 38, float64(tokens*tokenKV) / gb, fmt.Sprintf("%d tokens of 18 videos and 46 pictures", tokens)},
		{"encoded rows", -1, float64(f.CPU) / gb, "most at a time, of the budget; the chart has none"},
		{"staging", 4, float64(f.Staging) / gb, "most at a time"},
		{"activations and more", 6, -1, "no part of this"},
		{"resident memory of the shell", -1, float64(f.Resident) / gb, "from the kernel"},
	}
}

// benchmark is a figure of go test -bench beside its bound.
type benchmark struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Bound float64 `json:"bound,omitempty"`
	// Ratio is the value over the bound; for a bound from below the bound over the value. At most 1 is within.
	Ratio float64 `json:"ratio,omitempty"`
}

// bounds are the published ones, by benchmark and unit.
var bounds = []struct {
	prefix, unit string
	bound        float64
	least        bool
}{
	{"BenchmarkSubmit/", "ns/op", 100_000, false},
	{"BenchmarkMerge/positions", "median-ns", 300_000, false},
	{"BenchmarkMerge/entry/", "ns/op", 0, false},
	{"BenchmarkStage/64KiB", "of-plain", 0, true}, // the published sizes are 6 to 125 MB
	{"BenchmarkStage/1024KiB", "of-plain", 0.8, true},
	{"BenchmarkStage/16384KiB", "of-plain", 0.8, true},
	{"BenchmarkStage/", "GB/s", 0, true},
}

// readBenchmarks reads the figures of the benchmarks which have a place in bounds.
func readBenchmarks(file string) (all []benchmark, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		for i := 2; i+1 < len(fields); i += 2 {
			for _, b := range bounds {
				if !strings.HasPrefix(fields[0], b.prefix) || fields[i+1] != b.unit {
					continue
				}
				v, err := strconv.ParseFloat(fields[i], 64)
				if err != nil {
					return nil, fmt.Errorf("%s: %q: %w", file, lines.Text(), err)
				}
				row := benchmark{Name: fields[0], Value: v, Unit: b.unit, Bound: b.bound}
				switch {
				case b.bound == 0:
				case b.least:
					row.Ratio = b.bound / v
				default:
					row.Ratio = v / b.bound
				}
				all = append(all, row)
			}
		}
	}
	if len(all) == 0 && lines.Err() == nil {
		return nil, fmt.Errorf("%s has none of the benchmarks: run tools/bench/encoding.sh", file)
	}
	return all, lines.Err()
}

// findViolations returns what is beyond its bound.
func findViolations(s *encodingSettings, d *encodingDocument) (all []string) {
	for _, b := range d.Benchmarks {
		if b.Ratio > 1 {
			all = append(all, fmt.Sprintf("%s: %g %s, bound %g", b.Name, b.Value, b.Unit, b.Bound))
		}
	}
	for _, f := range []*memoryFigures{&d.Videos, &d.Requests} {
		if f.CPU > s.cpu || f.Staging > s.staging || f.Mapped > s.cpu+s.staging || f.Resident > s.cpu+s.staging+residentSlack || f.Wrong > 0 || f.Left != 0 {
			all = append(all, fmt.Sprintf("%d requests: %+v", f.Requests, *f))
		}
	}
	return all
}

func printTables(w io.Writer, s *encodingSettings, d *encodingDocument) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "ONE CORE\tVALUE\t\tBOUND\tOF BOUND\t\n")
	for _, b := range d.Benchmarks {
		bound, ratio := "", ""
		if b.Bound > 0 {
			bound, ratio = fmt.Sprint(b.Bound), fmt.Sprintf("%.3f", b.Ratio)
		}
		fmt.Fprintf(table, "%s\t%.4g\t%s\t%s\t%s\t\n", b.Name, b.Value, b.Unit, bound, ratio)
	}
	_ = table.Flush()
	const mb = 1e6
	fmt.Fprintf(table, "\nMB\tROWS\tMOST ENCODED\tMOST STAGED\tMOST MAPPED\tMOST RESIDENT\tWRONG\tLEFT\tTOOK\t\n")
	for _, f := range []*memoryFigures{&d.Videos, &d.Requests} {
		fmt.Fprintf(table, "%d requests\t%.0f\t%.0f of %.0f\t%.0f of %.0f\t%.0f\t%.0f\t%d\t%d\t%.1f s\t\n", f.Requests, float64(f.Rows)/mb,
			float64(f.CPU)/mb, float64(s.cpu)/mb, float64(f.Staging)/mb, float64(s.staging)/mb, float64(f.Mapped)/mb, float64(f.Resident)/mb, f.Wrong, f.Left, f.Seconds)
	}
	_ = table.Flush()
	fmt.Fprintf(table, "\nGB OF 64 REQUESTS\tPUBLISHED\tHERE\t\t\n")
	for _, c := range d.Chart {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t\n", c.What, formatGB(c.Published), formatGB(c.Ours), c.How)
	}
	_ = table.Flush()
}

func formatGB(v float64) string {
	if v < 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
