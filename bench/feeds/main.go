// Command feeds measures how fast one router takes in the cache events of many engines: 64 engines publish
// over ZeroMQ as vLLM does, and "penstock up" with an adapter for each decodes the batches, converts them to
// its own hashes, publishes those on its event plane, and its router applies them. The engines are one
// process, Penstock another, both on this machine.
//
//	go build -o penstock ./cmd/penstock && go run ./bench/feeds -bin ./penstock -model DIR
//
// DIR is a checkpoint's directory, for its tokenizer. At one rate after another it reports how many events
// and blocks a second were applied, the router's lag when the engines stopped, the time to catch up, losses,
// and Penstock's CPU use. An event stores or removes 32 blocks of 16 tokens.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"penstock/bench/child"
)

const (
	runTimeout     = 15 * time.Minute
	catchUpTimeout = 2 * time.Minute // for a router to catch up
)

type feedSettings struct {
	bin     string
	model   string
	engines int
	rates   string
	window  time.Duration
	asJSON  bool
	verbose bool
}

func main() {
	var s feedSettings
	role := flag.String("role", "", "engines; empty measures")
	flag.StringVar(&s.bin, "bin", "./penstock", "the binary")
	flag.StringVar(&s.model, "model", "", "directory of a checkpoint: config.json, tokenizer.json")
	flag.IntVar(&s.engines, "engines", 64, "engines")
	flag.StringVar(&s.rates, "rates", "0,1000,5000,10000,20000,40000,80000", "events a second of all engines together, one measurement each")
	flag.DurationVar(&s.window, "for", 8*time.Second, "how long each measurement takes")
	flag.BoolVar(&s.asJSON, "json", false, "print one JSON document")
	flag.BoolVar(&s.verbose, "v", false, "show what the processes say")
	flag.Parse()
	child.Main("bench/feeds", runTimeout, func(ctx context.Context) error {
		if *role == "engines" {
			return runEngines(s.engines, s.model)
		}
		return s.measureRates(ctx)
	})
}

// rateRow is one measurement.
type rateRow struct {
	Rate    float64 `json:"offered_events_per_s"`
	Applied float64 `json:"applied_events_per_s"`
	Blocks  float64 `json:"applied_blocks_per_s"`
	// Behind is the router's lag when the engines stopped, in events, and CatchUp the time to apply it.
	Behind  float64 `json:"behind_events"`
	CatchUp float64 `json:"catch_up_s"`
	// Dropped are batches which Penstock was too slow for, Gaps the losses which it detected.
	Dropped float64 `json:"dropped_batches"`
	Gaps    float64 `json:"gaps"`
	// CPU is the number of processors which Penstock used.
	CPU float64 `json:"cpus"`
}

func (s *feedSettings) measureRates(ctx context.Context) (err error) {
	if s.model, err = filepath.Abs(s.model); err != nil {
		return err
	}
	log := os.Stderr
	if !s.verbose {
		if log, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return err
		}
		defer log.Close()
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fleet, err := child.StartProcess(ctx, log, self, "-role", "engines", "-engines", strconv.Itoa(s.engines), "-model", s.model)
	if err != nil {
		return err
	}
	defer fleet.StopProcess()
	argv := []string{s.bin, "up", "--json", "--http-addr", "127.0.0.1:0", "--model-path", s.model, "--served-model-name", "bench"}
	for _, spec := range strings.Fields(fleet.URL) {
		argv = append(argv, "--engine", spec)
	}
	penstock, err := child.StartProcess(ctx, log, argv...)
	if err != nil {
		return fmt.Errorf("%w (-v shows what it says)", err)
	}
	defer penstock.StopProcess()
	m := &feedMeter{engines: fleet, penstock: penstock}
	if err := m.awaitConnected(ctx, s.engines); err != nil {
		return err
	}
	var rows []rateRow
	fmt.Fprintf(os.Stderr, "%10s %12s %12s %9s %9s %8s %6s %6s\n", "events/s", "applied/s", "blocks/s", "behind", "catch-up", "dropped", "gaps", "CPUs")
	for _, text := range strings.Split(s.rates, ",") {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		r, err := m.measureRate(ctx, rate, s.window)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%10.0f %12.0f %12.0f %9.0f %8.2fs %8.0f %6.0f %6.2f\n", r.Rate, r.Applied, r.Blocks, r.Behind, r.CatchUp, r.Dropped, r.Gaps, r.CPU)
		rows = append(rows, r)
	}
	if s.asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"engines": s.engines, "blocks_per_event": blocksPerEvent, "rows": rows})
	}
	return nil
}

