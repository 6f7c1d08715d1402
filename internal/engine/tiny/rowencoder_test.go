package tiny

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"penstock/core/embcache"
	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// elsewhere has objects encoded by a RowEncoder of this process, unless it fails or hangs.
type elsewhere struct {
	of     *RowEncoder
	fails  error
	hangs  bool // until a call's context ends
	change func(into []byte, grid *[3]int)
	asked  atomic.Int64
	mu     struct {
		sync.Mutex
		ends []error // of the contexts of calls which hung
	}
}

func (e *elsewhere) HasEncoders() bool { return true }

func (e *elsewhere) HasHolder(*embcache.RowKey) bool { return false }

func (e *elsewhere) EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	e.asked.Add(1)
	switch {
	case e.hangs:
		<-ctx.Done()
		e.mu.Lock()
		e.mu.ends = append(e.mu.ends, ctx.Err())
		e.mu.Unlock()
		return grid, ctx.Err()
	case e.fails != nil:
		return grid, e.fails
	}
	got, err := e.of.EncodeObject(ctx, &engine.EncodeRequest{Namespace: job.Key.Salt, Encoder: job.Key.Encoder}, job.Object)
	if err != nil {
		return grid, err
	}
	defer got.Release()
	if copy(job.Into, got.Rows.Data) != len(job.Into) || !slices.Equal(got.Rows.Shape, []int{job.Rows, job.Width}) {
		return grid, errors.New("another shape")
	}
	grid = got.Rows.Grid
	if e.change != nil {
		e.change(job.Into, &grid)
	}
	return grid, nil
}

// TestAnswersOfEncodedElsewhere: the answers about pictures, videos and sounds are the same whether the engine encodes
// them or a RowEncoder, and if that fails. What comes from elsewhere is kept.
func TestAnswersOfEncodedElsewhere(t *testing.T) {
	requests := illustrated(t, workload(8, 80, 12))
	own := seeing(t, nil)
	want, _ := alone(t, enginetest.Start(t, own), own, requests)
	encoded := own.EncoderStats().Encoded
	for name, c := range map[string]struct {
		remote *elsewhere
		here   bool // is it encoded here
	}{
		"elsewhere":       {&elsewhere{}, false},
		"it fails":        {&elsewhere{fails: fault.New(fault.Unavailable, "down")}, true},
		"a wrong grid":    {&elsewhere{change: func(_ []byte, g *[3]int) { g[1]++ }}, true},
		"another grid":    {&elsewhere{change: func(_ []byte, g *[3]int) { g[1], g[2] = 2*g[2], g[1]/2 }}, true},
		"a negative grid": {&elsewhere{change: func(_ []byte, g *[3]int) { g[1], g[2] = -g[1], -g[2] }}, true},
	} {
		t.Run(name, func(t *testing.T) {
			remote := c.remote
			remote.of = encoding(t, nil)
			e := seeing(t, func(c *Config) { c.Remote = remote })
			ctx := enginetest.Start(t, e)
			for range 2 {
				got, _ := alone(t, ctx, e, requests)
				same(t, name, want, got)
			}
			s := e.EncoderStats()
			if (s.Encoded > 0) != c.here || s.Cache.Hits == 0 || uint64(s.Cache.Entries) != encoded || uint64(remote.asked.Load()) != encoded {
				t.Errorf("asked %d times, %+v", remote.asked.Load(), s)
			}
			if n := remote.of.EncoderStats().Encoded; remote.fails == nil && n != encoded {
				t.Errorf("the encoder encoded %d objects of %d", n, encoded)
			}
		})
	}
}

