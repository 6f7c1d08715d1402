package tiny

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/engine/tiny/patch"
)

// rowsOf returns a copy of the rows of an object, which has the given number of pads.
func rowsOf(t testing.TB, e *Engine, o *media.Object, namespace string, pads int) []float32 {
	t.Helper()
	s := e.cpu.encoders
	r, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: o, namespace: namespace, pads: pads})
	if err != nil {
		t.Fatal(err)
	}
	rows := slices.Clone(r.rows)
	s.rows.releaseRows(&r)
	return rows
}

// cacheOf returns a change of a configuration which gives the embedding cache a capacity.
func cacheOf(bytes int) func(*Config) {
	return func(c *Config) { c.EmbeddingCache = &bytes }
}

// encodes fails the test unless encoders ran n times since the call before.
func encodes(t testing.TB, e *Engine) func(what string, n uint64) {
	was := e.EncoderStats().Encoded
	return func(what string, n uint64) {
		t.Helper()
		is := e.EncoderStats().Encoded
		if is-was != n {
			t.Errorf("%s: encoders ran %d times, want %d", what, is-was, n)
		}
		was = is
	}
}

// TestCachedRowsAreTheComputed: rows from the cache are the computed ones bit for bit, whatever its size.
func TestCachedRowsAreTheComputed(t *testing.T) {
	objects := map[int]media.Object{}
	for i := range 6 {
		objects[6*i] = noise(media.Image, uint64(i), 56, 84, 3)
		objects[6*i+1] = noise(media.Video, uint64(i), 3, 56, 56, 3)
		objects[6*i+2] = noise(media.Audio, uint64(i), 3000)
	}
	pads := func(o *media.Object) int {
		l, err := builtinFamily(t).Layout(o.Kind, sizeOf(o, &o.Tensor))
		if err != nil {
			t.Fatal(err)
		}
		return l.PadCount
	}
	off := seeing(t, cacheOf(0))
	want := map[int][]float32{}
	for i, o := range objects {
		want[i] = rowsOf(t, off, &o, "", pads(&o))
	}
	if s := off.EncoderStats(); s.Encoded != uint64(len(objects)) || s.Cache.Entries != 0 || s.Cache.Hits != 0 {
		t.Errorf("switched off: %+v", s)
	}
	for _, capacity := range []int{1000, 4000, 64 << 20} {
		e := seeing(t, cacheOf(capacity))
		var wg sync.WaitGroup
		for hand := range 4 {
			wg.Go(func() {
				for step := range 60 {
					i := int(randomOutput(uint64(hand), uint64(step)) % 36)
					if o, ok := objects[i]; ok && !slices.Equal(rowsOf(t, e, &o, "", pads(&o)), want[i]) {
						t.Errorf("%d bytes: the rows of object %d differ", capacity, i)
					}
				}
			})
		}
		wg.Wait()
		if s := e.EncoderStats(); s.Cache.Hits == 0 || capacity < 5000 && s.Cache.Evictions == 0 {
			t.Errorf("%d bytes: %+v", capacity, s)
		}
	}
}

// TestAnswersWithCache: the answers are the same with the cache off, too small, and large.
func TestAnswersWithCache(t *testing.T) {
	requests := illustrated(t, workload(8, 80, 12))
	off := seeing(t, cacheOf(0))
	want, _ := alone(t, enginetest.Start(t, off), off, requests)
	for _, capacity := range []int{1000, 64 << 20} {
		e := seeing(t, cacheOf(capacity))
		ctx := enginetest.Start(t, e)
		for range 2 {
			got, _ := alone(t, ctx, e, requests)
			same(t, fmt.Sprintf("with a cache of %d bytes", capacity), want, got)
		}
	}
}

// TestSaltsEncodeApart: a picture that requests of one salt have shown costs another salt an encoding.
func TestSaltsEncodeApart(t *testing.T) {
	e := seeing(t, nil)
	ctx := enginetest.Start(t, e)
	ran := encodes(t, e)
	picture := noise(media.Image, 1, 56, 84, 3)
	ask := func(salt string) {
		t.Helper()
		req := within(80, greedy(1, 12, 4))
		req.Salt.Namespace = salt
		show(t, req, 4, picture)
		enginetest.MustGenerate(t, ctx, e, req)
	}
	ask("a")
	ran("salt a", 1)
	ask("a")
	ran("salt a again", 0)
	ask("b")
	ran("salt b", 1)
	ask("")
	ran("no salt", 1)
	if s := e.EncoderStats().Cache; s.Hits+s.Misses == 0 || s.Misses != 3 || s.Entries != 3 {
		t.Errorf("%+v", s)
	}
}