type feedMeter struct{ engines, penstock *child.Process }

// askEngines sends a command to the engines and returns their counts.
func (m *feedMeter) askEngines(line string) (engineCounts, error) {
	var s engineCounts
	answer, err := m.engines.SendLine(line)
	if err == nil {
		err = json.Unmarshal([]byte(answer), &s)
	}
	return s, err
}

// awaitConnected waits until all publishers have a subscriber.
func (m *feedMeter) awaitConnected(ctx context.Context, n int) error {
	return pollUntil(ctx, func() (bool, error) {
		s, err := m.askEngines("stop")
		return s.Subscribers >= n, err
	})
}

// pollUntil polls until so returns true.
func pollUntil(ctx context.Context, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// penstockCounts are counts of Penstock's metrics.
type penstockCounts struct{ applied, gaps float64 }

func (m *feedMeter) readCounts(ctx context.Context) (c penstockCounts, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.penstock.URL+"/metrics", nil)
	if err != nil {
		return c, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(name, "penstock_index_events_total{") && strings.Contains(name, `outcome="apply"`) && !strings.Contains(name, "cleared"):
			c.applied += v
		case name == "penstock_feed_gaps_total", strings.HasPrefix(name, "penstock_engine_event_gaps_total"):
			c.gaps += v
		}
	}
	return c, nil
}

// measureRate measures one rate.
func (m *feedMeter) measureRate(ctx context.Context, rate float64, window time.Duration) (rateRow, error) {
	first, err := m.askEngines("stop")
	if err != nil {
		return rateRow{}, err
	}
	before, err := m.readCounts(ctx)
	if err != nil {
		return rateRow{}, err
	}
	cpu, err := m.penstock.CPUTime()
	if err != nil {
		return rateRow{}, err
	}
	began := time.Now()
	// A batch is two events once the caches are full.
	if _, err := m.askEngines("rate " + strconv.FormatFloat(rate/2, 'f', -1, 64)); err != nil {
		return rateRow{}, err
	}
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return rateRow{}, ctx.Err()
	}
	last, err := m.askEngines("stop")
	if err != nil {
		return rateRow{}, err
	}
	stopped := time.Now()
	c, err := m.readCounts(ctx)
	if err != nil {
		return rateRow{}, err
	}
	spent, err := m.penstock.CPUTime()
	if err != nil {
		return rateRow{}, err
	}
	r := rateRow{Rate: rate, Behind: float64(last.Events-first.Events) - (c.applied - before.applied), Dropped: float64(last.Dropped - first.Dropped)}
	took := stopped.Sub(began).Seconds()
	r.CPU = (spent - cpu).Seconds() / took
	still, since := c.applied, time.Now()
	err = pollUntil(ctx, func() (bool, error) {
		if c, err = m.readCounts(ctx); err != nil {
			return false, err
		}
		if c.applied != still {
			still, since = c.applied, time.Now()
		}
		return c.applied-before.applied >= float64(last.Events-first.Events) || time.Since(since) > 3*time.Second, nil
	})
	if err != nil {
		return rateRow{}, err
	}
	r.CatchUp = since.Sub(stopped).Seconds()
	r.Applied = (c.applied - before.applied) / (took + max(0, r.CatchUp))
	r.Blocks, r.Gaps = r.Applied*blocksPerEvent, c.gaps-before.gaps
	return r, nil
}
