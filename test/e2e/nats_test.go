package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/internal/fixturetest"
)

// garbage is what a client that is not ours may publish: messages that no process
// can read, events of workers that do not exist, events and load reports of other
// lives of registered workers, requests for resyncs, a worker with a broken card.
func garbage(r *rand.Rand, n int) (subject string, data []byte) {
	const base = "penstock.penstock."
	key := fmt.Sprintf("%d/0", r.IntN(4))
	events := func(id, blockSize int) []byte {
		rec := kvfeed.Record{Worker: kv.Worker{ID: kv.WorkerID(id)}, Epoch: 1, First: 1 + uint64(n), BlockSize: uint32(blockSize)}
		rec.Events = []kv.Event{{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: make([]kv.BlockHash, 50)}}
		for i := range rec.Events[1].Blocks {
			rec.Events[1].Blocks[i] = kv.BlockHash(r.Uint64())
		}
		return kvfeed.AppendRecord(nil, &rec)
	}
	switch n % 9 {
	case 0:
		return base + "backend.kv-events." + key, make([]byte, r.IntN(200))
	case 1:
		return base + "backend.kv-events." + key, events(1, 16) // mostly under another's key, always of a life that is over
	case 2:
		id := 1000 + r.IntN(1000)
		return base + fmt.Sprintf("backend.kv-events.%d/0", id), events(id, r.IntN(40))
	case 3:
		return base + "kv-resync." + key, []byte("now")
	case 4:
		return base + "load." + key, fmt.Appendf(nil, `{"worker_id":%s,"epoch":18446744073709551615,"state":"draining","kv_next":18446744073709551615,"load":{"used_blocks":-1}}`, key[:1])
	case 5:
		return base + "load." + key, []byte(strings.Repeat("{", r.IntN(9000)))
	case 6:
		return base + "backend.kv-events.zz==", []byte("x")
	case 7:
		return "$KV.penstock_discovery.instance.worker.99999999999999999999", []byte(`{"kind":"worker"}`)
	}
	return "$KV.penstock_discovery.instance.worker.77", []byte(`{"kind":"worker","id":77,"epoch":1,"namespace":"penstock","addr":"mem-1","holder":"x","meta":"e30="}`)
}

// TestForeignClientOnNATS: while another client publishes garbage to our subjects
// and deletes our streams and buckets, every request is served with the same
// tokens, and afterwards the index is what the workers say of themselves.
func TestForeignClientOnNATS(t *testing.T) {
	t.Parallel()
	s := start(t, "nats-listen=127.0.0.1:0", "kv-cache-blocks=256", "max-num-batched-tokens=256")
	nc, err := nats.Connect(s.ready.NATS, nats.Timeout(fixturetest.TimeLeft(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		r := rand.New(rand.NewPCG(1, 1))
		pace := time.NewTicker(200 * time.Microsecond)
		defer pace.Stop()
		for n := 0; ; n++ {
			subject, data := garbage(r, n)
			if err := nc.Publish(subject, data); err != nil {
				t.Error(err)
			}
			select {
			case <-pace.C:
			case <-stop:
				return
			}
		}
	})
	want := map[int]string{}
	for i := range 3 {
		want[i] = s.complete("/v1/chat/completions", chat(longPrompt(i), 20)).text
	}
	load := func(when string) {
		var clients sync.WaitGroup
		for i := range 24 {
			clients.Go(func() {
				got, err := s.stream(t.Context(), "/v1/chat/completions", chat(longPrompt(i%3), 20))
				if err != nil || got.output != 20 || got.text != want[i%3] {
					t.Errorf("%s: %+v, %v; want %q", when, got, err, want[i%3])
				}
			})
		}
		clients.Wait()
	}
	load("under garbage")
	for _, stream := range []string{"KV_penstock_discovery", "penstock_penstock+backend+kv-events"} {
		if err := js.DeleteStream(fixturetest.PatientContext(t), stream); err != nil {
			t.Fatal(err)
		}
		load("after " + stream + " was deleted")
	}
	close(stop)
	storm.Wait()

	s.eventually("the index is what the workers say", func() bool {
		s.complete("/v1/chat/completions", chat(longPrompt(0), 1))
		ready := 0
		for _, w := range s.workers() {
			if w.State != "ready" || w.Feed.State != "live" {
				continue
			}
			if r := w.Load.Reported; r != nil && r.UsedBlocks == 0 && r.CachedBlocks == w.CachedBlocks {
				ready++
			}
		}
		return ready == 2
	})
	s.idle()
}
