package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"penstock/bench/child"
	"penstock/core/splitmix"
	"penstock/internal/replay"
	"penstock/internal/replay/load"
)

// fleetWorkers is the number of workers which serve in a real fleet.
const fleetWorkers = 2

// fleetWay is how a real fleet encodes. args are flags of its workers.
type fleetWay struct {
	name              string
	workers, encoders int
	args              []string
}

// fleetWays returns the ways of a number of workers which serve.
func fleetWays(workers int) []fleetWay {
	return []fleetWay{
		{wayOff, workers, 0, []string{"--embedding-cache-capacity-gb", "0"}},
		{wayAlone, workers, 0, []string{"--embedding-fetch", "off"}},
		{wayShared, workers, 0, nil},
		{"1 more worker encodes", workers, 1, nil},
	}
}

func (s *settings) describeReal() string {
	return fmt.Sprintf("%d workers (tiny, two processes) and 0 or 1 encode workers, round-robin; %d requests with %d at once, %d turns, a picture of %d by %d each",
		fleetWorkers, s.requests, s.streams, s.turns, s.side, s.side)
}

// fleet is a frontend and its workers, and what was measured of it.
type fleet struct {
	way       fleetWay
	processes []*child.Process // the frontend, the workers, the encode workers
	dirs      []string
	record    *replay.Recorder
	took      time.Duration // of all turns
	answers   int
}

