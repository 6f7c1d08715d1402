package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"penstock/internal/replay"
)

// machines is the number of simulated GPUs.
const machines = 8

// cacheGiB is the size of a simulated embedding cache: 1,280 pictures.
const cacheGiB = 10

// slowEncoder is the table of the encoder which takes 66 ms for a picture of 1,024 tokens.
const slowEncoder = "256:12,1024:66"

func (s *settings) describeSimulated() string {
	return fmt.Sprintf("%d GPUs (sim, model of time mocker), router by its default mode, caches of %d GiB; throughput is measured with all requests sent at the start", machines, cacheGiB)
}

// simulatedWay is how a simulated cluster encodes. args are flags of replay.
type simulatedWay struct {
	name              string
	workers, encoders int
	cache             int // GiB
	args              []string
}

// flags returns the flags of replay for the way.
func (w *simulatedWay) flags() []string {
	return append([]string{
		"--sim-encoders", "0", "--workers", strconv.Itoa(w.workers), "--encode-workers", strconv.Itoa(w.encoders),
		"--embedding-cache-capacity-gb", strconv.Itoa(w.cache),
	}, w.args...)
}

// The flags of ways whose workers do not share what they hold, and whose router does not prefer holders.
const (
	notFetched   = "--embedding-fetch=off"
	notPreferred = "--router-affinity-weights=1,0.1,1,0"
)

func simulatedWays() []simulatedWay {
	return []simulatedWay{
		{wayOff, machines, 0, 0, nil},
		{wayAlone, machines, 0, cacheGiB, []string{notFetched, notPreferred}},
		{waySessions, machines, 0, cacheGiB, []string{notFetched, notPreferred, "--router-session-affinity", "soft"}},
		{"…, holders are preferred", machines, 0, cacheGiB, []string{notFetched}},
		{wayShared, machines, 0, cacheGiB, []string{notPreferred}},
		{"…, holders are preferred", machines, 0, cacheGiB, nil},
		{"7 workers, 1 encodes", machines - 1, 1, cacheGiB, nil},
		{"6 workers, 2 encode", machines - 2, 2, cacheGiB, nil},
	}
}

// simulateAll runs all traffics in all ways.
func (s *settings) simulateAll(ctx context.Context) (rows []row, err error) {
	share := strconv.FormatFloat(1-s.repeated, 'g', 3, 64)
	n := strconv.Itoa(s.requests)
	// atOnce is the same traffic with all requests sent at once, for throughput.
	for _, traffic := range []struct{ name, generate, rate, atOnce string }{
		{fmt.Sprintf("%.0f %% repeated", 100*s.repeated), "images:before=400,input=32,output=150,vary=0,new=" + share + ",requests=" + n, ",rate=40", ",rate=1e6"},
		{"unique", "images:before=400,input=32,output=150,vary=0,new=1,requests=" + n, ",rate=40", ",rate=1e6"},
		{"window of 5 pictures", "window:requests=" + n, ",rate=1", ",rate=1e6,think=0s"},
	} {
		for _, encoder := range []struct{ name, table string }{
			{"1024: 4.8 ms", "1024:4.8,6144:12.3"},
			{"1024: 66 ms", slowEncoder},
		} {
			for _, way := range simulatedWays() {
				if way.name == waySessions && !strings.HasPrefix(traffic.generate, "window") {
					continue // there are no sessions
				}
				args := append(way.flags(), "--policy", "time", "--sim-encoder", encoder.table)
				r, err := s.simulate(ctx, nil, append(args, "--generate", traffic.generate+traffic.rate)...)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", traffic.name, way.name, err)
				}
				full, err := s.simulate(ctx, nil, append(args, "--generate", traffic.generate+traffic.atOnce)...)
				if err != nil {
					return nil, fmt.Errorf("%s at once, %s: %w", traffic.name, way.name, err)
				}
				r.RequestsPerSecond = full.RequestsPerSecond
				r.Traffic, r.Encoder, r.Way, r.Workers, r.EncodeWorkers = traffic.name, encoder.name, way.name, way.workers, way.encoders
				if r.Different, err = s.countDifferent(traffic.generate); err != nil {
					return nil, err
				}
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// simulate runs penstock replay once. trace is its standard input.
func (s *settings) simulate(ctx context.Context, trace io.Reader, args ...string) (row, error) {
	args = append([]string{"replay", "--seed", strconv.FormatUint(s.seed, 10), "--jobs", "1", "--json"}, args...)
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, s.bin, args...)
	cmd.Stdin = trace
	cmd.Stdout, cmd.Stderr = &said, os.Stderr
	if err := cmd.Run(); err != nil {
		return row{}, err
	}
	var result replay.Result
	if err := json.Unmarshal(said.Bytes(), &result); err != nil {
		return row{}, fmt.Errorf("read what replay says: %w", err)
	}
	if len(result.Rows) != 1 || result.Rows[0].Embeddings == nil {
		return row{}, fmt.Errorf("replay says %d rows, or nothing of embeddings", len(result.Rows))
	}
	r := &result.Rows[0]
	out := newRow(r)
	use := r.Embeddings
	out.Pictures, out.EncoderRuns, out.HitShare, out.Misses, out.Fetched = use.Objects, use.EncoderRuns, use.HitShare, use.Misses, use.Fetched
	out.RequestsPerSecond = r.RequestsPerSecond
	return out, nil
}

// newRow takes over what all rows have.
func newRow(r *replay.Row) row {
	return row{
		Requests: r.Requests, Errors: r.Errors,
		TTFTMean: r.TTFT.Mean, TTFTP50: r.TTFT.P50, TTFTP90: r.TTFT.P90, TTFTP99: r.TTFT.P99,
	}
}

// countDifferent returns how many different pictures a workload shows.
func (s *settings) countDifferent(generate string) (int, error) {
	all, err := readRequests(generate, s.seed)
	seen := map[string]bool{}
	for i := range all {
		for _, m := range all[i].Media {
			seen[m.ID] = true
		}
	}
	return len(seen), err
}

// readRequests returns the requests of a synthetic workload.
func readRequests(generate string, seed uint64) (all []replay.Request, err error) {
	w, err := replay.ParseGenerator(generate, seed)
	if err != nil {
		return nil, err
	}
	source, err := w.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	for {
		var next, own replay.Request
		if err := source.Next(&next); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		own.CopyFrom(&next)
		all = append(all, own)
	}
}