// TestKeyOfRows: the key has all that rows depend on, and the salt.
func TestKeyOfRows(t *testing.T) {
	e := seeing(t, nil)
	s := e.cpu.encoders
	o := noise(media.Video, 1, 3, 56, 56, 3)
	want := embcache.RowKey{Salt: "salt", Kind: uint8(media.Video), Digest: o.Key.Digest, Encoder: s.rows.encoder, Type: uint8(media.Float32)}
	if got := s.rows.keyOf(&o, "salt"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	cfg := Config{EmbeddingCache: new(0)}
	colours := builtinColours()
	colours.Mean[0]++
	shape := s.model.Config()
	build := func(change func(model.Map)) *model.Model {
		weights := randomWeights(&shape, 1)
		change(weights)
		m, err := model.New(t.Context(), shape, weights)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	increase := func(part string) func(model.Map) {
		return func(weights model.Map) {
			for _, spec := range shape.Specs() {
				if strings.Contains(spec.Name, part) {
					weights[spec.Name].Data[0]++
					return
				}
			}
			t.Fatalf("no weight has %q in its name", part)
		}
	}
	for name, c := range map[string]struct {
		model    *model.Model
		colours  patch.Colours
		settings string
		equal    bool
	}{
		"the same":                {s.model, builtinColours(), "", true},
		"other colours":           {s.model, colours, "", false},
		"other weights":           {build(increase("visual.")), builtinColours(), "", false},
		"another decoder":         {build(increase("embed_tokens")), builtinColours(), "", true},
		"other sizes of pictures": {s.model, builtinColours(), `{"max_pixels":1}`, false},
	} {
		var settings [][]byte
		if c.settings != "" {
			settings = append(settings, []byte(c.settings))
		}
		other := newMediaEncoders(&cfg, c.model, s.family, c.colours, settings...)
		if (other.rows.encoder == s.rows.encoder) != c.equal {
			t.Errorf("%s: %q and %q", name, other.rows.encoder, s.rows.encoder)
		}
	}
}

// TestWhatIsNotKept: rows of an object without a digest are not, and there is no memory before the first rows. A
// hit with another number of rows than the prompt has tokens is not used. The store keeps no request's text.
func TestWhatIsNotKept(t *testing.T) {
	e := seeing(t, nil)
	ran := encodes(t, e)
	s := e.cpu.encoders
	named := noise(media.Image, 1, 56, 84, 3)
	o := named
	o.Key.Digest = kv.Digest{}
	rowsOf(t, e, &o, "", 6)
	rowsOf(t, e, &o, "", 6)
	ran("without a digest", 2)
	if s.rows.mu.memory != nil || e.EncoderStats().Cache != (embcache.Stats{Capacity: 64 << 20, LargestFree: 64 << 20}) {
		t.Errorf("%d elements of memory, %+v", len(s.rows.mu.memory), e.EncoderStats().Cache)
	}
	salt := "salt"
	rowsOf(t, e, &named, salt, 6)
	ran("with a digest", 1)
	added := s.rows.mu.changes[len(s.rows.mu.changes)-1].Item.Key.Salt
	if 4*len(s.rows.mu.memory) != 64<<20 || added != salt || unsafe.StringData(added) == unsafe.StringData(salt) {
		t.Errorf("%d elements of memory, salt %q is the request's own", len(s.rows.mu.memory), added)
	}
	for range 2 {
		if r, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: &named, namespace: salt, pads: 5}); err == nil || !strings.Contains(err.Error(), "it takes 6") {
			t.Errorf("%d elements for 5 tokens: %v", len(r.rows), err)
		}
	}
	rowsOf(t, e, &named, salt, 6)
	ran("other numbers of tokens", 0)
}

