package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/natsd"
	"penstock/internal/serve/handoff"
)

// startQueues starts a NATS server with queues of two models: queues. Its URL is the variable NATS. The queue of the
// model tiny has two dead letters, dead.1 and junk.1, whose bytes are no job, one job at a worker and one which waits.
// The one of the model other has three dead letters.
func startQueues(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: queues")
	}
	s, err := natsd.Start(natsd.Config{Listen: "127.0.0.1:0"})
	ts.Check(err)
	ts.Defer(func() { _ = s.Close() })
	conn, err := s.Connect("test")
	ts.Check(err)
	defer conn.Close()
	b, err := bus.NewNATSBus(conn, bus.NATSBusConfig{})
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dead := engine.AppendPrefillRequest(nil, &engine.PrefillRequest{
		ID: "request-1", Attempt: 1, Model: "tiny\x1b[2J", Decode: kv.Worker{ID: 17}, Epoch: 5, Addr: "tcp://10.0.0.7:7000", Handle: []byte("secret-handle"),
		Tokens: 64, Into: engine.BlockHandoff{Worker: kv.Worker{ID: 17}, Epoch: 5, End: 64, Layout: engine.KVLayout{BlockSize: 16, BlockBytes: 64, Type: media.Float32}},
	})
	ts.Check(fillQueue(ctx, b, "tiny", bus.Job{ID: "dead.1", Data: dead}, bus.Job{ID: "junk.1", Data: []byte("no job\x1b[2J")}))
	ts.Check(fillQueue(ctx, b, "other", bus.Job{ID: "x", Data: dead}, bus.Job{ID: "y", Data: dead}, bus.Job{ID: "z"}))
	ts.Setenv("NATS", s.URL())
}

// fillQueue makes dead letters of jobs in the queue of a model, starts one job and leaves one waiting.
func fillQueue(ctx context.Context, b bus.Queues, model string, die ...bus.Job) error {
	q, err := b.OpenQueue(handoff.QueueConfig("penstock", "backend", model, new(disagg.Metadata)))
	if err != nil {
		return err
	}
	for _, j := range die {
		j.Lifetime = 5 * time.Minute
		if err := q.Put(ctx, j); err != nil {
			return err
		}
	}
	for range bus.DefaultMaxAttempts * len(die) {
		d, err := q.Pull(ctx)
		if err == nil {
			err = q.Release(ctx, d)
		}
		if err != nil {
			return err
		}
	}
	for i := range 2 {
		if err := q.Put(ctx, bus.Job{ID: fmt.Sprintf("live.%d", i), Lifetime: 5 * time.Minute}); err != nil {
			return err
		}
	}
	_, err = q.Pull(ctx) // it buries the dead first
	return err
}
