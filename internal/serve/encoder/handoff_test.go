package encoder

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// handingOff answers with a handoff which has the object's hash and the worker.
func handingOff(id kv.WorkerID) handler {
	return func(_ context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
		return &engine.Encoded{Attempt: 1, Handoff: fmt.Appendf(nil, `{"%x":{"by":%d}}`, req.Objects[0].Key.Hash, id)}, nil
	}
}

// TestHandsOff: a handoff is asked for once in a while, and again when it was forgotten, is old, or is of a worker which
// left. The content goes with the first question.
func TestHandsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		var got engine.EncodeRequest
		in := f.add(3, nil, func(ctx context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
			got = *req
			return handingOff(3)(ctx, req)
		})
		ask := func(want string, asked int) {
			t.Helper()
			job := jobOf(1)
			job.Object.Source = string(make([]byte, 2*maxAttached))
			h, err := f.client.HandOffObject(t.Context(), job)
			if workers := f.askedWorkers(); err != nil || string(h) != want || len(workers) != asked {
				t.Fatalf("%s, %v, asked %v; want %s and %d asked", h, err, workers, want, asked)
			}
			if asked > 0 && (got.CachedOnly || len(got.Objects[0].Source) != 2*maxAttached || got.Encoder != "e" || got.Namespace != "s") {
				t.Errorf("asked %+v", got)
			}
		}
		ask(`{"7":{"by":3}}`, 1)
		ask(`{"7":{"by":3}}`, 0)
		f.client.ForgetHandoff(jobOf(1))
		ask(`{"7":{"by":3}}`, 1)
		time.Sleep(handoffAge + time.Second) // virtual time (synctest): the kept handoff is too old
		ask(`{"7":{"by":3}}`, 1)
		in.Epoch++ // its engine may be another one
		f.registry.Set(in)
		synctest.Wait()
		ask(`{"7":{"by":3}}`, 1)
	})
}

// TestHandsOffInOrder: the next worker is asked if one fails, and what none does is the engine's.
func TestHandsOffInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		f.add(1, nil, failing(fault.Unavailable))
		f.add(2, nil, failing(fault.Unavailable))
		if _, err := f.client.HandOffObject(t.Context(), jobOf(1)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("none works: %v", err)
		}
		if n := len(f.askedWorkers()); n != 2 {
			t.Errorf("%d asked", n)
		}
		f.add(4, nil, handingOff(4))
		if h, err := f.client.HandOffObject(t.Context(), jobOf(1)); err != nil || string(h) != `{"7":{"by":4}}` {
			t.Errorf("%s %v", h, err)
		}
	})
}

// TestRowsAndHandoffsDiffer: a worker which answers in the other way is not asked again soon.
func TestRowsAndHandoffsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		rows := f.add(1, nil, good)
		if _, err := f.client.HandOffObject(t.Context(), jobOf(1)); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("rows for a handoff: %v", err)
		}
		if f.client.HasEncoders() {
			t.Error("the worker is asked again")
		}
		f.registry.Delete(rows)
		synctest.Wait()
		f.add(2, nil, handingOff(2))
		if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("a handoff for rows: %v", err)
		}
		if asked := f.askedWorkers(); !slices.Equal(asked, []kv.WorkerID{1, 2}) {
			t.Errorf("asked %v", asked)
		}
	})
}
