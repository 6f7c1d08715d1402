package handoff

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
)

// registered is a worker of a role in discovery, whose card is changed.
func registered(t *testing.T, id kv.WorkerID, role engine.Role, change func(*engine.Card)) disco.Instance {
	t.Helper()
	layout := newTokenCache(16, 64).layout
	m := exchangeOf(layout, uint64(100+id))
	c := engine.Card{
		Name: "m", Engine: "hash", Numerics: "hash", Ranks: 1, Blocks: 4, BlockSize: 16, ContextLength: 64, VocabSize: vocabulary,
		Role: role, Exchange: &m,
	}
	if change != nil {
		change(&c)
	}
	meta, err := engine.EncodeCard(c)
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: catalog.KindOf(role), ID: id, Epoch: uint64(100 + id), Addr: fmt.Sprint("worker-", id), Meta: meta}
}

// TestFleet: the prefill workers which are asked are those whose blocks can be taken, with the load which they report,
// for as long as it says something.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		snapshot := catalog.NewSnapshot()
		events := bus.NewMemBus()
		self := exchangeOf(newTokenCache(16, 64).layout, 0)
		f := NewFleet(FleetConfig{
			Current: func() *catalog.Snapshot { return snapshot }, Model: "m", Exchange: self, Namespace: "n", Log: slog.New(slog.DiscardHandler),
		}, events)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = f.Run(ctx) })
		defer running.Wait()
		defer cancel()
		set := func(all ...disco.Instance) { snapshot = snapshot.Next(catalog.Selection{}, all, time.Now()) }
		peers := func() string {
			var all []string
			for _, p := range f.Peers() {
				all = append(all, fmt.Sprintf("%d/%d at %s: %d of %d", p.Worker.ID, p.Epoch, p.Addr, p.Tokens, p.Jobs))
			}
			return strings.Join(all, ", ")
		}
		if got := peers(); got != "" || f.HasDecodeWorkers() || f.FindOwner(kv.Worker{ID: 1}) != nil {
			t.Errorf("of no workers are known: %s", got)
		}
		set(
			registered(t, 1, engine.RoleDecode, nil), registered(t, 2, engine.RolePrefill, nil),
			registered(t, 3, engine.RolePrefill, func(c *engine.Card) { c.Exchange = nil }),
			registered(t, 4, engine.RolePrefill, func(c *engine.Card) { c.Exchange.Type = "f16" }),
			registered(t, 5, engine.RolePrefill, func(c *engine.Card) { c.BlockSize, c.Exchange.BlockSize = 64, 64 }),
			registered(t, 6, engine.RolePrefill, func(c *engine.Card) { c.Name = "other" }),
		)
		synctest.Wait()
		for _, id := range []kv.WorkerID{2, 3, 5, 6} {
			r := engine.LoadReport{WorkerID: id, Epoch: uint64(100 + id), Load: engine.Load{PrefillTokens: 10 * int(id), Running: 1, Waiting: 2}}
			if id == 5 {
				r.Epoch-- // of its earlier life
			}
			b, err := engine.EncodeLoadReport(r)
			if err == nil {
				err = events.Publish(ctx, bus.LoadTopic("n"), engine.WorkerKey(kv.Worker{ID: id}), b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := peers(); got != "2/102 at worker-2: 20 of 3, 5/105 at worker-5: 0 of 0" {
			t.Errorf("the peers are %s", got)
		}
		if !f.HasDecodeWorkers() || f.FindOwner(kv.Worker{ID: 1}).Epoch != 101 || f.FindOwner(kv.Worker{ID: 3}) != nil || f.FindOwner(kv.Worker{ID: 9}) != nil {
			t.Error("the decode worker is not known, or another is")
		}
		report := func(state string) {
			f.recordLoad(&engine.LoadReport{WorkerID: 5, Epoch: 105, State: state, Load: engine.Load{PrefillTokens: 7, Running: 1}})
		}
		report(engine.StateNotReady)
		if got := peers(); got != "2/102 at worker-2: 20 of 3" {
			t.Errorf("with a worker which is not ready the peers are %s", got)
		}
		report(engine.StateReady)
		if got := peers(); got != "2/102 at worker-2: 20 of 3, 5/105 at worker-5: 7 of 1" {
			t.Errorf("when it is ready again the peers are %s", got)
		}
		report(engine.StateNotReady)
		time.Sleep(reportAge) // virtual time (synctest): until reports are too old
		if got := peers(); got != "2/102 at worker-2: 0 of 0, 5/105 at worker-5: 0 of 0" {
			t.Errorf("with old reports the peers are %s", got)
		}
		set(registered(t, 1, engine.RoleDecode, nil), registered(t, 5, engine.RolePrefill, nil))
		if got := peers(); got != "5/105 at worker-5: 0 of 0" {
			t.Errorf("after one left the peers are %s", got)
		}
		set(registered(t, 2, engine.RolePrefill, nil))
		if f.HasDecodeWorkers() {
			t.Error("a decode worker is known which left")
		}
		// Its requests which wait are served as long as it drains.
		if x := f.FindOwner(kv.Worker{ID: 1}); x == nil || x.Epoch != 101 {
			t.Errorf("of a decode worker which drains is known %+v", x)
		}
		time.Sleep(ownerMemory) // virtual time (synctest): until owners are forgotten
		if f.FindOwner(kv.Worker{ID: 1}) != nil {
			t.Error("a decode worker is known which left long ago")
		}
		set(registered(t, 1, engine.RoleDecode, func(c *engine.Card) { c.Exchange.Epoch = 500 }))
		if x := f.FindOwner(kv.Worker{ID: 1}); x == nil || x.Epoch != 500 {
			t.Errorf("of a decode worker which came back is known %+v", x)
		}
	})
}

