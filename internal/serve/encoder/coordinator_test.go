package encoder

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/holders"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
	"penstock/internal/serve/servetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

func cardOf(change func(*engine.Card)) engine.Card {
	c := engine.Card{Name: "m", BlockSize: 4, Ranks: 1, ContextLength: 100, VocabSize: 100, Media: []string{"image"}, Encoder: "weights"}
	if change != nil {
		change(&c)
	}
	return c
}

// fleet is a set of encode workers, each of which is a function, and a client of them.
type fleet struct {
	t        *testing.T
	calls    *rpc.MemPlane
	registry *servetest.Registry
	client   *Coordinator
	holders  fixedHolders
	regions  fixedRegions
	mu       sync.Mutex
	asked    []kv.WorkerID
	running  sync.WaitGroup
	ctx      context.Context
	stop     context.CancelFunc
}

// fixedHolders is an index with the same holders of every key.
type fixedHolders struct {
	ids    []kv.WorkerID
	listed atomic.Pointer[[]holders.Worker] // by SetWorkers
}

func (h *fixedHolders) Holders(*embcache.RowKey) []kv.WorkerID { return h.ids }
func (h *fixedHolders) SetWorkers(w []holders.Worker)          { h.listed.Store(&w) }

// handler answers a request for an object.
type handler func(ctx context.Context, req *engine.EncodeRequest) (*engine.Encoded, error)

func newFleet(t *testing.T, change func(*Config)) *fleet {
	f := &fleet{t: t, calls: rpc.NewMemPlane(), registry: servetest.NewRegistry()}
	f.ctx, f.stop = context.WithCancel(context.Background())
	cfg := Config{Card: cardOf(nil), Namespace: "n", Component: "c"}
	if change != nil {
		change(&cfg)
	}
	f.client = New(cfg, Services{RPC: f.calls, Registry: f.registry, Holders: &f.holders, Regions: &f.regions, Fetch: func(_ context.Context, addr string, handle, into []byte) ([]byte, error) {
		if string(handle) == "gone" {
			return nil, fault.New(fault.TransferFailed, "it did not come")
		}
		copy(into, handle)
		return binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(into))), nil
	}})
	f.running.Go(func() { _ = f.client.Run(f.ctx) }) // it says nothing but that ctx has ended
	return f
}

// end stops all and waits.
func (f *fleet) end() {
	f.stop()
	f.running.Wait()
}

// add starts a worker.
func (f *fleet) add(id kv.WorkerID, change func(*engine.Card), serve handler) disco.Instance {
	f.t.Helper()
	at := make(chan string, 1)
	f.running.Go(func() {
		err := f.calls.Serve(f.ctx, "", func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
			req := new(engine.EncodeRequest)
			if err := engine.DecodeEncodeRequest(body, req); err != nil || method != engine.MethodEncode {
				return fmt.Errorf("%s: %v", method, err)
			}
			f.mu.Lock()
			f.asked = append(f.asked, id)
			f.mu.Unlock()
			e, err := serve(ctx, req)
			if err != nil || e == nil {
				return err
			}
			return send(engine.AppendEncoded(nil, e))
		}, func(addr string) { at <- addr })
		if err != nil {
			f.t.Error(err)
		}
	})
	card := cardOf(func(c *engine.Card) {
		c.Role = engine.RoleEncode
		if change != nil {
			change(c)
		}
	})
	meta, err := engine.EncodeCard(card)
	if err != nil {
		f.t.Fatal(err)
	}
	in := disco.Instance{Kind: catalog.KindOf(card.Role), ID: id, Epoch: 1, Namespace: "n", Component: "c", Addr: <-at, Host: "h", Meta: meta}
	f.registry.Set(in)
	synctest.Wait()
	return in
}

// askedWorkers returns the workers which were asked since the call before.
func (f *fleet) askedWorkers() []kv.WorkerID {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.asked
	f.asked = nil
	return was
}

// content are the elements of two rows of one.
var content = []byte("12345678")

// encoded is a good answer, whose elements are fetched.
func encoded(change func(*engine.Encoded)) *engine.Encoded {
	e := &engine.Encoded{Attempt: 1, Rows: media.EncoderRows{
		Shape: []int{2, 1}, Type: media.Float32, Grid: [3]int{1, 2, 4}, Encoder: "e", Handle: content,
		Digest: binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(content))),
	}}
	if change != nil {
		change(e)
	}
	return e
}

func good(context.Context, *engine.EncodeRequest) (*engine.Encoded, error) { return encoded(nil), nil }

func failing(code fault.Code) handler {
	return func(context.Context, *engine.EncodeRequest) (*engine.Encoded, error) {
		return nil, fault.New(code, "it fails")
	}
}