// TestReplicasShareRows: engines that are made together encode a picture once, and each of them counts it. The
// built-in model's rows of 224 × 224 pixels take 64 KiB.
func TestReplicasShareRows(t *testing.T) {
	replicas, err := NewReplicas(t.Context(), Config{Vocabulary: Vocabulary{Size: 2048, EOS: []kv.Token{127}, Names: pads}, Blocks: 16}, 2)
	if err != nil {
		t.Fatal(err)
	}
	o := noise(media.Image, 1, 224, 224, 3)
	for i, e := range replicas {
		rowsOf(t, e, &o, "", 64)
		for _, other := range replicas {
			if s := other.EncoderStats(); s.Encoded != 1 || s.Cache.Hits != uint64(i) || s.Cache.Bytes != 64<<10 {
				t.Errorf("after engine %d: %+v", i, s)
			}
		}
	}
}

// TestRowsOfURLEnd: rows of an object known by its URL end with the URL's period; others do not.
func TestRowsOfURLEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := seeing(t, func(c *Config) { c.URLTTL = time.Hour })
		ran := encodes(t, e)
		pixels := noise(media.Image, 1, 56, 84, 3)
		byURL := func(back uint64) media.Object {
			o := pixels
			o.Source, o.Identity = "https://example.com/cat.png", media.ByURL
			period, _ := media.URLPeriod(o.Source, time.Now().UnixNano(), time.Hour)
			o.Key = media.URLKey(o.Source, period-back)
			return o
		}
		o := byURL(0)
		_, end := media.URLPeriod(o.Source, time.Now().UnixNano(), time.Hour)
		for range 2 {
			rowsOf(t, e, &o, "", 6)
			rowsOf(t, e, &pixels, "", 6)
		}
		ran("two objects, twice", 2)
		time.Sleep(time.Until(time.Unix(0, end)) - time.Nanosecond) // virtual time (synctest): just before the URL's time ends
		rowsOf(t, e, &o, "", 6)
		ran("in the last moment", 0)
		time.Sleep(time.Nanosecond) // virtual time (synctest): it ends
		rowsOf(t, e, &o, "", 6)
		rowsOf(t, e, &o, "", 6)
		ran("after the period", 2) // rows under the old key are not kept
		rowsOf(t, e, &pixels, "", 6)
		ran("by pixels", 0)
		if s := e.EncoderStats().Cache; s.Entries != 1 {
			t.Errorf("%+v", s)
		}
		o = byURL(0)
		rowsOf(t, e, &o, "", 6)
		rowsOf(t, e, &o, "", 6)
		ran("in the next period", 1)
		// A frontend with another ttl has other periods. Its rows are kept for a period of the engine's.
		o.Key = media.URLKey(o.Source, 7)
		rowsOf(t, e, &o, "", 6)
		rowsOf(t, e, &o, "", 6)
		ran("of another frontend", 1)
		time.Sleep(time.Hour) // virtual time (synctest): the engine's period for URLs ends
		rowsOf(t, e, &o, "", 6)
		ran("after the engine's period", 1)
	})
}

