package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// shows adds pictures to a request, each of 8 tokens from its position on.
func shows(req *engine.Request, namespace string, pictures map[int]byte) *engine.Request {
	req.Salt.Namespace = namespace
	for at := range len(req.Prompt) {
		id, ok := pictures[at]
		if !ok {
			continue
		}
		key := media.Key{Hash: uint64(id), Digest: kv.Digest{id}}
		req.Media = append(req.Media, kv.Media{Hash: uint64(id), Start: at, End: at + 8})
		req.Objects = append(req.Objects, media.Object{Kind: media.Image, Key: key})
	}
	return req
}

// TestEmbeddingCache: a picture is encoded once for each salt as long as the cache keeps it, wherever a prompt shows it.
// The engine takes 1 ms for a token of a prompt, 10 ms for an answer's, and 100 ms for a picture.
func TestEmbeddingCache(t *testing.T) {
	const picture = 8 * RowBytes
	for name, c := range map[string]struct {
		capacity, encoded  int
		hits, misses, gone uint64
		want               []float64 // times of the first tokens in ms
	}{
		"off":             {0, 7, 0, 7, 0, []float64{230, 230, 130, 130, 130}},
		"room for two":    {2 * picture, 4, 3, 4, 2, []float64{230, 30, 130, 130, 30}},
		"room for plenty": {64 * picture, 3, 4, 3, 0, []float64{230, 30, 130, 30, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				capacity := c.capacity
				e := small(t, func(c *Config) {
					c.Timing.Encoder = []EncoderPoint{{Tokens: 8, Millis: 100}}
					c.Media = []string{"image"}
					c.EmbeddingCache = capacity
				})
				ctx := enginetest.Start(t, e)
				for i, req := range []*engine.Request{
					shows(request(1, 20, 1), "", map[int]byte{2: 1, 11: 2}),
					shows(request(2, 20, 1), "", map[int]byte{1: 2, 12: 1}),
					shows(request(3, 20, 1), "a salt", map[int]byte{5: 1}),
					shows(request(4, 20, 1), "", map[int]byte{7: 2}),
					shows(request(5, 20, 1), "a salt", map[int]byte{3: 1}),
				} {
					var w stopwatch
					w.run(ctx, e, req)
					w.expect(t, "request", []float64{c.want[i]})
				}
				s := e.EncoderStats()
				if s.Encoded != uint64(c.encoded) || s.Cache.Hits != c.hits || s.Cache.Misses != c.misses || s.Cache.Evictions != c.gone || s.Cache.PinnedBytes != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestNoDigest: objects which nothing identifies are encoded each time, and text is not looked up.
func TestNoDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := small(t, func(c *Config) {
			c.Timing.Encoder = []EncoderPoint{{Tokens: 8, Millis: 100}}
			c.EmbeddingCache = 1 << 30
		})
		ctx := enginetest.Start(t, e)
		for i := range 2 {
			req := request(i, 20, 1)
			req.Media = []kv.Media{{Hash: 1, Start: 2, End: 10}}
			var w stopwatch
			w.run(ctx, e, req)
			w.expect(t, "picture", []float64{130})
		}
		var w stopwatch
		w.run(ctx, e, request(9, 20, 1))
		w.expect(t, "text", []float64{30})
		if s := e.EncoderStats(); s.Encoded != 2 || s.Cache.Hits+s.Cache.Misses != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestEncodeDuration: an encoder beside the passes takes the time of the table.
func TestEncodeDuration(t *testing.T) {
	tm := Timing{Encoder: []EncoderPoint{{100, 10}, {200, 30}}, Speedup: 2}
	tm.EnsureDefaults()
	if got := tm.EncodeDuration(media.Image, 150, 0); got != 10*time.Millisecond {
		t.Errorf("an object of 150 tokens: %v", got)
	}
	tm.Encoder = nil
	if got := tm.EncodeDuration(media.Image, 150, 0); got != 0 {
		t.Errorf("without a table: %v", got)
	}
}
