package enginemock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/engineevents"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/enginemock"
	"penstock/internal/zmtp"
)

// patience bounds the waits of a test; no test asserts times.
const patience = 20 * time.Second

// opened records the engines which a server opened.
type opened struct {
	sync.Mutex
	all []engine.Engine
}

func (o *opened) by(open func(int) (engine.Engine, error)) func(int) (engine.Engine, error) {
	return func(rank int) (engine.Engine, error) {
		e, err := open(rank)
		o.Lock()
		o.all = append(o.all, e)
		o.Unlock()
		return e, err
	}
}

func (o *opened) last() engine.Engine {
	o.Lock()
	defer o.Unlock()
	return o.all[len(o.all)-1]
}

// truth is the engine's own report of its cache.
func truth(t *testing.T, e engine.Engine) map[kv.SeqHash]bool {
	t.Helper()
	enough := errors.New("enough")
	out := map[kv.SeqHash]bool{}
	err := e.(engine.KVSource).WatchKV(t.Context(), func(events []kv.Event) error {
		apply(out, events)
		return enough
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return out
}

// apply is the naive index: a set of prefixes.
func apply(set map[kv.SeqHash]bool, events []kv.Event) {
	for _, ev := range events {
		switch ev.Kind {
		case kv.Cleared:
			clear(set)
		case kv.Stored:
			parent := ev.Parent
			for i, b := range ev.Blocks {
				parent = kv.ExtendSeq(parent, ev.Start+uint32(i), b)
				set[parent] = true
			}
		case kv.Removed:
			for _, s := range ev.Seqs {
				delete(set, s)
			}
		}
	}
}

// message is one published message.
type message struct {
	topic   string
	seq     uint64
	payload []byte
}

// subscribe returns what a rank publishes from now on.
func subscribe(t *testing.T, s *enginemock.Server, rank int) <-chan message {
	t.Helper()
	ep, err := zmtp.ParseEndpoint(s.RankAddr(rank))
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan message, 10_000)
	ctx, cancel := context.WithCancel(context.Background())
	connected := make(chan struct{}, 64)
	var done sync.WaitGroup
	done.Go(func() {
		_ = zmtp.Subscribe(ctx, ep, nil, zmtp.Options{ReconnectMin: 5 * time.Millisecond, OnState: func(st zmtp.ConnState) {
			if st.Kind == zmtp.Connected {
				connected <- struct{}{}
			}
		}}, func(frames [][]byte) error {
			if len(frames) != 3 || len(frames[1]) != 8 {
				return fmt.Errorf("%d frames", len(frames))
			}
			out <- message{string(frames[0]), binary.BigEndian.Uint64(frames[1]), append([]byte(nil), frames[2]...)}
			return nil
		})
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	select {
	case <-connected:
	case <-time.After(patience):
		t.Fatal("no publisher is connected")
	}
	return out
}

// follow applies batches until the table equals the engine's report, which it does once requests are over.
func follow(t *testing.T, in <-chan message, table *engineevents.Table, have map[kv.SeqHash]bool, want map[kv.SeqHash]bool) (last message) {
	t.Helper()
	var d engineevents.Decoder
	var b engineevents.Batch
	timeout := time.After(patience)
	for !equal(have, want) {
		select {
		case last = <-in:
			if err := d.Decode(last.payload, &b); err != nil {
				t.Fatalf("batch %d: %v", last.seq, err)
			}
			apply(have, table.Apply(&b, nil))
		case <-timeout:
			t.Fatalf("%d blocks are known, %d are cached; last batch %d", len(have), len(want), last.seq)
		}
	}
	return last
}

func equal(a, b map[kv.SeqHash]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}

// generate makes a server of any dialect compute prompts which share prefixes; every second one with a salt,
// if there is one.
func generate(t *testing.T, s *enginemock.Server, n int, salt string) {
	t.Helper()
	for i := range n {
		p := append(prompt(i%5, 96), prompt(100+i, 40+i%30)...)
		post(t, s, "/v1/completions", map[string]any{"prompt": p, "max_tokens": 20, "ignore_eos": true, "temperature": 0, "cache_salt": []string{"", salt}[i%2]})
	}
}

// TestEventsAreTheCache compares the events of every dialect, with every feature, with the engine: a
// subscriber knows exactly what is cached, in Penstock's hashes, even if the cache is small and evicts.
func TestEventsAreTheCache(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialect enginemock.Dialect
		f       enginemock.Features
	}{
		{"vllm", enginemock.VLLM, enginemock.Features{}},
		{"vllm arrays", enginemock.VLLMLegacy, enginemock.Features{}},
		{"vllm binary", enginemock.VLLM, enginemock.Features{BinaryHashes: enginemock.On}},
		{"vllm duplicates", enginemock.VLLM, enginemock.Features{Duplicates: enginemock.On}},
		{"vllm hybrid", enginemock.VLLM, enginemock.Features{Hybrid: enginemock.On}},
		{"sglang", enginemock.SGLang, enginemock.Features{}},
		{"sglang arrays", enginemock.SGLang, enginemock.Features{MapEvents: enginemock.Off}},
		{"trtllm", enginemock.TRTLLM, enginemock.Features{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var engines opened
			s := start(t, enginemock.Config{
				Dialect: c.dialect, Features: c.f, Open: engines.by(opener(t, shape{blocks: 64, size: 16})), KVEvents: "tcp://127.0.0.1:0", Seed: 3,
			})
			in := subscribe(t, s, 0)
			generate(t, s, 40, "salt")
			table, err := engineevents.NewTable(engineevents.Config{BlockSize: 16})
			if err != nil {
				t.Fatal(err)
			}
			want := truth(t, engines.last())
			if len(want) < 20 {
				t.Fatalf("only %d blocks are cached", len(want))
			}
			follow(t, in, table, map[kv.SeqHash]bool{}, want)
		})
	}
}

// TestOffloadedBlocks: blocks without tokens are on another tier.
func TestOffloadedBlocks(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Features: enginemock.Features{Offload: enginemock.On}, KVEvents: "tcp://127.0.0.1:0", Seed: 3})
	in := subscribe(t, s, 0)
	generate(t, s, 1, "salt")
	var d engineevents.Decoder
	var b engineevents.Batch
	select {
	case m := <-in:
		if err := d.Decode(m.payload, &b); err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("nothing is published")
	}
	if len(b.Events) < 2 || len(b.Events)%2 != 0 {
		t.Fatalf("%d events", len(b.Events))
	}
	for i := 0; i < len(b.Events); i += 2 {
		on, off := &b.Events[i], &b.Events[i+1]
		if len(on.Tokens) == 0 || len(off.Tokens) != 0 || off.Tier != kv.TierHost || !slices.Equal(on.Hashes, off.Hashes) {
			t.Errorf("the events are %+v and %+v", on, off)
		}
	}
}

