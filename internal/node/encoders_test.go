package node

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/node/engines"
	"penstock/internal/node/planes"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/bulk"
	"penstock/internal/serve/servetest"
)

// TestAskingWorkerFollowsReports: a worker which asks others for rows takes their load reports from the event plane: if
// one says that events are missing, the worker asks for them, of encode workers and of those which serve requests.
func TestAskingWorkerFollowsReports(t *testing.T) {
	cfg, err := config.Load("", []string{config.EnvName("nats") + "=nats://127.0.0.1:1"}, config.NoFlags(config.Worker))
	if err != nil {
		t.Fatal(err)
	}
	model, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []engine.Role{engine.RoleEncode, engine.RoleAggregated} {
		synctest.Test(t, func(t *testing.T) {
			events, registry, calls := bus.NewMemBus(), servetest.NewRegistry(), rpc.NewMemPlane()
			p := &process{
				cfg: cfg, log: slog.New(slog.DiscardHandler), metrics: obs.NewMetrics(), model: model,
				planes:   &planes.Set{Events: events, Registry: registry, RPC: calls},
				borrower: bulk.NewFetcher(bulk.FetcherConfig{}, calls, nil),
			}
			if err := p.openEncoders(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			asked := make(chan string, 100)
			running.Go(func() { _ = p.encoders.Run(ctx) }) // these say nothing but that ctx has ended
			running.Go(func() { _ = p.holders.Run(ctx) })
			running.Go(func() {
				_ = events.Subscribe(ctx, bus.EmbeddingResyncTopic(cfg.Fleet.Namespace), 0, func(m bus.Message) error {
					asked <- m.Key
					return nil
				}, nil)
			})
			card := model.Card()
			card.Role, card.EmbeddingEvents = role, true
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			kind := disco.KindEncode
			if role != engine.RoleEncode {
				kind = disco.KindWorker
			}
			registry.Set(disco.Instance{Kind: kind, ID: 5, Epoch: 1, Namespace: cfg.Fleet.Namespace, Component: cfg.Fleet.Component, Addr: "a", Host: "h", Meta: meta})
			synctest.Wait()
			record := embfeed.EventRecord{Worker: kv.Worker{ID: 5}, Epoch: 1, First: 1, Events: []embfeed.Event{{Kind: embfeed.Cleared}}}
			if err := events.Publish(ctx, bus.EmbeddingEventsTopic(cfg.Fleet.Namespace, cfg.Fleet.Component), "5/0", embfeed.AppendRecord(nil, &record)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second) // virtual time (synctest): the events of a registered worker have come
			if len(asked) > 0 {
				t.Errorf("role %s: asked before anything is missing", role)
			}
			for range 20 {
				report, err := engine.EncodeLoadReport(engine.LoadReport{WorkerID: 5, Epoch: 1, EmbeddingNext: 9})
				if err != nil {
					t.Fatal(err)
				}
				if err := events.Publish(ctx, bus.LoadTopic(cfg.Fleet.Namespace), "5/0", report); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second) // virtual time (synctest): reports come each second
			}
			select {
			case key := <-asked:
				if key != "5/0" {
					t.Errorf("role %s: %s is asked", role, key)
				}
			default:
				t.Errorf("role %s: nobody is asked for the missing events", role)
			}
		})
	}
}
