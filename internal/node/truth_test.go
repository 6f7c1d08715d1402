package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock/internal/node/engines"
	"penstock/internal/node/planes"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
)

// TestIndexIsTheTruth: after a load under which caches overflowed, the router's index equals the engines'
// caches, block by block.
func TestIndexIsTheTruth(t *testing.T) {
	for _, engine := range []string{config.EngineTiny, config.EngineSim} {
		t.Run(engine, func(t *testing.T) { testIndexIsTheTruth(t, engine) })
	}
}

func testIndexIsTheTruth(t *testing.T, engine string) {
	cfg, err := config.Load("", []string{"PENSTOCK_ENGINE=" + engine, "PENSTOCK_SIM_SPEEDUP=100", "PENSTOCK_KV_CACHE_BLOCKS=96", "PENSTOCK_MAX_NUM_SEQS=16", "PENSTOCK_ROUTER_SEED=1", "PENSTOCK_WORKERS=3"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	planes, err := planes.Open(t.Context(), cfg, log)
	defer func() {
		if err := planes.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	local, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	u := newUpRole(&process{cfg: cfg, log: log, metrics: obs.NewMetrics(), planes: planes, model: local, listener: ln}, nil)
	if err := u.buildServices(); err != nil {
		t.Fatal(err)
	}
	stages, life := newStages(t.Context())
	defer func() {
		if err := stages.stopAll(); err != nil {
			t.Error(err)
		}
	}()
	u.startServices(life, stages)
	if err := u.awaitReady(life); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	url, model := "http://"+ln.Addr().String(), cfg.ModelName()

	var storm sync.WaitGroup
	for c := range 12 {
		storm.Go(func() {
			for i := range 6 {
				sendCompletion(t, client, url, model, c*6+i)
			}
		})
	}
	storm.Wait()

	late := time.NewTimer(fixturetest.TimeLeft(t))
	defer late.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		have, want := dumpIndex(t, client, url), map[kv.WorkerID][]kv.SeqHash{}
		blocks := 0
		for i, e := range u.model.Engines {
			held := heldBlocks(t, e)
			blocks += len(held)
			want[kv.WorkerID(i+1)] = held
		}
		if maps.EqualFunc(have, want, slices.Equal) {
			if blocks < 96 {
				t.Errorf("the engines hold %d blocks: the storm was none", blocks)
			}
			return
		}
		select {
		case <-look.C:
		case <-late.C:
			t.Fatalf("the index says\n%v\nthe engines hold\n%v", have, want)
		}
	}
}

// sendCompletion sends prompt i: one of six prefixes, with its own end.
func sendCompletion(t *testing.T, client *http.Client, url, model string, i int) {
	prompt := make([]int, 0, 512)
	for j := range 200 + i%6*40 {
		prompt = append(prompt, 300+(j*31+i%6*17)%1200)
	}
	for j := range 40 + i {
		prompt = append(prompt, 300+(j*7+i*13)%1200)
	}
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": 3 + i%20})
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("request %d: %s, %v: %s", i, resp.Status, err, answer)
	}
}

// dumpIndex reads each worker's blocks from the index, ascending.
func dumpIndex(t *testing.T, client *http.Client, url string) map[kv.WorkerID][]kv.SeqHash {
	t.Helper()
	resp, err := client.Get(url + "/v1/router/index/dump")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	held := map[kv.WorkerID][]kv.SeqHash{}
	for d := json.NewDecoder(resp.Body); ; {
		var row struct {
			WorkerID kv.WorkerID `json:"worker_id"`
			Seq      string      `json:"seq"`
		}
		if err := d.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		var seq uint64
		if _, err := fmt.Sscanf(row.Seq, "%x", &seq); err != nil {
			t.Fatalf("%q: %v", row.Seq, err)
		}
		held[row.WorkerID] = append(held[row.WorkerID], kv.SeqHash(seq))
	}
	for _, seqs := range held {
		slices.Sort(seqs)
	}
	return held
}

// errDescribed ends a watch after its first events, which describe the cache.
var errDescribed = errors.New("described")

// heldBlocks reads an engine's cached blocks, ascending.
func heldBlocks(t *testing.T, e engine.KVSource) []kv.SeqHash {
	t.Helper()
	var held []kv.SeqHash
	err := e.WatchKV(t.Context(), func(events []kv.Event) error {
		for _, ev := range events {
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				held = append(held, seq)
			}
		}
		return errDescribed
	})
	if !errors.Is(err, errDescribed) && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	slices.Sort(held)
	return slices.Compact(held)
}