// TestRowsElsewhereAreTheComputed: rows of a RowEncoder are the engine's own bit for bit, from its cache too.
func TestRowsElsewhereAreTheComputed(t *testing.T) {
	own, e := seeing(t, cacheOf(0)), encoding(t, nil)
	for i, c := range []struct {
		object media.Object
		pads   int
	}{{noise(media.Image, 1, 56, 84, 3), 6}, {noise(media.Video, 2, 3, 56, 56, 3), 8}, {noise(media.Audio, 3, 3000), 5}} {
		want := rowsOf(t, own, &c.object, "", c.pads)
		for _, cached := range []bool{false, true} {
			got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r"}, &c.object)
			if err != nil {
				t.Fatal(err)
			}
			r := got.Rows
			if got.Cached != cached || !slices.Equal(r.Shape, []int{c.pads, 32}) || r.Type != media.Float32 || !bytes.Equal(r.Data, littleBytes(want)) || r.Bytes(1<<20) != len(r.Data) {
				t.Errorf("object %d: cached %v, %v of %v", i, got.Cached, r.Shape, r.Type)
			}
			if r.Encoder != own.cpu.encoders.rows.encoder {
				t.Errorf("object %d: encoder %q", i, r.Encoder)
			}
			got.Release()
		}
	}
	if s := e.EncoderStats(); s.Encoded != 3 || s.Cache.Hits != 3 || s.Cache.Misses != 3 || e.EncodeLoad() != 0 {
		t.Errorf("%+v, load %d", s, e.EncodeLoad())
	}
}

// TestEncoderRefuses: what a RowEncoder cannot do, and that it reads no media for what it has.
func TestEncoderRefuses(t *testing.T) {
	e := encoding(t, nil)
	picture := noise(media.Image, 1, 56, 84, 3)
	key := picture // without content
	key.Tensor = media.Tensor{}
	ask := func(o media.Object, change func(*engine.EncodeRequest)) error {
		req := &engine.EncodeRequest{ID: "r", Namespace: "a"}
		if change != nil {
			change(req)
		}
		got, err := e.EncodeObject(t.Context(), req, &o)
		if err == nil {
			got.Release()
		}
		return err
	}
	cachedOnly := func(r *engine.EncodeRequest) { r.CachedOnly = true }
	anonymous := key
	anonymous.Key.Digest = kv.Digest{}
	for name, c := range map[string]struct {
		object media.Object
		change func(*engine.EncodeRequest)
		want   fault.Code
		text   string
	}{
		"another encoder":     {picture, func(r *engine.EncodeRequest) { r.Encoder = "other" }, fault.Conflict, "not made here"},
		"an unknown kind":     {media.Object{Kind: 9, Part: "p"}, nil, fault.Invalid, "'p': the model takes no media"},
		"no content":          {key, nil, fault.Invalid, "did not come with the request"},
		"not cached":          {key, cachedOnly, fault.NotFound, "no rows"},
		"without an identity": {anonymous, cachedOnly, fault.NotFound, "no rows"},
	} {
		if err := ask(c.object, c.change); fault.CodeOf(err) != c.want || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ask(picture, nil); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*engine.EncodeRequest){nil, cachedOnly} {
		if err := ask(key, change); err != nil {
			t.Errorf("rows which are there: %v", err)
		}
	}
	if err := ask(key, func(r *engine.EncodeRequest) { r.Namespace, r.CachedOnly = "b", true }); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("another salt: %v", err)
	}
	if err := ask(picture, func(r *engine.EncodeRequest) { r.Namespace = "b" }); err != nil || e.EncoderStats().Encoded != 2 {
		t.Errorf("another salt: %v, %+v", err, e.EncoderStats())
	}
	if err := e.Generate(t.Context(), within(80, greedy(1, 12, 4)), nil); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("generates: %v", err)
	}
	if s := e.EncoderStats().Cache; s.Hits != 2 || s.Misses != 3 {
		t.Errorf("%+v", s)
	}
	if c := e.Card(); c.Blocks != 0 || c.Encoder != seeing(t, nil).Card().Encoder || c.Validate() != nil {
		t.Errorf("%+v: %v", c, c.Validate())
	}
}

// crowd starts requests for one object while its encoder is held up, and returns how to let it go on.
type crowd struct {
	s       *mediaEncoders
	results []chan error
	leave   []context.CancelFunc
	unblock func()
}

func newCrowd(t *testing.T, e *RowEncoder, objects ...media.Object) *crowd {
	c := &crowd{s: e.encoders}
	c.unblock = blockEncoders(c.s)
	for i, o := range objects {
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		c.results, c.leave = append(c.results, ended), append(c.leave, leave)
		go func() {
			got, err := e.EncodeObject(ctx, &engine.EncodeRequest{ID: fmt.Sprint(i)}, &o)
			if err == nil {
				got.Release()
			}
			ended <- err
		}()
		synctest.Wait() // they come in order
	}
	return c
}