func jobOf(seed byte) *engine.EncodeJob {
	o := &media.Object{Kind: media.Image, Key: media.Key{Hash: 7, Digest: kv.Digest{seed}}, Source: "https://example.com/a.png"}
	return &engine.EncodeJob{
		ID: "r", Object: o, Rows: 2, Width: 1, Into: make([]byte, len(content)),
		Key: embcache.RowKey{Salt: "s", Kind: uint8(o.Kind), Digest: o.Key.Digest, Encoder: "e", Type: uint8(media.Float32)},
	}
}

// TestEncodes: rows come in either way, and what the worker was asked.
func TestEncodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); f.client.HasEncoders() || fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("without workers: %v", err)
		}
		var got engine.EncodeRequest
		f.add(3, nil, func(_ context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
			got = *req
			return encoded(func(e *engine.Encoded) {
				if req.ID == "inline" {
					e.Rows.Data, e.Rows.Handle = content, nil
				}
			}), nil
		})
		for _, id := range []string{"r", "inline"} {
			job := jobOf(1)
			job.ID = id
			grid, err := f.client.EncodeObject(t.Context(), job)
			if err != nil || grid != [3]int{1, 2, 4} || !bytes.Equal(job.Into, content) {
				t.Errorf("%s: %v %q %v", id, grid, job.Into, err)
			}
			if got.ID != id || got.Attempt != 1 || got.Model != "m" || got.Namespace != "s" || got.Encoder != "e" || len(got.Objects) != 1 || got.Objects[0].Source != job.Object.Source || got.CachedOnly {
				t.Errorf("%s: asked %+v", id, got)
			}
		}
	})
}

// TestWorkersOfTheModel: only workers of the model's encoder are asked.
func TestWorkersOfTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*engine.Card)
		edit   func(*disco.Instance)
		asked  bool
	}{
		"equal":             {nil, nil, true},
		"other numerics":    {func(c *engine.Card) { c.Numerics = "other" }, nil, true},
		"other weights":     {func(c *engine.Card) { c.Encoder = "other" }, nil, false},
		"unknown weights":   {func(c *engine.Card) { c.Encoder = "" }, nil, false},
		"other media":       {func(c *engine.Card) { c.Media = []string{"video"} }, nil, false},
		"another model":     {func(c *engine.Card) { c.Name = "other" }, nil, false},
		"another component": {nil, func(in *disco.Instance) { in.Component = "d" }, false},
		"another namespace": {nil, func(in *disco.Instance) { in.Namespace = "o" }, false},
		"another role":      {func(c *engine.Card) { c.Role = engine.RoleAggregated }, func(in *disco.Instance) { in.Kind = disco.KindEncode }, false},
		"no card":           {nil, func(in *disco.Instance) { in.Meta = []byte("{") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, nil)
				defer f.end()
				in := f.add(3, c.change, good)
				if c.edit != nil {
					f.registry.Delete(in)
					c.edit(&in)
					f.registry.Set(in)
					synctest.Wait()
				}
				if f.client.HasEncoders() != c.asked {
					t.Errorf("has encoders: %v", !c.asked)
				}
				f.registry.Delete(in)
				synctest.Wait()
				if f.client.HasEncoders() {
					t.Error("after it has left, too")
				}
			})
		})
	}
}

// TestOneWorkerForAKey: two clients ask one worker for a key, without a word between them; holders come first; keys
// differ by salt.
func TestOneWorkerForAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		for id := range kv.WorkerID(5) {
			f.add(id+1, nil, good)
		}
		other := New(Config{Card: cardOf(nil), Namespace: "n", Component: "c"}, f.client.services)
		f.running.Go(func() { _ = other.Run(f.ctx) })
		synctest.Wait()
		firsts := map[kv.WorkerID]bool{}
		ask := func(c *Coordinator, job *engine.EncodeJob) kv.WorkerID {
			if _, err := c.EncodeObject(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			asked := f.askedWorkers()
			if len(asked) != 1 {
				t.Fatalf("asked %v", asked)
			}
			return asked[0]
		}
		moved := 0
		for seed := range byte(20) {
			a, b := ask(f.client, jobOf(seed+1)), ask(other, jobOf(seed+1))
			if a != b {
				t.Errorf("key %d: %d and %d", seed, a, b)
			}
			firsts[a] = true
			salted := jobOf(seed + 1)
			salted.Key.Salt = "t"
			if ask(f.client, salted) != a {
				moved++
			}
		}
		if len(firsts) != 5 || moved < 10 {
			t.Errorf("keys went to %v, and %d to another worker with another salt", firsts, moved)
		}
		for id := range kv.WorkerID(5) {
			f.holders.ids = []kv.WorkerID{id + 1, 99}
			if got := ask(f.client, jobOf(1)); got != id+1 {
				t.Errorf("worker %d has the rows, and %d is asked", id+1, got)
			}
		}
	})
}

