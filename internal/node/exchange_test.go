package node

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/handoff"
	"penstock/internal/serve/worker"
)

// TestHandoffLimits: the times of handoffs have the values of docs/disaggregation.md, and a prefill worker beats
// several times in the silence which its decode workers bear, however short prefill-wait is.
func TestHandoffLimits(t *testing.T) {
	if l := handoffLimits(10 * time.Second); l.QueueWait != 10*time.Second || l.Silence != 5*time.Second || l.Budget != time.Minute || reachWait(10*time.Second) != 2*time.Second {
		t.Errorf("with 10 s the limits are %+v, and %v to reach memory", l, reachWait(10*time.Second))
	}
	for _, wait := range []time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		decode, prefill := handoffLimits(wait), jobLimits(wait)
		if decode.Validate() != nil || prefill.Validate() != nil || 4*prefill.Heartbeat > decode.Silence || 2*reachWait(wait) > decode.Silence {
			t.Errorf("with %v the limits are %+v and %+v, and %v to reach memory", wait, decode, prefill, reachWait(wait))
		}
	}
}

// TestJobLifetime: a job is in the queue for as long as its decode worker waits for a prefill worker, and not for all the
// time in which the prompt may be computed.
func TestJobLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, err := bus.NewMemBus().OpenQueue(bus.QueueConfig{Name: "prefill"})
		if err != nil {
			t.Fatal(err)
		}
		const wait = 10 * time.Second
		for i, budget := range []time.Duration{6 * wait, wait / 2} {
			job := &engine.PrefillRequest{Attempt: uint32(i + 1), Budget: int(budget.Milliseconds())}
			if _, err := newQueuePlacer(q, wait, nil).PlaceJob(t.Context(), job, disagg.Incarnation{}, nil); err != nil {
				t.Fatal(err)
			}
			d, err := q.Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := time.Until(d.Deadline), min(budget, wait); got != want { // virtual
				t.Errorf("with a budget of %v the job lives for %v, want %v", budget, got, want)
			}
		}
	})
}

// countedHandoffs is an ExchangeObserver which lists what it counts.
type countedHandoffs struct {
	worker.ExchangeObserver
	all []string
}

func (c *countedHandoffs) CountHandoff(remote bool, reason string, bytes int64) {
	c.all = append(c.all, fmt.Sprintf("remote %t by %s, %d bytes", remote, reason, bytes))
}

func (c *countedHandoffs) CountFailedPrefill(reason string) {
	c.all = append(c.all, "failed by "+reason)
}

// TestCountHandoff: each attempt which failed is counted, also of a request which came well out of it, and of one which
// was cancelled after that.
func TestCountHandoff(t *testing.T) {
	silent := []disagg.HandoffReason{disagg.Silent, disagg.TransferFailed}
	for _, tt := range []struct {
		out  handoff.HandoffOutcome
		want []string
	}{
		{
			handoff.HandoffOutcome{State: disagg.Decoding, Decision: disagg.Decision{Reason: disagg.CheaperRemote}, GivenUp: silent, Bytes: 7},
			[]string{"failed by silent", "failed by transfer_failed", "remote true by remote_prefill_costs_less, 7 bytes"},
		},
		{
			handoff.HandoffOutcome{State: disagg.Local, Reason: disagg.TransferFailed, GivenUp: silent},
			[]string{"failed by silent", "failed by transfer_failed", "remote false by transfer_failed, 0 bytes"},
		},
		{
			handoff.HandoffOutcome{State: disagg.Aborted, GivenUp: append(silent[:1:1], disagg.Cancelled)},
			[]string{"failed by silent"},
		},
	} {
		var c countedHandoffs
		if countHandoff(&c, &tt.out); !slices.Equal(c.all, tt.want) {
			t.Errorf("%+v is counted as %q, want %q", tt.out, c.all, tt.want)
		}
	}
}