// TestJoinedRuns: requests for an object which is being encoded join that run. It goes on while any of them waits,
// and ends with the last.
func TestJoinedRuns(t *testing.T) {
	picture := noise(media.Image, 1, 56, 84, 3)
	stripped := picture
	stripped.Tensor = media.Tensor{}
	for name, c := range map[string]struct {
		leave         []int
		encoded, left int
	}{
		"all wait":              {nil, 1, 0},
		"the first leaves":      {[]int{0}, 1, 1},
		"all but one leave":     {[]int{0, 1, 2}, 1, 3},
		"all leave":             {[]int{3, 2, 1, 0}, 0, 4},
		"the first leaves last": {[]int{1, 2, 3, 0}, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := encoding(t, func(c *Config) { c.Encode.Threads = 1 })
				of := newCrowd(t, e, picture, picture, picture, picture)
				if n := e.EncodeLoad(); n != 4 || e.Load() != (engine.Load{Running: 1, Waiting: 3}) {
					t.Errorf("load %d, %+v", n, e.Load())
				}
				for _, i := range c.leave {
					of.leave[i]()
					synctest.Wait()
				}
				of.unblock()
				left := 0
				for i, ended := range of.results {
					switch err := <-ended; {
					case errors.Is(err, context.Canceled):
						left++
					case err != nil:
						t.Errorf("request %d: %v", i, err)
					}
				}
				synctest.Wait()
				if s := e.EncoderStats(); int(s.Encoded) != c.encoded || left != c.left || s.Cache.Misses != 4 || e.EncodeLoad() != 0 || len(of.s.runs.mu.byKey) != 0 {
					t.Errorf("%d left, %+v", left, s)
				}
				for _, leave := range of.leave {
					leave()
				}
			})
		})
	}
	t.Run("without content", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := encoding(t, nil)
			of := newCrowd(t, e, picture)
			ended := make(chan error, 1)
			go func() {
				got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{CachedOnly: true}, &stripped)
				if err == nil {
					got.Release()
				}
				ended <- err
			}()
			synctest.Wait()
			of.unblock()
			if err := errors.Join(<-ended, <-of.results[0]); err != nil || e.EncoderStats().Encoded != 1 {
				t.Errorf("%v, %+v", err, e.EncoderStats())
			}
			of.leave[0]()
		})
	})
}

// gatedFiles is a source of files which waits, and has none.
type gatedFiles struct{ open chan struct{} }

func (g gatedFiles) FetchFile(ctx context.Context, _ string) ([]byte, func(), error) {
	<-g.open
	return nil, nil, fault.New(fault.Unavailable, "there is no such file")
}

func (gatedFiles) ParseData(string) ([]byte, error) { return nil, errors.New("no data") }

// TestFailedRunOfAnother: a request which waited for another's run that failed encodes what it has itself.
func TestFailedRunOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := gatedFiles{make(chan struct{})}
		e := encoding(t, func(c *Config) { c.Files = files })
		good := noise(media.Image, 1, 56, 84, 3)
		bad := good
		bad.Tensor, bad.Source, bad.Part = media.Tensor{}, "https://example.com/a.png", "the other's"
		first, second := make(chan error, 1), make(chan error, 1)
		for _, c := range []struct {
			object media.Object
			end    chan error
		}{{bad, first}, {good, second}} {
			go func() {
				got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{}, &c.object)
				if err == nil {
					got.Release()
				}
				c.end <- err
			}()
			synctest.Wait()
		}
		close(files.open)
		if err := <-first; err == nil || !strings.Contains(err.Error(), "the other's") {
			t.Errorf("the first: %v", err)
		}
		if err := <-second; err != nil || e.EncoderStats().Encoded != 1 {
			t.Errorf("the second: %v, %+v", err, e.EncoderStats())
		}
	})
}

// TestPanicOfRun: a defect in a run fails its requests, and not the process.
func TestPanicOfRun(t *testing.T) {
	e := encoding(t, nil)
	_, _, err := e.encoders.runs.share(t.Context(), runKey{}, func(context.Context) (storedRows, error) { panic("defect") })
	if err == nil || !strings.Contains(err.Error(), "defect") || len(e.encoders.runs.mu.byKey) != 0 {
		t.Errorf("%v", err)
	}
}