// TestIndexIsToldWorkers: the index of holders knows which encode workers of the model publish their events.
func TestIndexIsToldWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		publishes := func(c *engine.Card) { c.EmbeddingEvents = true }
		first := f.add(1, publishes, nil)
		f.add(2, nil, nil)
		f.add(3, func(c *engine.Card) { publishes(c); c.Encoder = "of another model" }, nil)
		synctest.Wait()
		if got, want := *f.holders.listed.Load(), []holders.Worker{{Worker: kv.Worker{ID: 1}, Epoch: first.Epoch}}; !slices.Equal(got, want) {
			t.Errorf("told of %v, want %v", got, want)
		}
	})
}

// TestFailures: another worker is asked after a failure, no more than two are, and one which has failed is left alone
// for a while. After an error about the object no other worker is asked.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code, c := range map[fault.Code]struct {
			another bool
			pause   time.Duration
		}{
			fault.Unavailable: {true, 5 * time.Second}, fault.TransferFailed: {true, 5 * time.Second}, fault.Internal: {true, 5 * time.Second},
			fault.Draining: {true, 5 * time.Second}, fault.Overloaded: {true, time.Second}, fault.Conflict: {true, refusalPause},
			fault.Unimplemented: {true, refusalPause}, fault.NotFound: {true, refusalPause}, fault.MediaFailed: {false, 0},
		} {
			f := newFleet(t, nil)
			for id := range kv.WorkerID(3) {
				f.add(id+1, nil, failing(code))
			}
			want := 1
			if c.another {
				want = 2
			}
			_, err := f.client.EncodeObject(t.Context(), jobOf(1))
			first := f.askedWorkers()
			if fault.CodeOf(err) != code || len(first) != want {
				t.Errorf("%v: asked %v, %v", code, first, err)
			}
			_, err = f.client.EncodeObject(t.Context(), jobOf(1))
			next := f.askedWorkers()
			if c.another && (len(next) != 1 || slices.Contains(first, next[0]) || f.client.HasEncoders()) || !c.another && !slices.Equal(first, next) {
				t.Errorf("%v: asked %v, then %v, %v", code, first, next, err)
			}
			time.Sleep(c.pause - time.Nanosecond) // virtual time (synctest): just before the pause ends
			if c.another && f.client.HasEncoders() {
				t.Errorf("%v: asked again before %v", code, c.pause)
			}
			time.Sleep(time.Nanosecond) // virtual time (synctest): it ends
			if !f.client.HasEncoders() {
				t.Errorf("%v: not asked again after %v", code, c.pause)
			}
			f.end()
		}
	})
}

// TestBadAnswers: rows which were not asked for are not taken.
func TestBadAnswers(t *testing.T) {
	for name, change := range map[string]func(*engine.Encoded){
		"another attempt":  func(e *engine.Encoded) { e.Attempt = 2 },
		"another object":   func(e *engine.Encoded) { e.Object = 1 },
		"too few rows":     func(e *engine.Encoded) { e.Rows.Shape[0] = 1 },
		"another width":    func(e *engine.Encoded) { e.Rows.Shape[1] = 2 },
		"layers":           func(e *engine.Encoded) { e.Rows.Shape = []int{1, 2, 1} },
		"another type":     func(e *engine.Encoded) { e.Rows.Type = media.BFloat16 },
		"another encoder":  func(e *engine.Encoded) { e.Rows.Encoder = "other" },
		"another digest":   func(e *engine.Encoded) { e.Rows.Digest[0]++ },
		"no digest":        func(e *engine.Encoded) { e.Rows.Digest = nil },
		"not fetched":      func(e *engine.Encoded) { e.Rows.Handle = []byte("gone") },
		"damaged inline":   func(e *engine.Encoded) { e.Rows.Data, e.Rows.Handle = []byte("1234567X"), nil },
		"no answer at all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, nil)
				defer f.end()
				f.add(1, nil, func(context.Context, *engine.EncodeRequest) (*engine.Encoded, error) {
					if change == nil {
						return nil, nil
					}
					return encoded(change), nil
				})
				if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); err == nil {
					t.Error("taken")
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		f.add(1, nil, func(context.Context, *engine.EncodeRequest) (*engine.Encoded, error) {
			return encoded(func(e *engine.Encoded) { e.Rows.Shape[0] = 3 }), nil
		})
		if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); fault.CodeOf(err) != fault.MediaFailed || !f.client.HasEncoders() {
			t.Errorf("an object of another size: %v", err)
		}
	})
}

