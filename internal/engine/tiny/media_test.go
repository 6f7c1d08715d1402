package tiny

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny/model"
	"penstock/internal/media/pixel"

	"github.com/google/go-cmp/cmp"
)

// names are the placeholder tokens of media in tests.
type names map[string]kv.Token

func (n names) ID(text string) (kv.Token, bool) {
	t, ok := n[text]
	return t, ok
}

var pads = names{"<|image|>": 90, "<|video|>": 91, "<|audio|>": 92}

func builtinFamily(t testing.TB) *family.Family {
	t.Helper()
	f, err := family.OpenBuiltin(pads)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// seeing is the small engine with encoders for all media.
func seeing(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	cfg := seeingConfig(change)
	e, err := newEngine(cfg, seeingNetwork(t, &cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { expectIdle(t, e.cpu.encoders) })
	return e
}

// encoding is the encoder of seeing's model.
func encoding(t testing.TB, change func(*Config)) *RowEncoder {
	t.Helper()
	cfg := seeingConfig(change)
	e := newRowEncoder(&cfg, seeingNetwork(t, &cfg))
	t.Cleanup(func() { expectIdle(t, e.encoders) })
	return e
}

func seeingConfig(change func(*Config)) Config {
	cfg := Config{Name: "seeing", Blocks: 120, BlockSize: 4, MaxSeqs: 16, TokenBudget: 48, Vocabulary: Vocabulary{Size: 96}, Text: pieceText}
	if change != nil {
		change(&cfg)
	}
	wholePrompts(&cfg)
	cfg.EnsureDefaults()
	return cfg
}

// wholePrompts makes the reference of identity compute a prompt in one piece, also if it shows media.
func wholePrompts(c *Config) {
	if c.MaxSeqs == 1 && c.TokenBudget == 512 {
		c.Chunking = paged.Off
	}
}

func seeingNetwork(t testing.TB, cfg *Config) *network {
	t.Helper()
	shape := smallShape()
	shape.MRope = [3]int{2, 1, 1}
	shape.Vision = model.Vision{Depth: 2, Dim: 16, Heads: 2, Intermediate: 24, Patch: 14, Merge: 2, Temporal: 2}
	shape.Audio = model.Audio{Frame: 160, Dim: 16}
	m, err := model.New(t.Context(), shape, randomWeights(&shape, 1))
	if err != nil {
		t.Fatal(err)
	}
	return &network{
		model: m, eos: []kv.Token{7, 8}, mask: []kv.Token{0, 1, 2, 8, 90, 91, 92}, encoders: newMediaEncoders(cfg, m, builtinFamily(t), builtinColours()),
	}
}

// expectIdle waits for the last runs, and reports what the encoders hold after them.
func expectIdle(t testing.TB, s *mediaEncoders) {
	t.Helper()
	for running := true; running; {
		s.pool.mu.Lock()
		stats := s.pool.mu.machine.Stats()
		running = stats.RunningObjects > 0 || stats.StagingBytes > 0
		if err := s.pool.mu.machine.Check(); err != nil {
			t.Error(err)
		}
		if !running && (stats.CPUBytes != stats.KeptBytes || len(s.pool.mu.requests)+len(s.pool.mu.pins) > 0 || len(s.pool.mu.rows) != stats.KeptRows) {
			t.Errorf("at the end: %+v, %d requests, %d pins, %d rows", stats, len(s.pool.mu.requests), len(s.pool.mu.pins), len(s.pool.mu.rows))
		}
		s.pool.mu.Unlock()
		runtime.Gosched()
	}
	expectNoPins(t, s.stats())
}

func expectNoPins(t testing.TB, s engine.EncoderStats) {
	t.Helper()
	if s.Cache.PinnedBytes != 0 || s.Cache.HeldBytes != 0 {
		t.Errorf("at the end rows are held: %+v", s.Cache)
	}
}

// noise returns a picture, video or sound of noise, by its pixels.
func noise(kind media.Kind, seed uint64, shape ...int) media.Object {
	size := 1
	for _, n := range shape {
		size *= n
	}
	t := media.Tensor{Shape: shape}
	for i := range size {
		v := randomOutput(seed, uint64(i))
		if kind == media.Audio { // from -1 to -1/2
			t.Data = append(t.Data, 0, byte(v), byte(v>>8)&0x7f, 0xbf)
			continue
		}
		t.Data = append(t.Data, byte(v))
	}
	return media.Object{Kind: kind, Key: pixel.ContentKey(kind, &t), Identity: media.ByPixels, Part: fmt.Sprintf("messages[0].content[%d]", seed), Tensor: t}
}

// show puts an object into a request's prompt, before the token at an index, and moves the objects after it.
func show(t testing.TB, req *engine.Request, at int, o media.Object) {
	t.Helper()
	f := builtinFamily(t)
	l, err := f.Layout(o.Kind, sizeOf(&o, &o.Tensor))
	if err != nil {
		t.Fatal(err)
	}
	n := l.CountTokens()
	pad, _ := f.PadToken(o.Kind)
	req.Prompt = slices.Insert(req.Prompt, at, slices.Repeat([]kv.Token{pad}, n)...)
	for i := range req.Media {
		if req.Media[i].Start >= at {
			t.Fatal("objects must be shown in their order")
		}
	}
	req.Media = append(req.Media, kv.Media{Hash: o.Key.Hash, Digest: o.Key.Digest, Start: at, End: at + n})
	req.Objects = append(req.Objects, o)
}

// illustrated adds media to every request of a workload: families that share a prefix share the pictures in
// it, and most requests end with one of their own.
func illustrated(t testing.TB, requests []*engine.Request) []*engine.Request {
	for i, req := range requests {
		if n := len(req.Prompt); n > 40 { // the smallest context of identity is 120 tokens
			req.Prompt = append(req.Prompt[:39], req.Prompt[n-1])
		}
		show(t, req, 2, noise(media.Image, uint64(i%4/2), 28*2, 28*(2+i%4/2), 3))
		switch i % 5 {
		case 1:
			show(t, req, len(req.Prompt)-1, noise(media.Video, uint64(10+i%2), 3, 56, 56, 3))
		case 2:
			show(t, req, len(req.Prompt), noise(media.Audio, uint64(20+i%2), 3000))
		case 3:
			show(t, req, len(req.Prompt)-1, noise(media.Image, uint64(30+i), 60, 90, 3))
			show(t, req, len(req.Prompt)-1, noise(media.Image, 40, 56, 56, 3))
		}
	}
	return requests
}

// TestConformanceSeeing: a vision model passes the engine conformance suite.
func TestConformanceSeeing(t *testing.T) {
	enginetest.Test(t, enginetest.Options{
		New:  func(t testing.TB) engine.Engine { return seeing(t, nil) },
		Text: func(token kv.Token) string { return pieces[int(token)%len(pieces)] },
	})
}

// TestSeeingIdentity is TestIdentity for requests with pictures, videos and sounds.
func TestSeeingIdentity(t *testing.T) {
	identity(t, illustrated(t, workload(15, 80, 40)), []int{1, 3, 7, 16}, seeing)
}

// TestBlockSizes: the block size does not affect the answer.
func TestBlockSizes(t *testing.T) {
	requests := illustrated(t, workload(6, 80, 12))
	cold := seeing(t, func(c *Config) { c.Reuse = paged.Off })
	want, _ := alone(t, enginetest.Start(t, cold), cold, requests)
	for _, size := range []int{2, 3, 8, 16} {
		e := seeing(t, func(c *Config) { c.BlockSize, c.Blocks = size, 4000/size })
		ctx := enginetest.Start(t, e)
		for range 2 {
			got, _ := alone(t, ctx, e, requests)
			same(t, fmt.Sprint("blocks of ", size), want, got)
		}
	}
}

// TestBuiltinSeesIdentity is TestSeeingIdentity with the built-in model.
func TestBuiltinSeesIdentity(t *testing.T) {
	identity(t, illustrated(t, workload(7, 2000, 8)), []int{7}, func(t testing.TB, change func(*Config)) *Engine {
		return newBuiltin(t, func(c *Config) {
			c.BlockSize, c.Blocks, c.MaxContext, c.Vocabulary.Names = 4, 120, 320, pads
			change(c)
			wholePrompts(c)
		})
	})
}

// TestSeeingResumes moves a stream to another engine after every token. The tokens before are in that engine's cache, or
// it imports them: more than the prompt. If a picture came by a URL, without a size, only the picture itself says where
// the tokens after it are.
func TestSeeingResumes(t *testing.T) {
	byURL, o := within(80, greedy(3, 22, 16)), noise(media.Image, 9, 56, 84, 3)
	show(t, byURL, 8, o)
	for len(byURL.Prompt)%4 != 0 { // whole blocks
		byURL.Prompt = append(byURL.Prompt, 9)
	}
	away(byURL)
	key := byURL.Objects[0].Key
	byURL.ID, byURL.Media[0].Hash, byURL.Media[0].Digest = "by URL", key.Hash, key.Digest
	withFile := func(c *Config) { c.Files = &files{by: map[string][]byte{"http://x": encodePNG(t, &o)}} }
	first, second := seeing(t, withFile), seeing(t, withFile)
	importing := seeing(t, func(c *Config) { withFile(c); c.Reuse = paged.Off })
	firstCtx, secondCtx, importingCtx := enginetest.Start(t, first), enginetest.Start(t, second), enginetest.Start(t, importing)
	for _, req := range append(illustrated(t, workload(5, 80, 16))[1:4:4], byURL) {
		want, _, err := run(firstCtx, first, req)
		if err != nil {
			t.Fatal(err)
		}
		for cut := range len(want[0].Tokens) {
			again := *req
			again.Attempt, again.Generated = 2, make([][]kv.Token, req.Choices)
			for i := range again.Generated {
				again.Generated[i] = want[i].Tokens[:min(cut, len(want[i].Tokens))]
			}
			compare := func(what string, got []enginetest.Choice, err error) {
				if err != nil {
					t.Fatal(err)
				}
				for i := range got {
					if all := slices.Concat(again.Generated[i], got[i].Tokens); !slices.Equal(all, want[i].Tokens) {
						t.Errorf("%s, %s: cut after %d of %v: %v", req.ID, what, cut, want[i].Tokens, all)
					}
				}
			}
			got, _, err := run(secondCtx, second, &again)
			compare("cached", got, err)
			if req == byURL {
				got, _, err = enginetest.GenerateApart(importingCtx, first, importing, &again)
				compare("imported", got, err)
			}
		}
	}
}

// TestPicturesAreApart: the same text with another picture is another answer, and no block that contains a
// picture, or follows one, is reused for the other; the same picture's blocks are.
func TestPicturesAreApart(t *testing.T) {
	e := seeing(t, nil)
	ctx := enginetest.Start(t, e)
	const before = 9
	with := func(o media.Object) *engine.Request {
		req := within(80, greedy(1, 30, 30))
		show(t, req, before, o)
		return req
	}
	a, b := noise(media.Image, 1, 56, 84, 3), noise(media.Image, 2, 56, 84, 3)
	forged := b
	forged.Key.Hash = a.Key.Hash // a collision of 64 bits can be forged
	answers := map[string][]kv.Token{}
	for _, step := range []struct {
		name   string
		object media.Object
		cached int
	}{{"a", a, 0}, {"b", b, before / 4 * 4}, {"forged", forged, before / 4 * 4}, {"a again", a, 36 / 4 * 4}, {"b again", b, 36 / 4 * 4}} {
		req := with(step.object)
		got, cached, err := run(ctx, e, req)
		if err != nil {
			t.Fatal(err)
		}
		want := min(step.cached, (len(req.Prompt)-1)/4*4)
		if step.cached > before && cached < want || step.cached <= before && cached != step.cached {
			t.Errorf("%s: %d tokens cached, want %d", step.name, cached, want)
		}
		answers[step.name] = got[0].Tokens
	}
	if slices.Equal(answers["a"], answers["b"]) {
		t.Error("the answer does not depend on the picture")
	}
	for again, first := range map[string]string{"a again": "a", "b again": "b", "forged": "b"} {
		if diff := cmp.Diff(answers[first], answers[again]); diff != "" {
			t.Errorf("%s is not %s:\n%s", again, first, diff)
		}
	}
}

// TestEveryKindMatters: the answer depends on each kind of object.
func TestEveryKindMatters(t *testing.T) {
	e := newBuiltin(t, func(c *Config) { c.Vocabulary.Names, c.Blocks = pads, 200 })
	if got := e.Card(); !slices.Equal(got.Media, []string{"audio", "image", "video"}) || !got.AcceptsObjects {
		t.Errorf("card: %v, %v", got.Media, got.AcceptsObjects)
	}
	ctx := enginetest.Start(t, e)
	for kind, shape := range map[media.Kind][]int{media.Image: {224, 224, 3}, media.Video: {4, 56, 56, 3}, media.Audio: {16000}} {
		var answers [2][]kv.Token
		for i := range answers {
			req := greedy(3, 20, 20)
			show(t, req, 10, noise(kind, uint64(100+i), shape...))
			got, _, err := run(ctx, e, req)
			if err != nil {
				t.Fatal(err)
			}
			answers[i] = got[0].Tokens
		}
		if slices.Equal(answers[0], answers[1]) {
			t.Errorf("the answer does not depend on the %v", kind)
		}
	}
}

// files is the tests' source of files.
type files struct {
	by    map[string][]byte
	err   error
	asked atomic.Int64
	open  atomic.Int64 // not released
}

func (f *files) FetchFile(ctx context.Context, url string) ([]byte, func(), error) {
	f.asked.Add(1)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if f.err != nil {
		return nil, nil, f.err
	}
	f.open.Add(1)
	return f.by[url], func() { f.open.Add(-1) }, nil
}

func (f *files) ParseData(uri string) ([]byte, error) {
	_, text, _ := strings.Cut(uri, ",")
	return base64.StdEncoding.DecodeString(text)
}

func encodePNG(t testing.TB, o *media.Object) []byte {
	t.Helper()
	h, w := o.Tensor.Shape[0], o.Tensor.Shape[1]
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range h * w {
		copy(img.Pix[4*i:], o.Tensor.Data[3*i:][:3])
		img.Pix[4*i+3] = 255
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestContent: an object is the same object, however the engine gets it.
func TestContent(t *testing.T) {
	o := noise(media.Image, 5, 56, 84, 3)
	file := encodePNG(t, &o)
	other := noise(media.Image, 6, 56, 84, 3)
	uri := "data:image/png;base64," + base64.StdEncoding.EncodeToString(file)
	torn := bytes.Clone(o.Tensor.Data)
	clear(torn[len(torn)/2:])
	places := map[string][]byte{"good": o.Tensor.Data, "torn": torn, "stale": other.Tensor.Data, "short": o.Tensor.Data[:100]}
	lent := func(_ context.Context, place string, size int) ([]byte, error) {
		if size != len(o.Tensor.Data) {
			t.Errorf("%d bytes are asked for", size)
		}
		data, ok := places[place]
		if !ok {
			return nil, os.ErrNotExist
		}
		return bytes.Clone(data), nil
	}
	base := o
	base.Tensor = media.Tensor{}
	with := func(change func(*media.Object)) media.Object { o := base; change(&o); return o }
	in := func(place, source string) media.Object {
		return with(func(m *media.Object) {
			m.Source, m.Tensor = source, media.Tensor{Shape: o.Tensor.Shape, Place: place}
		})
	}
	for name, c := range map[string]struct {
		object media.Object
		err    string // "" if it is had
	}{
		"with the request": {o, ""},
		"by URL":           {with(func(m *media.Object) { m.Source = "http://x/good" }), ""},
		"in a data: URI":   {with(func(m *media.Object) { m.Source = uri }), ""},
		"lent":             {in("good", ""), ""},
		"torn":             {in("torn", uri), ""},
		"stale":            {in("stale", "http://x/good"), ""},
		"short":            {in("short", uri), ""},
		"not lent":         {in("gone", "http://x/good"), ""},
		"lent, too large": {with(func(m *media.Object) {
			m.Source, m.Tensor = "http://x/good", media.Tensor{Shape: []int{1 << 18, 1 << 18, 3}, Place: "gone"}
		}), ""},
		"changed since": {in("gone", "http://x/other"), "differs from when the request came"},
		"another file": {with(func(m *media.Object) {
			m.Source, m.Identity, m.Key = "http://x/other", media.ByBytes, media.BytesKey(file)
		}), "differs from when the request came"},
		"the file": {with(func(m *media.Object) {
			m.Source, m.Identity, m.Key = "http://x/good", media.ByBytes, media.BytesKey(file)
		}), ""},
		"by another URL": {with(func(m *media.Object) {
			m.Source, m.Identity, m.Key = "http://x/good", media.ByURL, media.URLKey("x", 1)
		}), ""},
		"with no pixels":   {with(func(m *media.Object) { m.Source = "http://x/other" }), "differs from when the request came"},
		"nowhere":          {in("torn", ""), "cannot have"},
		"not a picture":    {with(func(m *media.Object) { m.Source = "http://x/text" }), "decode"},
		"of another size":  {with(func(m *media.Object) { m.Source, m.Identity = "http://x/large", media.ByURL }), "6 tokens"},
		"of a wrong shape": {with(func(m *media.Object) { m.Tensor = media.Tensor{Shape: []int{56, 84}, Data: o.Tensor.Data} }), "shape"},
		"of wrong length":  {with(func(m *media.Object) { m.Tensor = media.Tensor{Shape: []int{56, 84, 3}, Data: torn[1:]} }), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			large := noise(media.Image, 7, 112, 112, 3)
			f := &files{by: map[string][]byte{
				"http://x/good": file, "http://x/other": encodePNG(t, &other), "http://x/text": []byte("not a picture"), "http://x/large": encodePNG(t, &large),
			}}
			e := seeing(t, func(c *Config) { c.Files, c.Fetch = f, lent })
			ctx := enginetest.Start(t, e)
			req := within(80, greedy(2, 12, 10))
			show(t, req, 4, o)
			want := answerOf(t, o)
			req.Objects[0] = c.object
			got, _, err := run(ctx, e, req)
			if f.open.Load() != 0 {
				t.Errorf("%d files are held", f.open.Load())
			}
			if c.err != "" {
				var refused *fault.Error
				if !errors.As(err, &refused) || refused.Code != fault.Invalid || refused.Param != o.Part || !strings.Contains(refused.Message, c.err) {
					t.Errorf("%v, want %q about %s", err, c.err, o.Part)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got[0].Tokens, want) {
				t.Errorf("%v, want %v", got[0].Tokens, want)
			}
			asked := f.asked.Load()
			if _, _, err := run(ctx, e, req); err != nil || f.asked.Load() != asked {
				t.Errorf("asked again for what was encoded: %v", err)
			}
		})
	}
}

// answerOf answers the request of TestContent with its content in the request.
func answerOf(t *testing.T, o media.Object) []kv.Token {
	t.Helper()
	e := seeing(t, nil)
	req := within(80, greedy(2, 12, 10))
	show(t, req, 4, o)
	return enginetest.MustGenerate(t, enginetest.Start(t, e), e, req)[0].Tokens
}

// away leaves only a URL of the first object, and another key than elsewhere.
func away(r *engine.Request) {
	r.Objects[0] = media.Object{Kind: media.Image, Key: media.URLKey("http://x", 1), Part: r.Objects[0].Part, Source: "http://x"}
}

// TestRefusedMedia: errors name the part of the request.
func TestRefusedMedia(t *testing.T) {
	good := func() *engine.Request {
		req := within(80, greedy(2, 12, 10))
		show(t, req, 4, noise(media.Image, 5, 56, 84, 3))
		return req
	}
	failing := &files{err: fault.New(fault.Forbidden, "the address is refused")}
	seeing, blind := seeing(t, func(c *Config) { c.Files = failing }), small(t, nil)
	seeingCtx, blindCtx := enginetest.Start(t, seeing), enginetest.Start(t, blind)
	for name, c := range map[string]struct {
		e      *Engine
		change func(*engine.Request)
		param  string
		want   string
	}{
		"no pads":       {seeing, func(r *engine.Request) { r.Media[0].End = r.Media[0].Start }, "messages[0].content[5]", "no tokens"},
		"fewer pads":    {seeing, func(r *engine.Request) { r.Media[0].End-- }, "messages[0].content[5]", "5 tokens"},
		"pads apart":    {seeing, func(r *engine.Request) { r.Prompt[6] = 3 }, "messages[0].content[5]", "among them"},
		"another kind":  {seeing, func(r *engine.Request) { r.Objects[0].Kind = media.Video }, "messages[0].content[5]", "no tokens"},
		"no kind":       {seeing, func(r *engine.Request) { r.Objects[0].Kind = 0 }, "messages[0].content[5]", "kind"},
		"nothing shown": {seeing, func(r *engine.Request) { r.Objects = nil }, "media", "0 media objects"},
		"shown twice": {seeing, func(r *engine.Request) {
			r.Objects = append(r.Objects, r.Objects[0])
			r.Media = append(r.Media, r.Media[0])
		}, "media", "overlap"},
		"refused source": {seeing, func(r *engine.Request) { away(r) }, "messages[0].content[5]", "address is refused"},
		"text model":     {blind, func(*engine.Request) {}, "messages[0].content[5]", "text alone"},
	} {
		req := good()
		c.change(req)
		ctx := seeingCtx
		if c.e == blind {
			ctx = blindCtx
		}
		_, err := enginetest.Generate(ctx, c.e, req)
		var refused *fault.Error
		if !errors.As(err, &refused) || refused.Code != fault.Invalid || refused.Param != c.param || !strings.Contains(refused.Message, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(seeingCtx)
	cancel()
	req := good()
	away(req)
	if _, err := enginetest.Generate(ended, seeing, req); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that has ended: %v", err)
	}
}

// TestCheckpointSees compares an engine's answers with transformers; see TestSeenReference of package model.
func TestCheckpointSees(t *testing.T) {
	const dir = "model/testdata/qwen2-vl-bf16"
	e, err := New(t.Context(), Config{ModelPath: dir, Blocks: 64})
	if err != nil {
		t.Fatal(err)
	}
	if c := e.Card(); !slices.Equal(c.Media, []string{"image", "video"}) || !c.AcceptsObjects {
		t.Errorf("card: %v, %v", c.Media, c.AcceptsObjects)
	}
	ctx := enginetest.Start(t, e)
	data, err := os.ReadFile(dir + "/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Prompt, Greedy []kv.Token
		Objects        []struct {
			Video bool
			Start int
			Grid  [3]int
			Shape []int
			RGB   []byte
		}
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 5 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for i, c := range cases {
		req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Prompt: c.Prompt, Stop: engine.Stop{MaxTokens: len(c.Greedy), IgnoreEOS: true}}
		for _, o := range c.Objects {
			m := media.Object{Kind: media.Image, Tensor: media.Tensor{Shape: o.Shape[1:], Data: o.RGB}}
			if o.Video {
				m.Kind, m.Tensor.Shape = media.Video, o.Shape
			}
			m.Key = pixel.ContentKey(m.Kind, &m.Tensor)
			req.Objects = append(req.Objects, m)
			n := o.Grid[0] * o.Grid[1] * o.Grid[2] / 4
			req.Media = append(req.Media, kv.Media{Hash: m.Key.Hash, Digest: m.Key.Digest, Start: o.Start, End: o.Start + n})
		}
		for range 2 {
			got, _, err := run(ctx, e, req)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got[0].Tokens, c.Greedy) {
				t.Errorf("case %d: %v, want %v", i, got[0].Tokens, c.Greedy)
			}
		}
	}
}

// BenchmarkSee encodes a picture of 224 × 224 pixels with the built-in model.
func BenchmarkSee(b *testing.B) {
	e := newBuiltin(b, func(c *Config) { c.Vocabulary.Names, c.Blocks = pads, 16 })
	for _, side := range []int{224, 448} {
		b.Run(fmt.Sprint(side), func(b *testing.B) {
			o := noise(media.Image, 1, side, side, 3)
			o.Key = media.Key{} // not kept
			n := side / 28 * (side / 28)
			for b.Loop() {
				r, err := e.cpu.encoders.encodedRows(b.Context(), &e.cpu.content, &rowRequest{object: &o, pads: n})
				if err != nil {
					b.Fatal(err)
				}
				e.cpu.encoders.rows.releaseRows(&r)
			}
		})
	}
}

// blockEncoders holds all processors of the encoders until the returned function is called.
func blockEncoders(s *mediaEncoders) (unblock func()) {
	for range cap(s.pool.cores) {
		s.pool.cores <- struct{}{}
	}
	return func() {
		for range cap(s.pool.cores) {
			<-s.pool.cores
		}
	}
}

// TestWaitingEnds: a request that waits for others' objects to be encoded stops when it is cancelled, and
// leaves nothing behind.
func TestWaitingEnds(t *testing.T) {
	e := seeing(t, nil)
	o := noise(media.Image, 1, 56, 56, 3)
	s := e.cpu.encoders
	unblock := blockEncoders(s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.encodedRows(ctx, &e.cpu.content, &rowRequest{object: &o, pads: 4})
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	unblock()
	got, err := s.encodedRows(t.Context(), &e.cpu.content, &rowRequest{object: &o, pads: 4})
	if err != nil || len(got.rows) != 4*32 {
		t.Errorf("%d elements, %v", len(got.rows), err)
	}
	s.rows.releaseRows(&got)
}

// TestEncoderOnCard: the card names the encoder as the keys of its rows do, the same in every engine of the model.
func TestEncoderOnCard(t *testing.T) {
	e := seeing(t, nil)
	a, b := e.Card(), seeing(t, nil).Card()
	o := noise(media.Image, 1, 3, 56, 56)
	if key := e.cpu.encoders.rows.keyOf(&o, ""); a.Encoder == "" || a.Encoder != b.Encoder || a.Encoder != key.Encoder {
		t.Errorf("%q and %q, rows are of %q", a.Encoder, b.Encoder, key.Encoder)
	}
}