// measureFleets measures all ways with repeated and with unique pictures.
func (s *settings) measureFleets(ctx context.Context) (rows []row, err error) {
	for _, traffic := range []struct {
		name  string
		share float64 // of new pictures
	}{
		{fmt.Sprintf("%.0f %% repeated", 100*s.repeated), 1 - s.repeated},
		{"unique", 1},
	} {
		all, err := readRequests(fmt.Sprintf("images:before=16,input=16,output=4,vary=0,new=%.6g,requests=%d", traffic.share, s.requests), s.seed)
		if err != nil {
			return nil, err
		}
		different, err := s.drawPayloads(all)
		if err != nil {
			return nil, err
		}
		some, err := s.measureTraffic(ctx, all)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", traffic.name, err)
		}
		for _, r := range some {
			r.Traffic, r.Different = traffic.name, different
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// measureTraffic sends requests to fleets of all ways by turns.
func (s *settings) measureTraffic(ctx context.Context, all []replay.Request) (rows []row, err error) {
	var fleets []*fleet
	defer func() {
		for _, f := range fleets {
			err = errors.Join(err, f.stop())
		}
	}()
	for _, way := range fleetWays(fleetWorkers) {
		f, err := s.startFleet(ctx, way)
		fleets = append(fleets, f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	for turn := range s.turns {
		from, to := turn*len(all)/s.turns, (turn+1)*len(all)/s.turns
		for i := range fleets {
			f := fleets[(i+turn)%len(fleets)]
			if err := f.send(ctx, all[from:to], s.streams); err != nil {
				return nil, fmt.Errorf("%s: %w", f.way.name, err)
			}
		}
		fmt.Fprintf(os.Stderr, "turn %d of %d\n", turn+1, s.turns)
	}
	for _, f := range fleets {
		r, err := f.row(ctx)
		if err != nil {
			return nil, err
		}
		r.Pictures = int64(len(all))
		fmt.Fprintf(os.Stderr, "%+v\n", r)
		rows = append(rows, r)
	}
	return rows, nil
}

// startFleet starts a fleet and waits for it. It returns what the caller must stop, also with an error.
func (s *settings) startFleet(ctx context.Context, way fleetWay) (*fleet, error) {
	f := &fleet{way: way, record: replay.NewRecorder(replay.RecorderConfig{Policy: way.name, Workers: way.workers})}
	start := func(args ...string) error {
		dir, err := os.MkdirTemp("", "penstock-embeddings-")
		if err != nil {
			return err
		}
		f.dirs = append(f.dirs, dir)
		p, err := child.StartProcess(ctx, os.Stderr, append([]string{s.bin, args[0], "--json", "--log-level", "error", "--http-addr", "127.0.0.1:0", "--data-dir", dir}, args[1:]...)...)
		if err == nil {
			f.processes = append(f.processes, p)
		}
		return err
	}
	if err := start("frontend", "--nats-listen", "127.0.0.1:0", "--router-mode", "round-robin"); err != nil {
		return f, err
	}
	var ready struct {
		NATS string `json:"nats"`
	}
	if err := json.Unmarshal([]byte(f.processes[0].FirstLine), &ready); err != nil || ready.NATS == "" {
		return f, fmt.Errorf("the frontend names no address of NATS in %.200q: %w", f.processes[0].FirstLine, err)
	}
	for i := range way.workers + way.encoders {
		args := []string{"worker", "--nats", ready.NATS}
		if i >= way.workers {
			args = append(args, "--role", "encode")
		} else {
			args = append(args, "--kv-cache-blocks", "2048")
		}
		if err := start(append(args, way.args...)...); err != nil {
			return f, err
		}
	}
	return f, f.awaitWorkers(ctx)
}

// awaitWorkers waits until the frontend knows all workers.
func (f *fleet) awaitWorkers(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	want := len(f.processes) - 1
	for {
		var known struct {
			Rows []struct {
				State string `json:"state"`
			} `json:"rows"`
		}
		body, err := get(within, f.processes[0].URL+"/v1/router/workers")
		if err == nil {
			err = json.Unmarshal(body, &known)
		}
		if err == nil && len(known.Rows) == want {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-within.Done():
			return fmt.Errorf("%d of %d workers are known after a minute: %w", len(known.Rows), want, errors.Join(err, within.Err()))
		}
	}
}

// send sends requests, so many at once, and records them.
func (f *fleet) send(ctx context.Context, all []replay.Request, streams int) error {
	t := &turnRecorder{Recorder: f.record}
	sum, err := load.Run(ctx, load.Config{Endpoint: load.Endpoint{URL: f.processes[0].URL}, Model: "penstock-tiny", Concurrency: streams}, &requestList{all: all}, t)
	if err != nil {
		return err
	}
	if sum.Interrupted {
		return ctx.Err()
	}
	if t.failure != "" {
		return fmt.Errorf("a request failed: %s", t.failure)
	}
	f.took += t.last
	f.answers += sum.Answers
	return nil
}

// row returns what was measured.
func (f *fleet) row(ctx context.Context) (row, error) {
	run := f.record.Run()
	r := newRow(&run.Row)
	r.Way, r.Workers, r.EncodeWorkers = f.way.name, f.way.workers, f.way.encoders
	r.RequestsPerSecond = float64(f.answers) / f.took.Seconds()
	hits, lookUps := 0.0, 0.0
	for i, p := range f.processes[1:] {
		body, err := get(ctx, p.URL+"/metrics")
		if err != nil {
			return r, err
		}
		r.EncoderRuns += int64(readMetric(body, `penstock_encode_jobs_total{outcome="ok"}`))
		if i < f.way.workers {
			found := readMetric(body, `penstock_embedding_cache_hits_total{tier="memory"}`)
			hits += found
			lookUps += found + readMetric(body, `penstock_embedding_cache_misses_total{tier="memory"}`)
		}
	}
	r.Misses = int64(lookUps - hits)
	if lookUps > 0 {
		r.HitShare = hits / lookUps
	}
	return r, nil
}

func (f *fleet) stop() (err error) {
	for i := range f.processes {
		f.processes[len(f.processes)-1-i].StopProcess()
	}
	for _, dir := range f.dirs {
		err = errors.Join(err, os.RemoveAll(filepath.Clean(dir)))
	}
	return err
}

// readMetric returns the value of a metric with its labels; 0 if it is not there.
func readMetric(body []byte, name string) float64 {
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, _ := strconv.ParseFloat(value, 64)
			return v
		}
	}
	return 0
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return body, err
}

// turnRecorder records a turn: when its last answer ended, and the first failure.
type turnRecorder struct {
	*replay.Recorder
	last    time.Duration
	failure string
}

// RecordSample implements load.Recorder.
func (t *turnRecorder) RecordSample(s *replay.Sample) {
	t.Recorder.RecordSample(s)
	t.last = max(t.last, s.Done)
	if s.Error != "" && t.failure == "" {
		t.failure = s.Error
	}
}

// requestList is a source of requests.
type requestList struct{ all []replay.Request }

// Next implements replay.Source.
func (l *requestList) Next(r *replay.Request) error {
	if len(l.all) == 0 {
		return io.EOF
	}
	r.CopyFrom(&l.all[0])
	l.all = l.all[1:]
	return nil
}

// Close implements replay.Source.
func (*requestList) Close() error { return nil }

// drawPayloads gives each request its body: text of its own, then its picture. It returns the number of different
// pictures.
func (s *settings) drawPayloads(all []replay.Request) (different int, err error) {
	urls := map[string]string{}
	for i := range all {
		r := &all[i]
		id := r.Media[0].ID
		if urls[id] == "" {
			if urls[id], err = s.drawPicture(uint64(len(urls))); err != nil {
				return 0, err
			}
		}
		text := fmt.Sprintf("%d:", r.Index)
		words := splitmix.Source(splitmix.Mix(s.seed + uint64(r.Index)))
		for range 12 {
			text += " " + strconv.FormatUint(words.Next()%10_000, 10)
		}
		body := map[string]any{
			"max_tokens": r.Output, "temperature": 0, "ignore_eos": true,
			"messages": []any{map[string]any{"role": "user", "content": []any{
				map[string]any{"type": "text", "text": text},
				map[string]any{"type": "image_url", "image_url": map[string]any{"url": urls[id]}},
			}}},
		}
		if r.Payload, err = json.Marshal(body); err != nil {
			return 0, err
		}
		r.Media, r.Blocks = nil, nil
	}
	return len(urls), nil
}

// drawPicture returns a picture as a data: URI.
func (s *settings) drawPicture(number uint64) (string, error) {
	const tile = 16
	palette := color.Palette{}
	for i := range 16 {
		x := splitmix.Mix(uint64(i) + 1)
		palette = append(palette, color.RGBA{R: uint8(x), G: uint8(x >> 8), B: uint8(x >> 16), A: 255})
	}
	draw := splitmix.Source(splitmix.Mix(s.seed ^ splitmix.Mix(number)))
	p := image.NewPaletted(image.Rect(0, 0, s.side, s.side), palette)
	for y := 0; y < s.side; y += tile {
		for x := 0; x < s.side; x += tile {
			hue := uint8(draw.Next() % 16)
			for j := y; j < min(y+tile, s.side); j++ {
				for i := x; i < min(x+tile, s.side); i++ {
					p.SetColorIndex(i, j, hue)
				}
			}
		}
	}
	var file bytes.Buffer
	if err := png.Encode(&file, p); err != nil {
		return "", err
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes()), nil
}