// TestPulledEvents: TensorRT-LLM's list reports the same, and is empty after it was read.
func TestPulledEvents(t *testing.T) {
	var engines opened
	s := start(t, enginemock.Config{Dialect: enginemock.TRTLLM, Open: engines.by(opener(t, shape{blocks: 64, size: 16})), Seed: 3})
	generate(t, s, 30, "") // the list contains no salts
	table, err := engineevents.NewTable(engineevents.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	var d engineevents.PullDecoder
	var b engineevents.Batch
	have, want := map[kv.SeqHash]bool{}, truth(t, engines.last())
	for end := time.Now().Add(patience); !equal(have, want); {
		if time.Now().After(end) {
			t.Fatalf("%d blocks are known, %d are cached", len(have), len(want))
		}
		_, _, body := ask(t, s, "POST", "/kv_cache_events", "")
		if lost, err := d.Decode([]byte(body), &b); err != nil || lost {
			t.Fatal(lost, err)
		}
		apply(have, table.Apply(&b, nil))
	}
	if _, _, body := ask(t, s, "POST", "/kv_cache_events", ""); strings.TrimSpace(body) != "[]" {
		t.Errorf("what was read is still there: %.200s", body)
	}
}

// TestResetTellsWithTheNextBatch: vLLM publishes a cleared cache only with the next step.
func TestResetTellsWithTheNextBatch(t *testing.T) {
	var engines opened
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Open: engines.by(opener(t, shape{})), KVEvents: "tcp://127.0.0.1:0", Seed: 3})
	in := subscribe(t, s, 0)
	table, err := engineevents.NewTable(engineevents.Config{BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	have := map[kv.SeqHash]bool{}
	generate(t, s, 4, "salt")
	follow(t, in, table, have, truth(t, engines.last()))
	if status, _, _ := ask(t, s, "POST", "/reset_prefix_cache", ""); status != http.StatusOK {
		t.Fatal(status)
	}
	generate(t, s, 1, "salt")
	want := truth(t, engines.last())
	follow(t, in, table, have, want)
	if table.Stats().Cleared != 1 {
		t.Errorf("%d clears", table.Stats().Cleared)
	}
}

// replay requests a replay and returns the messages, up to the last.
func replay(t *testing.T, addr string, from uint64) [][][]byte {
	t.Helper()
	ep, err := zmtp.ParseEndpoint(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := zmtp.DialDealer(ctx, ep, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		t.Fatal(err)
	}
	var all [][][]byte
	for {
		frames, err := d.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, frames)
		if n := len(frames); n >= 2 && string(frames[n-2]) == "\xff\xff\xff\xff\xff\xff\xff\xff" {
			return all
		}
	}
}

// TestReplay: the last batches can be replayed, framed as in the engine's version.
func TestReplay(t *testing.T) {
	for _, c := range []struct {
		dialect enginemock.Dialect
		frames  int
	}{{enginemock.VLLM, 4}, {enginemock.VLLMLegacy, 3}, {enginemock.SGLang, 4}, {enginemock.TRTLLM, 4}} {
		t.Run(string(c.dialect), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: c.dialect, KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Topic: "kv", BufferSteps: 3, Seed: 3})
			in := subscribe(t, s, 0)
			generate(t, s, 5, "salt")
			live := map[uint64]message{}
			var again [][][]byte
			for len(again) < 4 {
				again = replay(t, s.ReplayAddr(), 0)
			}
			if len(again) != 4 {
				t.Fatalf("%d messages are kept, want 3 and the end", len(again))
			}
			for _, f := range again[:3] {
				n := len(f)
				if n != c.frames {
					t.Fatalf("%d frames", n)
				}
				seq := binary.BigEndian.Uint64(f[n-2])
				for len(live[seq].payload) == 0 {
					select {
					case m := <-in:
						live[m.seq] = m
					case <-time.After(patience):
						t.Fatalf("batch %d was replayed and not published", seq)
					}
				}
				if string(f[n-1]) != string(live[seq].payload) {
					t.Errorf("batch %d is another one when it is replayed", seq)
				}
				if c.frames == 4 && string(f[1]) != "kv" {
					t.Errorf("the topic is %q", f[1])
				}
			}
			last := binary.BigEndian.Uint64(again[2][c.frames-2])
			if rest := replay(t, s.ReplayAddr(), last+100); len(rest) != 1 {
				t.Errorf("%d messages from the future", len(rest))
			}
		})
	}
}