// TestSeveralAtOnce: with encoders elsewhere the objects of a request are asked for at the same time, and objects
// of several requests once.
func TestSeveralAtOnce(t *testing.T) {
	remote := &elsewhere{of: encoding(t, nil)}
	e := seeing(t, func(c *Config) { c.Remote = remote })
	ctx := enginetest.Start(t, e)
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			req := within(80, greedy(1, 12, 4))
			for i := range 3 {
				show(t, req, len(req.Prompt)-1, noise(media.Image, uint64(i), 56, 84, 3))
			}
			enginetest.MustGenerate(t, ctx, e, req)
		})
	}
	running.Wait()
	if s := remote.of.EncoderStats(); s.Encoded != 3 || remote.asked.Load() != 3 || e.EncoderStats().Encoded != 0 {
		t.Errorf("asked %d times, %+v", remote.asked.Load(), s)
	}
}

// TestHungEncoderElsewhere: what workers which hang do not encode is encoded here in time, also if there are more
// objects than are asked for at once. The call to a worker ends by its own time, not with the request, so it is the
// worker's fault.
func TestHungEncoderElsewhere(t *testing.T) {
	for _, pictures := range []int{1, 20, 5 * maxParallel} {
		t.Run(fmt.Sprint(pictures, " pictures"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				remote := &elsewhere{hangs: true}
				e := seeing(t, func(c *Config) { c.Remote, c.EmbeddingCache = remote, new(0) })
				req := within(80, greedy(1, 30, 4))
				for seed := range uint64(pictures) {
					show(t, req, len(req.Prompt)-1, noise(media.Image, seed, 56, 56, 3))
				}
				result, accepted := ask(enginetest.Start(t, e), e, req)
				got := <-result
				s := e.EncodeStats()
				if got.err != nil || !isClosed(accepted) || s.Encoded != uint64(pictures) || s.Failures[encode.DeadlinePassed] != 0 || e.EncoderStats().Encoded != uint64(pictures) {
					t.Errorf("%v, accepted: %t, %+v", got.err, isClosed(accepted), s)
				}
				if len(remote.mu.ends) == 0 || slices.ContainsFunc(remote.mu.ends, func(err error) bool { return err != context.DeadlineExceeded }) {
					t.Errorf("the calls ended with %v", remote.mu.ends)
				}
			})
		})
	}
}

// TestFitsGrid: grids of objects whose size is not known.
func TestFitsGrid(t *testing.T) {
	s := seeing(t, nil).cpu.encoders
	for _, c := range []struct {
		kind media.Kind
		pads int
		grid [3]int
		fits bool
	}{
		{media.Image, 6, [3]int{1, 4, 6}, true},
		{media.Image, 6, [3]int{1, 4, 4}, false},
		{media.Image, 6, [3]int{}, false},
		{media.Image, 6, [3]int{1, 3, 8}, false},
		{media.Image, 6, [3]int{-1, -4, 6}, false},
		{media.Image, 6, [3]int{1 << 62, 4, 4}, false},
		{media.Video, 8, [3]int{2, 4, 4}, true},
		{media.Audio, 5, [3]int{}, true},
		{media.Audio, 5, [3]int{1, 2, 10}, false},
	} {
		if got := s.fitsGrid(&media.Object{Kind: c.kind}, c.pads, c.grid); got != c.fits {
			t.Errorf("%v of %d rows: %v fits: %v", c.kind, c.pads, c.grid, got)
		}
	}
}

// TestMemoryOfEncoders: a RowEncoder takes an embedding cache of its own and no KV cache; engines share one.
func TestMemoryOfEncoders(t *testing.T) {
	cfg := Config{Vocabulary: Vocabulary{Size: 2048, EOS: []kv.Token{127}, Names: pads}, Blocks: 4, EmbeddingCache: new(1 << 20)}
	var need *MemoryError
	for _, c := range []struct{ engines, encoders, caches int }{{0, 2, 2}, {2, 0, 1}, {2, 3, 4}} {
		cfg.MemoryLimit = 1
		if _, _, err := Open(t.Context(), cfg, c.engines, c.encoders); !errors.As(err, &need) || need.Engines != c.engines || need.Embeddings != uint64(c.caches)<<20 {
			t.Fatalf("%+v: %v", c, err)
		}
		cfg.MemoryLimit = need.Weights + need.Embeddings + uint64(c.engines)*need.Cache
		engines, encoders, err := Open(t.Context(), cfg, c.engines, c.encoders)
		if err != nil || len(engines) != c.engines || len(encoders) != c.encoders {
			t.Fatalf("%+v: %d engines, %d encoders, %v", c, len(engines), len(encoders), err)
		}
		o := noise(media.Image, 1, 56, 56, 3)
		for i, e := range encoders {
			got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{}, &o)
			if err != nil {
				t.Fatal(err)
			}
			got.Release()
			if s := e.EncoderStats(); s.Encoded != 1 || s.Cache.Capacity != 1<<20 {
				t.Errorf("encoder %d: %+v", i, s)
			}
		}
	}
}