// TestBounds: a worker which does not answer is left after the limit, and a request which ends ends its call.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		ended := make(chan error, 1)
		f.add(1, nil, func(ctx context.Context, _ *engine.EncodeRequest) (*engine.Encoded, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		})
		begin := time.Now()
		if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); err == nil || time.Since(begin) != time.Minute || <-ended == nil {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if f.client.HasEncoders() {
			t.Error("it is asked again at once")
		}
		time.Sleep(5 * time.Second) // virtual time (synctest): the pause after a failure ends
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if _, err := f.client.EncodeObject(ctx, jobOf(1)); !errors.Is(err, context.Canceled) || <-ended == nil {
			t.Errorf("cancelled: %v", err)
		}
		if !f.client.HasEncoders() {
			t.Error("a request which ended is the worker's fault")
		}
		within, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.client.EncodeObject(within, jobOf(1)); !errors.Is(err, context.DeadlineExceeded) || <-ended == nil {
			t.Errorf("late: %v", err)
		}
		if f.client.HasEncoders() {
			t.Error("it is asked again at once by a caller which waits less long")
		}
	})
}

// TestLoad: a worker with far more to do than the mean is passed over, by what this process has sent and by what the
// worker says.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		load := 100 // of the first one which is asked
		for id := range kv.WorkerID(4) {
			f.add(id+1, nil, func(context.Context, *engine.EncodeRequest) (*engine.Encoded, error) {
				defer func() { load = 0 }()
				return encoded(func(e *engine.Encoded) { e.Load = load }), nil
			})
		}
		asks := func() kv.WorkerID {
			if _, err := f.client.EncodeObject(t.Context(), jobOf(1)); err != nil {
				t.Fatal(err)
			}
			return f.askedWorkers()[0]
		}
		first := asks()
		if second := asks(); second == first {
			t.Error("its 100 objects are no reason to ask another")
		}
		time.Sleep(reportAge) // virtual time (synctest): the reported load is too old
		if again := asks(); again != first {
			t.Error("what it said long ago is a reason to ask another")
		}
	})
}

// TestContentIsNotSentTwice: what travels with a request is sent only to a worker which does not have the rows.
func TestContentIsNotSentTwice(t *testing.T) {
	long := "data:image/png;base64," + strings.Repeat("A", maxAttached)
	for name, c := range map[string]struct {
		change   func(*media.Object)
		has      bool
		requests int
	}{
		"data URI, there":     {func(o *media.Object) { o.Source = long }, true, 1},
		"data URI, not there": {func(o *media.Object) { o.Source = long }, false, 2},
		"tensor, not there": {func(o *media.Object) {
			o.Source, o.Tensor = "", media.Tensor{Shape: []int{40, 40, 3}, Data: make([]byte, 4800)}
		}, false, 2},
		"tensor and URL": {func(o *media.Object) { o.Tensor = media.Tensor{Shape: []int{40, 40, 3}, Data: make([]byte, 4800)} }, false, 1},
		"a place":        {func(o *media.Object) { o.Source, o.Tensor = long, media.Tensor{Shape: []int{40, 40, 3}, Place: "p"} }, false, 1},
		"a short URI":    {func(o *media.Object) { o.Source = "data:,A" }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, nil)
				defer f.end()
				job := jobOf(1)
				c.change(job.Object)
				f.add(1, nil, func(_ context.Context, req *engine.EncodeRequest) (*engine.Encoded, error) {
					o := &req.Objects[0]
					attached := o.Source == long || len(o.Tensor.Data) > 0
					switch {
					case req.CachedOnly && attached, !req.CachedOnly && o.Source == "" && o.Tensor.IsZero():
						t.Errorf("asked %+v", req)
					case req.CachedOnly && !c.has:
						return nil, fault.New(fault.NotFound, "not here")
					}
					return encoded(nil), nil
				})
				before := *job.Object
				_, err := f.client.EncodeObject(t.Context(), job)
				if n := len(f.askedWorkers()); err != nil || n != c.requests || job.Object.Source != before.Source || len(job.Object.Tensor.Data) != len(before.Tensor.Data) {
					t.Errorf("%d requests, %v", n, err)
				}
			})
		})
	}
}

// TestRegistryFails: the workers stay when the registry fails, and one with a new epoch is another one.
func TestRegistryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, nil)
		defer f.end()
		in := f.add(1, nil, failing(fault.Conflict))
		_, _ = f.client.EncodeObject(t.Context(), jobOf(1)) // it pauses
		in.Epoch++
		f.registry.Set(in)
		synctest.Wait()
		if !f.client.HasEncoders() {
			t.Error("a worker which was started again is left alone")
		}
	})
}