// TestSnapshot: SGLang sends what is cached, under its own names, and marks the snapshot's position in its
// event stream.
func TestSnapshot(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.SGLang, KVEvents: "tcp://127.0.0.1:0", Snapshot: "tcp://127.0.0.1:0", Topic: "kv", Seed: 3})
	in := subscribe(t, s, 0)
	generate(t, s, 3, "salt")
	first := <-in
	if !strings.HasPrefix(first.topic, "kv\x00sgl-kv-epoch=") {
		t.Errorf("the topic is %q", first.topic)
	}
	ep, err := zmtp.ParseEndpoint(s.SnapshotAddr())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d, err := zmtp.DialDealer(ctx, ep, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Send(ctx, engineevents.SnapshotRequest()...); err != nil {
		t.Fatal(err)
	}
	var snap engineevents.Snapshot
	for done := false; !done; {
		frames, err := d.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if done, err = snap.AddMessage(frames); err != nil {
			t.Fatal(err)
		}
	}
	if snap.Len() == 0 {
		t.Error("nothing is cached")
	}
	for {
		select {
		case m := <-in:
			if strings.Contains(m.topic, "\x00sgl-kv-snapshot=") {
				return
			}
		case <-time.After(patience):
			t.Fatal("nothing marks the moment of the snapshot")
		}
	}
}

// TestRestart: numbers start over, the cache is empty, and subscribers reconnect.
func TestRestart(t *testing.T) {
	var engines opened
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Open: engines.by(opener(t, shape{})), KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Seed: 3})
	in := subscribe(t, s, 0)
	generate(t, s, 3, "salt")
	before := <-in
	if before.seq != 0 {
		t.Errorf("the first batch is %d", before.seq)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); s.Subscribers() == 0; {
		if time.Now().After(end) {
			t.Fatal("the subscriber does not come back")
		}
	}
	for len(in) > 0 {
		<-in
	}
	generate(t, s, 1, "salt")
	select {
	case m := <-in:
		if m.seq != 0 {
			t.Errorf("the first batch after the restart is %d", m.seq)
		}
		if string(m.payload) == string(before.payload) {
			t.Error("blocks have the names of the life before")
		}
	case <-time.After(patience):
		t.Fatal("nothing is published")
	}
	if all := replay(t, s.ReplayAddr(), 0); len(all) < 2 || binary.BigEndian.Uint64(all[0][2]) != 0 {
		t.Errorf("%d messages are replayed, the first is not 0", len(all))
	}
}

// TestRanks: each rank has its own cache, endpoint and number, and requests can be pinned.
func TestRanks(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Ranks: 2, KVEvents: "tcp://127.0.0.1:0", Seed: 3})
	ins := []<-chan message{subscribe(t, s, 0), subscribe(t, s, 1)}
	for rank, in := range ins {
		status, _, body := ask(t, s, "POST", "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":1}`, jsonOf(prompt(9, 64))), "X-data-parallel-rank", fmt.Sprint(rank))
		if status != http.StatusOK {
			t.Fatal(status, body)
		}
		select {
		case m := <-in:
			var d engineevents.Decoder
			var b engineevents.Batch
			if err := d.Decode(m.payload, &b); err != nil || b.Rank != rank || m.seq != 0 {
				t.Errorf("rank %d: batch %d of rank %d, %v", rank, m.seq, b.Rank, err)
			}
		case <-time.After(patience):
			t.Fatalf("rank %d publishes nothing", rank)
		}
	}
	if status, _, _ := ask(t, s, "POST", "/v1/completions", `{"prompt":"x"}`, "X-data-parallel-rank", "2"); status != http.StatusBadRequest {
		t.Errorf("a rank that there is not: %d", status)
	}
}