// TestAbandonedRun: rows of a run which ends when no request waits for it stay in the cache, and are not held.
func TestAbandonedRun(t *testing.T) {
	e := seeing(t, nil)
	of := e.cpu.encoders
	o := noise(media.Image, 1, 56, 84, 3)
	key := of.rows.keyOf(&o, "")
	ctx, leave := context.WithCancel(t.Context())
	_, _, err := of.runs.share(ctx, runKey{key, 6}, func(life context.Context) (storedRows, error) {
		leave()
		<-life.Done()
		return of.rows.storeRows(&key, &o, make([]float32, 6*of.rows.width), [3]int{1, 4, 6}), nil
	})
	if !errors.Is(err, context.Canceled) || !of.rows.hasRows(&key) {
		t.Errorf("%v, and the rows are kept: %t", err, of.rows.hasRows(&key))
	}
	expectNoPins(t, e.EncoderStats())
}

// holding has rows in the cache of another engine, which encodes for no other.
type holding struct {
	of    *Engine
	asked atomic.Int64
}

func (h *holding) HasEncoders() bool { return false }

func (h *holding) HasHolder(key *embcache.RowKey) bool { return h.of.cpu.encoders.rows.hasRows(key) }

func (h *holding) EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	h.asked.Add(1)
	got, err := h.of.HeldRows(ctx, &engine.EncodeRequest{Namespace: job.Key.Salt, Encoder: job.Key.Encoder, CachedOnly: true}, job.Object)
	if err != nil {
		return grid, err
	}
	defer got.Release()
	copy(job.Into, got.Rows.Data)
	return got.Rows.Grid, nil
}

// TestHeldRows: an engine takes what another one's cache has, bit for bit, and encodes what it does not have, and what
// it has for another salt. The other one's figures do not change.
func TestHeldRows(t *testing.T) {
	other := &holding{of: seeing(t, nil)}
	e := seeing(t, func(c *Config) { c.Remote = other })
	ran, otherRan := encodes(t, e), encodes(t, other.of)
	held, absent := noise(media.Image, 1, 56, 84, 3), noise(media.Image, 2, 56, 84, 3)
	want := rowsOf(t, other.of, &held, "a", 6)
	was := other.of.EncoderStats()
	if got := rowsOf(t, e, &held, "a", 6); !slices.Equal(got, want) {
		t.Error("other rows")
	}
	rowsOf(t, e, &held, "a", 6)
	ran("held by another", 0)
	if other.asked.Load() != 1 || other.of.EncoderStats() != was {
		t.Errorf("asked %d times, %+v, before %+v", other.asked.Load(), other.of.EncoderStats(), was)
	}
	rowsOf(t, e, &held, "b", 6)
	ran("another salt", 1)
	rowsOf(t, e, &absent, "a", 6)
	ran("held by none", 1)
	otherRan("the other engine", 1)
	for name, c := range map[string]struct {
		req  engine.EncodeRequest
		o    media.Object
		want fault.Code
	}{
		"absent":        {engine.EncodeRequest{Namespace: "a"}, absent, fault.NotFound},
		"other salt":    {engine.EncodeRequest{Namespace: "b"}, held, fault.NotFound},
		"other encoder": {engine.EncodeRequest{Namespace: "a", Encoder: "x"}, held, fault.Conflict},
		"other kind":    {engine.EncodeRequest{Namespace: "a"}, media.Object{Kind: 99}, fault.Invalid},
	} {
		if _, err := other.of.HeldRows(t.Context(), &c.req, &c.o); fault.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
