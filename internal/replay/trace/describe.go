package trace

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"penstock/core/splitmix"
	"penstock/internal/replay"
)

// Summary describes a workload.
type Summary struct {
	Requests int `json:"requests"`
	// Failed counts rows of requests without a response; they are not part of the workload.
	Failed   int `json:"failed_rows"`
	Sessions int `json:"sessions"`
	// Span is from the first request to the last, in seconds; 0 for a workload without times.
	Span   float64 `json:"span_s"`
	Input  Lengths `json:"input_tokens"`
	Output Lengths `json:"output_tokens"` // of requests which have it

	// Blocks counts the named blocks of prompts, Unique their distinct names. Hit is the share which one
	// unbounded cache would have: blocks which follow the same blocks in an earlier prompt.
	Blocks int64   `json:"blocks"`
	Unique int64   `json:"unique_blocks"`
	Hit    float64 `json:"infinite_cache_hit"`
}

// Lengths describes token counts.
type Lengths struct {
	Total int64   `json:"total"`
	Mean  float64 `json:"mean"`
	P50   int     `json:"p50"`
	P95   int     `json:"p95"`
	Max   int     `json:"max"`
}

// Describe reads w once. It keeps a few bytes for each unique block and each session, and a count per length.
func Describe(w replay.Workload) (_ Summary, err error) {
	from, err := w.Open()
	if err != nil {
		return Summary{}, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	d := summaryBuilder{
		names:    map[int64]struct{}{},
		chains:   map[uint64]struct{}{},
		sessions: map[string]struct{}{},
		input:    lengthCounts{},
		output:   lengthCounts{},
	}
	var r replay.Request
	for {
		switch err := from.Next(&r); err {
		case nil:
			d.addRequest(&r)
			continue
		case io.EOF:
		default:
			return Summary{}, err
		}
		break
	}
	if f, ok := from.(interface{ Failed() int }); ok {
		d.summary.Failed = f.Failed()
	}
	return d.buildSummary(), nil
}

// summaryBuilder builds a summary.
type summaryBuilder struct {
	summary  Summary
	names    map[int64]struct{}
	chains   map[uint64]struct{} // prefixes, by a hash of their block names
	sessions map[string]struct{}
	hits     int64
	input    lengthCounts
	output   lengthCounts
}

func (d *summaryBuilder) addRequest(r *replay.Request) {
	d.summary.Requests++
	if r.At > 0 {
		d.summary.Span = max(d.summary.Span, r.At.Seconds())
	}
	if _, known := d.sessions[r.Session]; !known && r.Session != "" {
		d.sessions[strings.Clone(r.Session)] = struct{}{} // the row's memory is not kept
	}
	d.input[r.Input]++
	if r.Output > 0 {
		d.output[r.Output]++
	}
	chain := uint64(r.BlockTokens)
	for _, name := range r.Blocks {
		d.names[name] = struct{}{}
		chain = splitmix.Mix(chain ^ splitmix.Mix(uint64(name)+splitmix.Step))
		if _, ok := d.chains[chain]; ok {
			d.hits++
			continue
		}
		d.chains[chain] = struct{}{}
	}
	d.summary.Blocks += int64(len(r.Blocks))
}

func (d *summaryBuilder) buildSummary() Summary {
	s := d.summary
	s.Sessions, s.Unique = len(d.sessions), int64(len(d.names))
	s.Input, s.Output = d.input.toLengths(), d.output.toLengths()
	if s.Blocks > 0 {
		s.Hit = float64(d.hits) / float64(s.Blocks)
	}
	return s
}

// lengthCounts counts each length.
type lengthCounts map[int]int64

func (l lengthCounts) toLengths() Lengths {
	var sorted []int
	var count int64
	var out Lengths
	for n, times := range l {
		sorted = append(sorted, n)
		count += times
		out.Total += int64(n) * times
	}
	if count == 0 {
		return out
	}
	slices.Sort(sorted)
	out.Mean = float64(out.Total) / float64(count)
	out.Max = sorted[len(sorted)-1]
	var below int64
	for _, n := range sorted {
		if below <= count/2 {
			out.P50 = n
		}
		if below <= count*95/100 {
			out.P95 = n
		}
		below += l[n]
	}
	return out
}

// WriteTo writes the summary as a table.
func (s Summary) WriteTo(w io.Writer) (int64, error) {
	counted := &countingWriter{to: w}
	t := tabwriter.NewWriter(counted, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "requests\t%d\n", s.Requests)
	if s.Failed > 0 {
		fmt.Fprintf(t, "left out, without an answer\t%d\n", s.Failed)
	}
	if s.Sessions > 0 {
		fmt.Fprintf(t, "sessions\t%d\n", s.Sessions)
	}
	if s.Span > 0 {
		fmt.Fprintf(t, "span\t%v, %.3g requests a second\n", time.Duration(s.Span*float64(time.Second)).Round(time.Millisecond), float64(s.Requests)/s.Span)
	}
	for _, l := range []struct {
		name string
		of   Lengths
	}{{"input tokens", s.Input}, {"output tokens", s.Output}} {
		fmt.Fprintf(t, "%s\tmean %.0f, p50 %d, p95 %d, max %d\n", l.name, l.of.Mean, l.of.P50, l.of.P95, l.of.Max)
	}
	if s.Blocks > 0 {
		fmt.Fprintf(t, "blocks\t%d, of which %d unique\n", s.Blocks, s.Unique)
		fmt.Fprintf(t, "an unbounded cache has\t%.1f %% of them\n", 100*s.Hit)
	} else {
		fmt.Fprintf(t, "blocks\tnot known: what prompts share is not said\n")
	}
	err := t.Flush()
	return counted.n, err
}

// countingWriter counts the bytes written.
type countingWriter struct {
	to io.Writer
	n  int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}