// TestRowsStayWhileInUse: a request with several choices keeps its rows in the cache while it runs, and others' go.
func TestRowsStayWhileInUse(t *testing.T) {
	const one = 6 * 32 * elementBytes // bytes of a picture's rows
	e := seeing(t, cacheOf(2*one))
	ctx := enginetest.Start(t, e)
	ran := encodes(t, e)
	first := noise(media.Image, 1, 56, 84, 3)
	req := within(80, greedy(1, 12, 4))
	req.Choices = 2
	show(t, req, 4, first)
	err := e.Generate(ctx, req, func(d *engine.Delta) error {
		if !d.Accepted {
			return nil
		}
		if s := e.EncoderStats().Cache; s.PinnedBytes != one {
			t.Errorf("while a request runs: %+v", s)
		}
		for seed := range uint64(4) {
			o := noise(media.Image, 10+seed, 56, 84, 3)
			rowsOf(t, e, &o, "", 6)
		}
		ran("the request and four others", 5)
		rowsOf(t, e, &first, "", 6)
		ran("the request's picture", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := e.EncoderStats().Cache; s.PinnedBytes != 0 || s.Evictions != 3 {
		t.Errorf("%+v", s)
	}
}

// TestStartHoldsNothing: a request which is refused, or has nothing left to compute, encodes nothing.
func TestStartHoldsNothing(t *testing.T) {
	e := seeing(t, nil)
	for name, change := range map[string]func(*engine.Request){
		"earlier output against the schema": func(r *engine.Request) {
			r.OutputSchema = &engine.OutputSchema{Schema: []byte(`{"const":1}`)}
			r.Generated = [][]kv.Token{{33}}
		},
		"done": func(r *engine.Request) { r.Done = []bool{true} },
	} {
		req := within(80, greedy(1, 12, 4))
		show(t, req, 4, noise(media.Image, 1, 56, 84, 3))
		change(req)
		states, err := e.cpu.StartRequest(t.Context(), req, nil)
		if s := e.EncodeStats(); s.Requests != 0 || (err == nil) != (req.Done != nil) {
			t.Errorf("%s: %v, %d states, %+v", name, err, len(states), s)
		}
	}
}

// TestKVHitsAreNotEncoded: an object all of whose tokens are cached is neither encoded nor fetched, and the
// answer is the same. One whose last token is not cached is.
func TestKVHitsAreNotEncoded(t *testing.T) {
	for _, kind := range []struct {
		kind  media.Kind
		shape []int
	}{{media.Image, []int{56, 84, 3}}, {media.Video, []int{3, 56, 56, 3}}, {media.Audio, []int{3000}}} {
		t.Run(kind.kind.String(), func(t *testing.T) {
			f := &files{by: map[string][]byte{}}
			e := seeing(t, func(c *Config) { c.EmbeddingCache, c.Files = new(0), f })
			ctx := enginetest.Start(t, e)
			ran := encodes(t, e)
			object := noise(kind.kind, 1, kind.shape...)
			ask := func(end int, o media.Object) []enginetest.Choice {
				t.Helper()
				req := within(80, greedy(1, end, 12))
				req.Logprobs = 3
				show(t, req, 5, object)
				req.Objects[0] = o
				got, _, err := run(ctx, e, req)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			want := ask(12, object)
			ran("cold", 1)
			same(t, "with all of its tokens cached", [][]enginetest.Choice{want}, [][]enginetest.Choice{ask(12, object)})
			ran("warm", 0)
			away := object // its content is nowhere
			away.Tensor, away.Source, away.Size = media.Tensor{}, "http://x/gone", sizeOf(&object, &object.Tensor)
			same(t, "with its content gone", [][]enginetest.Choice{want}, [][]enginetest.Choice{ask(12, away)})
			ran("warm, by its size", 0)
			if n := f.asked.Load(); n != 0 {
				t.Errorf("it was asked for %d times", n)
			}
			want = ask(5, object) // it ends the prompt: its last token is computed
			ran("at the end of the prompt", 1)
			same(t, "at the end of the prompt", [][]enginetest.Choice{want}, [][]enginetest.Choice{ask(5, object)})
			ran("at the end of the prompt, again", 1)
		})
	}
}

// TestLeftOut: an object is left out if the first cached tokens have all of it. One whose size is unknown, or makes
// another number of tokens, is needed for the positions of what follows.
func TestLeftOut(t *testing.T) {
	e := seeing(t, cacheOf(0))
	for _, c := range []struct {
		what   string
		cached int
		needed bool
		change func(*media.Object)
	}{
		{"nothing is cached", 0, true, nil},
		{"its last token is not cached", 9, true, nil},
		{"all of it is", 10, false, nil},
		{"more is", 13, false, nil},
		{"of unknown size", 13, true, func(o *media.Object) { o.Tensor, o.Source = media.Tensor{}, "http://x/gone" }},
		{"of another size", 13, true, func(o *media.Object) {
			o.Tensor, o.Source, o.Size = media.Tensor{}, "http://x/gone", media.Size{Width: 56, Height: 56}
		}},
	} {
		req := within(80, greedy(1, 12, 4))
		show(t, req, 4, noise(media.Image, 1, 56, 84, 3))
		if c.change != nil {
			c.change(&req.Objects[0])
		}
		states, err := e.cpu.StartRequest(t.Context(), req, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if ranges := e.cpu.UnfinishedRanges(states[0]); len(ranges) != 1 || (ranges[0].End > c.cached) != c.needed {
			t.Errorf("%s: %v", c.what, ranges)
		}
	}
}

// TestKVHitsOfKeptRows: rows of an object all of whose tokens are KV hits are not looked up; for each salt alone.
func TestKVHitsOfKeptRows(t *testing.T) {
	e := seeing(t, nil)
	ctx := enginetest.Start(t, e)
	picture := noise(media.Image, 1, 56, 84, 3)
	ask := func(salt string, cached int) {
		t.Helper()
		req := within(80, greedy(1, 12, 4))
		req.Salt.Namespace = salt
		show(t, req, 4, picture)
		if got := enginetest.MustGenerate(t, ctx, e, req); got[0].Cached != cached {
			t.Errorf("salt %q: %d tokens are cached, want %d", salt, got[0].Cached, cached)
		}
	}
	check := func(what string, hits, misses uint64) {
		t.Helper()
		if s := e.EncoderStats(); s.Cache.Hits != hits || s.Cache.Misses != misses || s.Encoded != misses {
			t.Errorf("%s: %+v, want %d hits and %d misses", what, s, hits, misses)
		}
	}
	ask("a", 0)
	check("cold", 0, 1)
	ask("a", 16)
	check("warm", 0, 1)
	key := e.cpu.encoders.rows.keyOf(&picture, "a")
	e.cpu.encoders.rows.mu.cache.Remove(&key, nil)
	ask("b", 0)
	check("another salt", 0, 2)
	ask("a", 16) // its rows are gone, those of b are no reason to look
	check("without rows", 0, 2)
}

// TestIdentityWithoutRows is TestSeeingIdentity with the embedding cache off: what is evicted from the KV cache
// is encoded again, also in the middle of an answer.
func TestIdentityWithoutRows(t *testing.T) {
	identity(t, illustrated(t, workload(15, 80, 40)), []int{3, 16}, func(t testing.TB, change func(*Config)) *Engine {
		return seeing(t, func(c *Config) {
			c.EmbeddingCache = new(0)
			change(c)
		})
	})
}

// TestOutcomesOfJobs: a run of an encoder counts by its end, and only complete rows are kept.
func TestOutcomesOfJobs(t *testing.T) {
	e := seeing(t, nil)
	s := e.cpu.encoders
	o := noise(media.Image, 1, 56, 84, 3)
	key := s.rows.keyOf(&o, "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	layout, _ := s.layoutBySize(&o)
	group := []decodedItem{{&runItem{encodeObject: &encodeObject{rowRequest: rowRequest{object: &o}, key: key}}, o.Tensor, layout}}
	if err := s.encodeGroup(ended, group); err != nil || !errors.Is(group[0].fail, context.Canceled) {
		t.Errorf("cancelled: %v, %v", err, group[0].fail)
	}
	good := s.model
	shape := good.Config()
	shape.Vision.Merge = 1 // its rows are not those of the family
	var err error
	if s.model, err = model.New(t.Context(), shape, randomWeights(&shape, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: &o, pads: 6}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("a wrong encoder: %v", err)
	}
	s.model = good
	rowsOf(t, e, &o, "", 6)
	rowsOf(t, e, &o, "", 6)
	got := e.EncoderStats()
	if got.Encoded != 1 || got.Failed != 1 || got.Cancelled != 1 || got.Cache.Entries != 1 || got.Cache.Misses != 2 || got.Cache.Hits != 1 {
		t.Errorf("%+v", got)
	}
}

// TestHitOfStoreAllocatesNothing: rows from the cache are neither copied nor allocated.
func TestHitOfStoreAllocatesNothing(t *testing.T) {
	e := seeing(t, nil)
	o := noise(media.Image, 1, 56, 84, 3)
	rowsOf(t, e, &o, "salt", 6)
	s := e.cpu.encoders
	if n := testing.AllocsPerRun(100, func() {
		r, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: &o, namespace: "salt", pads: 6})
		if err != nil || r.pin == (embcache.Ref{}) {
			t.Error("not from the cache")
		}
		s.rows.releaseRows(&r)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkCachedRows finds the rows of an object, and gives them back.
func BenchmarkCachedRows(b *testing.B) {
	e := seeing(b, nil)
	o := noise(media.Image, 1, 56, 84, 3)
	rowsOf(b, e, &o, "salt", 6)
	s := e.cpu.encoders
	b.ReportAllocs()
	for b.Loop() {
		r, err := s.encodedRows(b.Context(), &e.cpu.content, &rowRequest{object: &o, namespace: "salt", pads: 6})
		if err != nil {
			b.Fatal(err)
		}
		s.rows.releaseRows(&r)
	}
}