// TestQueueConfig: models have queues of their own, whatever their names, and so have workers of one model which cannot
// exchange blocks. The names begin with that of the model, and the longest ones fit.
func TestQueueConfig(t *testing.T) {
	long := strings.Repeat("x", 64)
	seen := map[string]string{}
	for _, model := range []string{"m", "org/Model-7B.v1", "org_Model-7B_v1", strings.Repeat("é", 128), strings.Repeat("é", 127) + "x"} {
		cfg := QueueConfig(long, long, model, new(disagg.Metadata))
		cfg.EnsureDefaults()
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", model, err)
		}
		if other, ok := seen[cfg.Name]; ok {
			t.Errorf("%s and %s share a queue", model, other)
		}
		seen[cfg.Name] = model
	}
	m := disagg.Metadata{BlockSize: 16, Numerics: "build 1", Type: "F32", Layout: "tokens"}
	const want = "n.c.prefill-m-eb176655dacc"
	if cfg := QueueConfig("n", "c", "m", &m); cfg.Name != want {
		t.Errorf("the queue is %s, want %s", cfg.Name, want)
	}
	seen = map[string]string{want: "the first"}
	for name, change := range map[string]func(*disagg.Metadata){
		"numerics": func(m *disagg.Metadata) { m.Numerics = "build 2" },
		"type":     func(m *disagg.Metadata) { m.Type = "BF16" },
		"layout":   func(m *disagg.Metadata) { m.Layout = "heads" },
	} {
		other := m
		change(&other)
		cfg := QueueConfig("n", "c", "m", &other)
		if with, ok := seen[cfg.Name]; ok || !strings.HasPrefix(cfg.Name, QueuePrefix("n", "c")+"m-") {
			t.Errorf("with another %s the queue is %s, that of %s", name, cfg.Name, with)
		}
		seen[cfg.Name] = name
	}
	m.BlockSize = 64
	if cfg := QueueConfig("n", "c", "m", &m); cfg.Name != want {
		t.Errorf("with larger blocks, which are converted, the queue is %s", cfg.Name)
	}
}

