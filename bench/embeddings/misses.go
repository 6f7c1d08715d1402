package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"penstock/internal/replay"
)

// A new picture is shown to missWorkers workers at once, and the next one when all have answered, missPictures times.
const (
	missWorkers  = 8
	missPictures = 16
)

// measureMisses has pictures missed at once in real fleets and simulated clusters.
func (s *settings) measureMisses(ctx context.Context) (rows []row, err error) {
	if s.only == "" || s.only == "real" {
		for _, way := range fleetWays(missWorkers) {
			r, err := s.missInFleet(ctx, way)
			if err != nil {
				return nil, fmt.Errorf("real, %s: %w", way.name, err)
			}
			rows = append(rows, r)
		}
	}
	if s.only == "" || s.only == "simulated" {
		for _, way := range simulatedWays() {
			if way.name != wayOff && way.name != wayAlone && way.name != wayShared && way.encoders == 0 {
				continue // there are no sessions, and requests go round
			}
			way.workers = missWorkers
			r, err := s.simulate(ctx, strings.NewReader(missTrace()), append(way.flags(), "--policy", "round-robin", "--sim-encoder", slowEncoder, "--trace", "-")...)
			if err != nil {
				return nil, fmt.Errorf("simulated, %s: %w", way.name, err)
			}
			r.Traffic, r.Way, r.Workers, r.EncodeWorkers, r.Different = "simulated", way.name, way.workers, way.encoders, missPictures
			if way.encoders > 0 {
				r.Way = fmt.Sprintf("%d more encode", way.encoders)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// missTrace returns the requests of a simulated cluster.
func missTrace() string {
	var b strings.Builder
	for picture := range missPictures {
		for range missWorkers {
			fmt.Fprintf(&b, `{"timestamp":%d,"input_length":1100,"output_length":4,"images":[{"uuid":"%d","tokens":1024}]}`+"\n", 2000*picture, picture)
		}
	}
	return b.String()
}

// missInFleet has a fleet miss pictures at once.
func (s *settings) missInFleet(ctx context.Context, way fleetWay) (r row, err error) {
	all := make([]replay.Request, missPictures*missWorkers)
	for i := range all {
		all[i] = replay.Request{Index: i, Output: 4, Media: []replay.Media{{Kind: "image", ID: fmt.Sprint(i / missWorkers)}}}
	}
	if _, err := s.drawPayloads(all); err != nil {
		return r, err
	}
	f, err := s.startFleet(ctx, way)
	defer func() { err = errors.Join(err, f.stop()) }()
	if err != nil {
		return r, err
	}
	for some := range slices.Chunk(all, missWorkers) {
		if err := f.send(ctx, some, missWorkers); err != nil {
			return r, err
		}
	}
	if r, err = f.row(ctx); err != nil {
		return r, err
	}
	r.Traffic, r.Pictures, r.Different = "real", int64(len(all)), missPictures
	fmt.Fprintf(os.Stderr, "%+v\n", r)
	return r, nil
}
