package main

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"penstock/internal/replay"
)

// count is a workload of so many requests.
type count struct{ n, next int }

func (c *count) Next(r *replay.Request) error {
	if c.next == c.n {
		return io.EOF
	}
	r.Index = c.next
	c.next++
	return nil
}

func (*count) Close() error { return nil }

// TestTurns: each request is sent by one door, in turn.
func TestTurns(t *testing.T) {
	for mine, want := range [][]int{{0, 2, 4}, {1, 3}} {
		src := &shareSource{Source: &count{n: 5}, of: 2, mine: mine}
		var got []int
		var r replay.Request
		err := src.Next(&r)
		for ; err == nil; err = src.Next(&r) {
			got = append(got, r.Index)
		}
		if !errors.Is(err, io.EOF) || !slices.Equal(got, want) {
			t.Errorf("door %d sends %v, want %v: %v", mine, got, want, err)
		}
	}
}

// TestCrowding: one request for 1 s, then three of which two are at one worker for 1 s,
// a pause, and one for 2 s; at two workers.
func TestCrowding(t *testing.T) {
	s := time.Second
	r := sharedRecorder{served: []servedRequest{{1, 0, 2 * s}, {1, s, 2 * s}, {2, s, 2 * s}, {2, 5 * s, 7 * s}}}
	busiest, active := r.workerOccupancy(2)
	if busiest != (1+2+1+1)/4. || active != (1+3+1+1)/4./2 {
		t.Errorf("%v at the busiest, %v on average", busiest, active)
	}
	if busiest, active := (&sharedRecorder{}).workerOccupancy(2); busiest != 0 || active != 0 {
		t.Errorf("%v and %v of nothing", busiest, active)
	}
}