// TestSplitter: what is known of the fleet decides, and outcomes are learned from.
func TestSplitter(t *testing.T) {
	snapshot := catalog.NewSnapshot().Next(catalog.Selection{}, []disco.Instance{
		registered(t, 1, engine.RoleDecode, nil), registered(t, 2, engine.RolePrefill, nil), registered(t, 3, engine.RolePrefill, nil),
	}, time.Now())
	self := exchangeOf(newTokenCache(16, 64).layout, 0)
	f := NewFleet(FleetConfig{Current: func() *catalog.Snapshot { return snapshot }, Model: "m", Exchange: self, Namespace: "n"}, bus.NewMemBus())
	depth := 1
	s, err := NewSplitter(disagg.SplitConfig{Policy: disagg.ByThreshold, MaxLocalPrefillLength: 1000, MaxPrefillQueueSize: 2}, testHandoff, f.Peers, 512, func() int { return depth })
	if err != nil {
		t.Fatal(err)
	}
	in := disagg.SplitInputs{Tokens: 4000, BlockSize: 16}
	if d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{}); !d.Remote || d.Inputs.PrefillWorkers != 2 || d.Inputs.QueuedJobs != 1 || d.Inputs.QueuedTokens != 0 {
		t.Errorf("%+v", d)
	}
	for range 50 {
		s.ObserveHandoff(&HandoffOutcome{State: disagg.Decoding, End: 3984, Prefill: 10 * time.Millisecond, Transfer: time.Second})
	}
	if d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{}); d.RemoteCost.Transfer < 500 || d.Inputs.QueuedTokens < 300 {
		t.Errorf("nothing was learned: %+v", d)
	}
	f.recordLoad(&engine.LoadReport{WorkerID: 2, Epoch: 102, Load: engine.Load{PrefillTokens: 50, Running: 1, Waiting: 2}})
	before := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{}).Inputs.QueuedTokens
	f.recordLoad(&engine.LoadReport{WorkerID: 3, Epoch: 103, Load: engine.Load{PrefillTokens: 70, Running: 1}})
	if d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{}); d.Inputs.RunningJobs != 4 || d.Inputs.QueuedTokens < before+70 {
		t.Errorf("the load of prefill workers is not counted: %+v, before %d tokens", d.Inputs, before)
	}
	depth = 2
	d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{})
	if label := (&HandoffOutcome{Reason: disagg.Decided, Decision: d}).Label(); d.Remote || label != "the_queue_is_full" {
		t.Errorf("%+v, %s", d, label)
	}
	if label := (&HandoffOutcome{Reason: disagg.QueueSlow}).Label(); label != "queue_too_slow" {
		t.Error(label)
	}
	if label := (&HandoffOutcome{State: disagg.Decoding, Decision: disagg.Decision{Reason: disagg.LongPrefill}}).Label(); label != "the_prefill_is_long" {
		t.Error(label)
	}
	// A request asks for other settings, and the next one has the worker's again.
	if d := s.Decide(disagg.SplitSettings{MaxPrefillQueueSize: new(3)}, in, &engine.PrefillHint{}); !d.Remote || d.Config.MaxPrefillQueueSize != 3 || d.Config.MaxLocalPrefillLength != 1000 {
		t.Errorf("with a longer queue: %+v", d)
	}
	if d := s.Decide(disagg.SplitSettings{Policy: new(disagg.NeverRemote)}, in, &engine.PrefillHint{}); d.Remote || d.Reason != disagg.PolicyIsNever {
		t.Errorf("with the policy never: %+v", d)
	}
	if d := s.Decide(disagg.SplitSettings{}, in, &engine.PrefillHint{}); d.Reason != disagg.FullQueue {
		t.Errorf("after requests with settings: %+v", d)
	}
}

// TestDescribeLoad: a decision knows the prompts which the engine computes, what it has of them, and running answers.
func TestDescribeLoad(t *testing.T) {
	d := &DecodeWorker{}
	d.mu.running.prefills = []*followedRequest{{tokens: 100, cached: 60}, {tokens: 30}}
	d.mu.running.decoding = 5
	in := disagg.SplitInputs{Tokens: 9}
	d.describeLoad(&in)
	if want := (disagg.SplitInputs{Tokens: 9, LocalTokens: 70, LocalPrefills: 2, Decoding: 5}); in != want {
		t.Errorf("%+v, want %+v", in, want)
	}
}
