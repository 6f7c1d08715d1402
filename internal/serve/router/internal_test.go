package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// TestBlockSizeChangesMeanwhile: a prompt that was hashed for a pool which is
// gone by the time the lock is held is hashed anew.
func TestBlockSizeChangesMeanwhile(t *testing.T) {
	r, err := New(Config{}, Planes{}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	instance := func(blockSize int) disco.Instance {
		meta, err := engine.EncodeCard(engine.Card{Name: "m", BlockSize: blockSize, Ranks: 1, ContextLength: 100, VocabSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		return disco.Instance{Kind: disco.Worker, ID: 1, Epoch: 1, Namespace: "penstock", Meta: meta}
	}
	r.setInstances([]disco.Instance{instance(4)})
	old, err := r.find("m")
	if err != nil {
		t.Fatal(err)
	}
	r.setInstances([]disco.Instance{instance(8)})
	done, _ := r.locked(old, &scratch{}, &route.Query{}, func(*pool, *route.Query) error {
		t.Error("decided with hashes of the wrong block size")
		return nil
	})
	if done {
		t.Error("the pool that is gone answered")
	}
	d, err := r.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: make([]kv.Token, 20)})
	if err != nil || d.BlockSize != 8 {
		t.Errorf("routed to %+v, %v", d, err)
	}
}

// TestDecisionsAreBounded: the request that came first is forgotten first, and
// of one request the first attempts.
func TestDecisionsAreBounded(t *testing.T) {
	var d decisions
	d.init(3)
	at := time.Unix(0, 0)
	add := func(id string, attempt uint32, err error) {
		d.routed(&route.Request{ID: id, Attempt: attempt, Model: "m"}, &route.Decision{}, err, at)
	}
	for i := range 5 {
		add(fmt.Sprint(i), 1, nil)
	}
	if n := len(d.mu.byID); n != 3 {
		t.Errorf("%d requests are remembered, want 3", n)
	}
	for i, want := range []bool{false, false, true, true, true} {
		if _, err := d.get(fmt.Sprint(i)); (err == nil) != want {
			t.Errorf("request %d: %v", i, err)
		}
	}
	for attempt := range uint32(2 * maxAttempts) {
		add("4", attempt, errors.New("no"))
	}
	got, err := d.get("4")
	if err != nil || len(got.Attempts) != maxAttempts || got.Attempts[maxAttempts-1].Attempt != 2*maxAttempts-1 {
		t.Errorf("%d attempts are remembered, %v", len(got.Attempts), err)
	}
	if a := got.Attempts[0]; a.Error != fault.Internal.String() {
		t.Errorf("attempt %+v", a)
	}
}

// TestContentParts: parts are the lines of one text, and however many there are,
// reading them takes memory in proportion to the body.
func TestContentParts(t *testing.T) {
	var c content
	if err := json.Unmarshal([]byte(`[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]`), &c); err != nil || c != "a\n\nb" {
		t.Errorf("read as %q, %v", c, err)
	}
	const n = 10_000
	body := []byte("[" + strings.Repeat(`{"type":"text","text":"abcdefgh"},`, n-1) + `{"type":"text","text":"abcdefgh"}]`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := json.Unmarshal(body, &c); err != nil || len(c) != 9*n-1 {
		t.Fatalf("%d bytes, %v", len(c), err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 100*uint64(len(body)) {
		t.Errorf("a body of %d bytes took %d bytes of memory", len(body), used)
	}
}
