package encode

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
)

// player drives a machine in a test: an event which fails ends the test, and Check runs after each.
type player struct {
	t    *testing.T
	m    *Machine
	now  kv.Mono
	runs []Action // which have started and not ended, the first to start first
}

// play returns a player of a machine with testConfig, changed by change, and an encoder.
func play(t *testing.T, change func(*Config)) *player {
	t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &player{t: t, m: m}
	p.must(m.AddEncoder(0, 0, EncoderLimits{}, nil))
	return p
}

// must checks an event and returns its actions.
func (p *player) must(out []Action, err error) []Action {
	p.t.Helper()
	if err := errors.Join(err, p.m.Check()); err != nil {
		p.t.Fatal(err)
	}
	for _, a := range out {
		if a.Kind == RunBatch {
			p.runs = append(p.runs, a)
		}
	}
	return out
}

// rowsOf returns objects of one kind with so many bytes of rows, and one token for each byte.
func rowsOf(kind media.Kind, sizes ...int) (all []SubmittedObject) {
	for i, n := range sizes {
		all = append(all, SubmittedObject{Kind: uint8(kind), Position: i, Tokens: n, Bytes: int64(n)})
	}
	return all
}

func images(sizes ...int) []SubmittedObject { return rowsOf(media.Image, sizes...) }

func keyed(objects []SubmittedObject) []SubmittedObject {
	for i := range objects {
		objects[i].Key[0] = byte(1 + i)
	}
	return objects
}

func submissionOf(objects []SubmittedObject, use Usage) Submission {
	s := Submission{Objects: objects, Usage: use}
	for _, o := range objects {
		s.Placeholders = append(s.Placeholders, Placeholder{o.Position, o.Kind})
	}
	return s
}

func (p *player) submit(objects []SubmittedObject) (RequestID, []Action) {
	p.t.Helper()
	return p.submitFor(objects, Usage{})
}

func (p *player) submitFor(objects []SubmittedObject, use Usage) (RequestID, []Action) {
	p.t.Helper()
	id, out, err := p.m.SubmitRequest(p.now, submissionOf(objects, use), nil)
	return id, p.must(out, err)
}

// finish finishes the first run as estimated.
func (p *player) finish() []Action {
	p.t.Helper()
	return p.finishWith(func(*Result) {})
}

func (p *player) finishWith(change func(*Result)) []Action {
	p.t.Helper()
	run := p.runs[0]
	p.runs = p.runs[1:]
	var results []Result
	for _, i := range run.Items {
		r := Result{}
		if q := p.m.requests[i.Request]; q != nil {
			r.Tokens, r.Bytes = q.objects[i.Index].Tokens, q.objects[i.Index].Bytes
		}
		change(&r)
		results = append(results, r)
	}
	return p.must(p.m.FinishRun(p.now, run.Run, results, nil))
}

func (p *player) failRun(kind FailureKind) []Action {
	p.t.Helper()
	run := p.runs[0]
	p.runs = p.runs[1:]
	return p.must(p.m.FailRun(p.now, run.Run, kind, "as told", nil))
}

func (p *player) pass(d time.Duration) []Action {
	p.t.Helper()
	p.now = p.now.Add(d)
	return p.must(p.m.Tick(p.now, nil), nil)
}

// walkTo takes a request from ENCODED_CPU, or from PREFILLED, to a state.
func (p *player) walkTo(id RequestID, state ObjectState) (out []Action) {
	p.t.Helper()
	for _, one := range []struct {
		state ObjectState
		event func(kv.Mono, RequestID, []Action) ([]Action, error)
	}{{EncodedCPU, p.m.StageRequest}, {Staged, p.m.MarkCopied}, {Merged, p.m.MarkMerged}, {Prefilled, p.m.MarkPrefilled}} {
		out = append(out, p.must(one.event(p.now, id, nil))...)
		if one.state == state {
			break
		}
	}
	return out
}

// ready submits objects and encodes them.
func (p *player) ready(objects []SubmittedObject, use Usage) RequestID {
	p.t.Helper()
	id, _ := p.submitFor(objects, use)
	for len(p.runs) > 0 {
		p.finish()
	}
	if q := p.m.requests[id]; q == nil || q.state != EncodedCPU {
		p.t.Fatalf("request %d is not ready", id)
	}
	return id
}

// expect compares actions with their wording.
func expect(t *testing.T, got []Action, want ...string) {
	t.Helper()
	var words []string
	for _, a := range got {
		words = append(words, a.String())
	}
	if !slices.Equal(words, want) {
		t.Fatalf("actions\n%q, want\n%q", words, want)
	}
}

// countKind counts actions of a kind.
func countKind(all []Action, k ActionKind) (n int) {
	for _, a := range all {
		if a.Kind == k {
			n++
		}
	}
	return n
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// vocabulary is a tokenizer's.
type vocabulary map[string]kv.Token

func (v vocabulary) ID(text string) (kv.Token, bool) {
	t, ok := v[text]
	return t, ok
}

func open(t *testing.T, config, preprocessor string) *family.Family {
	t.Helper()
	files := family.CheckpointFiles{Config: []byte(config)}
	if preprocessor != "" {
		files.Preprocessor = []byte(preprocessor)
	}
	f, err := family.Open(files, vocabulary{"<|audio|>": 4})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// qwen is a family with 256 tokens for a picture of 448 x 448 pixels, and as many for two frames of a video.
func qwen(t *testing.T) *family.Family {
	return open(t, `{"model_type":"qwen2_vl","image_token_id":151655,"video_token_id":151656}`,
		`{"min_pixels":3136,"max_pixels":12845056,"patch_size":14,"merge_size":2,"temporal_patch_size":2}`)
}

// layout returns the layout of an object, which the family must take.
func layout(t *testing.T, f *family.Family, k media.Kind, s media.Size) media.Layout {
	t.Helper()
	l, err := f.Layout(k, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// expand expands a prompt in which imagePad and videoPad are placeholders.
func expand(t *testing.T, prompt []kv.Token, objects ...media.PromptObject) ([]kv.Token, []kv.Media) {
	t.Helper()
	tokens, places, err := media.ExpandPrompt(nil, nil, prompt, []kv.Token{imagePad, videoPad}, objects, media.MaxExpanded)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, places
}

const imagePad, videoPad kv.Token = 50256, 50257

// example is the prompt of the merge example: 16 words and two placeholders.
func example(t *testing.T) (prompt []kv.Token, objects []media.PromptObject) {
	f := qwen(t)
	for i := range kv.Token(18) {
		prompt = append(prompt, 1+i)
	}
	prompt[6], prompt[13] = imagePad, videoPad
	return prompt, []media.PromptObject{
		{Placeholder: imagePad, Layout: layout(t, f, media.Image, media.Size{Width: 896, Height: 896})},
		{Placeholder: videoPad, Layout: layout(t, f, media.Video, media.Size{Width: 448, Height: 448, Frames: 30})},
	}
}

// TestDefects has a test for each known defect of a published sample of such a lifecycle, B1 to B35. Each fails on the
// sample's behaviour. Where another package owns the answer, the test asks that package.
func TestDefects(t *testing.T) {
	// The sample's table has 19 words and ends at 4882.
	t.Run("B1 the merge example has 4880 tokens", func(t *testing.T) {
		prompt, objects := example(t)
		tokens, places := expand(t, prompt, objects...)
		equal(t, "tokens", len(tokens), 4880)
		equal(t, "image from", places[0].Start, 6)
		equal(t, "image to", places[0].End, 1030)
		equal(t, "video from", places[1].Start, 1036)
		equal(t, "video to", places[1].End, 4876)
		equal(t, "share of media in 1/100 %", 10000*(places[0].End-places[0].Start+places[1].End-places[1].Start)/len(tokens), 9967)
	})

	t.Run("B2 the demonstration has 3847 tokens", func(t *testing.T) {
		_, objects := example(t)
		tokens, places := expand(t, []kv.Token{1, 2841, 374, 264, 2835, 25, videoPad, 128009}, objects[1])
		equal(t, "tokens", len(tokens), 3847)
		equal(t, "video from", places[0].Start, 6)
	})

	// The sample adds the tokens of the media to a length which includes the placeholders.
	t.Run("B3 placeholders are not counted twice", func(t *testing.T) {
		prompt, objects := example(t)
		total := len(prompt) - len(objects)
		for _, o := range objects {
			total += o.Layout.CountTokens()
		}
		tokens, _ := expand(t, prompt, objects...)
		equal(t, "tokens", len(tokens), total)
	})

	// The sample's table has 7,680 tokens for 120 frames, half of what its estimator says, and calls 120 MiB 125 MB.
	t.Run("B4 120 frames have 15360 tokens, and bytes are bytes", func(t *testing.T) {
		equal(t, "tokens", layout(t, qwen(t), media.Video, media.Size{Width: 448, Height: 448, Frames: 120}).PadCount, 15360)
		bytesOf := func(rows int) int64 {
			r := media.EncoderRows{Shape: []int{rows, 8192}, Type: media.Float16}
			return int64(r.Bytes(1 << 40))
		}
		equal(t, "bytes of 15360 rows", bytesOf(15360), 240<<20)
		equal(t, "bytes of 7680 rows", bytesOf(7680), 125_829_120)
		// 100 of them have 12.58 GB: a budget of 12.5 GB holds 99.
		p := play(t, func(c *Config) { c.CPUBudget, c.StagingBudget = 12_500_000_000, 4_000_000_000 })
		for range 100 {
			p.submit([]SubmittedObject{{Kind: uint8(media.Video), Tokens: 7680, Bytes: bytesOf(7680)}})
		}
		equal(t, "bytes", p.m.Stats().CPUBytes, 99*125_829_120)
		equal(t, "requests which wait for memory", p.m.Stats().WaitingRequests, 1)
	})

	// The sample's chart adds up to more than a device has. No part of a lifecycle can say what a device has; it can
	// keep to its own bar. The memory of 64 requests in a real process is for a benchmark of the shells.
	t.Run("B5 staging memory of 64 requests is within its bar", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget, c.StagingBudget = 16_000_000_000, 4_000_000_000 })
		most, granted := int64(0), 0
		for range 64 {
			p.submit([]SubmittedObject{{Kind: uint8(media.Video), Tokens: 7680, Bytes: 125_829_120}})
		}
		for len(p.runs) > 0 {
			for _, a := range p.finish() {
				if a.Kind == RequestReady {
					granted += countKind(p.must(p.m.StageRequest(p.now, a.Request, nil)), CopyRows)
					most = max(most, p.m.Stats().StagingBytes)
				}
			}
		}
		equal(t, "most bytes", most, 31*125_829_120)
		equal(t, "requests with staging memory", granted, 31)
		equal(t, "requests which wait for it", p.m.Stats().StagingRequests, 33)
	})

	// The sample estimates 128 tokens for one frame, whose encoder yields 256, and an odd number of frames ends it.
	t.Run("B6 odd numbers of frames are padded", func(t *testing.T) {
		for frames, want := range map[int]int{1: 256, 2: 256, 3: 512, 29: 3840, 30: 3840} {
			equal(t, fmt.Sprintf("tokens of %d frames", frames), layout(t, qwen(t), media.Video, media.Size{Width: 448, Height: 448, Frames: frames}).PadCount, want)
		}
	})

	// The sample counts images by patches of 14 pixels and frames by patches of 16.
	t.Run("B7 images and frames have the patches of their model", func(t *testing.T) {
		f := qwen(t)
		equal(t, "tokens", layout(t, f, media.Video, media.Size{Width: 448, Height: 448, Frames: 2}).PadCount, layout(t, f, media.Image, media.Size{Width: 448, Height: 448}).PadCount)
		other := open(t, `{"model_type":"qwen3_vl","image_token_id":259,"video_token_id":260,"vision_start_token_id":256,"vision_end_token_id":257}`,
			`{"size":{"shortest_edge":65536,"longest_edge":16777216},"patch_size":16,"temporal_patch_size":2,"merge_size":2}`)
		equal(t, "tokens with patches of 16", layout(t, other, media.Image, media.Size{Width: 448, Height: 448}).PadCount, 196)
	})

	// The sample knows no tiles, and gives a side below 14 pixels no token.
	t.Run("B8 tiles are counted, and nothing has no tokens", func(t *testing.T) {
		tiled, err := family.Open(family.CheckpointFiles{
			Config:       []byte(`{"model_type":"internvl","image_token_id":3,"image_seq_length":256}`),
			Preprocessor: []byte(`{"min_patches":1,"max_patches":12,"size":{"height":448,"width":448}}`),
			Processor:    []byte(`{"image_seq_length":256}`),
		}, vocabulary{"<img>": 1, "</img>": 2, "<IMG_CONTEXT>": 3})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "tokens of 6 tiles and the whole", layout(t, tiled, media.Image, media.Size{Width: 1344, Height: 896}).PadCount, 7*256)
		if n := layout(t, qwen(t), media.Image, media.Size{Width: 13, Height: 500}).PadCount; n < 1 {
			t.Errorf("13 by 500 pixels have %d tokens", n)
		}
		p := play(t, nil)
		if _, _, err := p.m.SubmitRequest(0, submissionOf(images(0), Usage{}), nil); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("an object without tokens: %v", err)
		}
	})

	// The sample counts samples and encodes spectra in the same field, has twice the rows of an encoder with pooling,
	// and knows no chunks.
	t.Run("B9 sounds are counted by samples and chunks", func(t *testing.T) {
		pooled := open(t, `{"model_type":"qwen2_audio","audio_token_index":7}`, `{"chunk_length":30,"sampling_rate":16000,"hop_length":160}`)
		equal(t, "tokens of 30 s", layout(t, pooled, media.Audio, media.Size{Samples: 30 * 16000}).PadCount, 750)
		chunked := open(t, `{"model_type":"ultravox","audio_token_index":4,"stack_factor":8}`, "")
		one := layout(t, chunked, media.Audio, media.Size{Samples: 30 * 16000}).PadCount
		equal(t, "tokens of 30 s in one chunk", one, 188)
		equal(t, "tokens of 2 min", layout(t, chunked, media.Audio, media.Size{Samples: 120 * 16000}).PadCount, 4*one)
	})

	t.Run("B10 another number of rows than was estimated is an error", func(t *testing.T) {
		p := play(t, nil)
		id, _ := p.submit(rowsOf(media.Video, 128))
		out := p.finishWith(func(r *Result) { r.Tokens, r.Bytes = 256, 256 })
		end := out[len(out)-1]
		if end.Request != id || end.Ending != Failed || end.Failures[0].Kind != SizeDiffers || !strings.Contains(end.Failures[0].Detail, "256 rows") || !strings.Contains(end.Failures[0].Detail, "128") {
			t.Errorf("%v", end)
		}
		equal(t, "bytes", p.m.Stats().CPUBytes, 0)
	})

	// The sample gives the permit back when the job is queued.
	t.Run("B11 permits are held until the end of a run", func(t *testing.T) {
		p := play(t, func(c *Config) { c.MaxJobs, c.MaxBatch = 3, 2 })
		p.must(p.m.AddEncoder(0, 1, EncoderLimits{}, nil))
		_, out := p.submit(images(1, 1, 1, 1))
		out = append(out, p.pass(time.Second)...)
		expect(t, out, "run 1 on encoder 0: 1.0 to rows 1 1.1 to rows 2", "run 2 on encoder 1: 1.2 to rows 3")
		equal(t, "permits", p.m.Stats().RunningObjects, 3)
		expect(t, p.finish(), "run 3 on encoder 0: 1.3 to rows 4")
		equal(t, "permits", p.m.Stats().RunningObjects, 2)
	})

	// The sample calls a submit which returns a promise as if it returned. Here the call itself does everything; that
	// the shells wait for nothing is for their tests.
	t.Run("B12 a submit has happened when it returns", func(t *testing.T) {
		p := play(t, nil)
		id, out := p.submit(images(5))
		expect(t, out, "run 1 on encoder 0: 1.0 to rows 1")
		if state, err := p.m.StateOf(id, 0); state != Encoding || err != nil {
			t.Errorf("%v %v", state, err)
		}
	})

	// The sample registers an object after its job has begun.
	t.Run("B13 an object has its record and its memory before it runs", func(t *testing.T) {
		p := play(t, nil)
		_, out := p.submit(images(5))
		equal(t, "runs", countKind(out, RunBatch), 1)
		equal(t, "bytes", p.m.Stats().CPUBytes, 5)
		expect(t, p.finish(), "request 1 is ready") // at once
		equal(t, "bytes", p.m.Stats().CPUBytes, 5)
	})

	// The sample's counters and tables are written by threads without a lock. The machine starts no goroutine and has
	// no lock, which a test of the whole tree checks; what it hands out is a copy, so that a reader shares nothing with
	// the next event.
	t.Run("B14 what is handed out is a copy", func(t *testing.T) {
		p := play(t, nil)
		id, out := p.submit(images(5, 6))
		before, load := p.m.Stats(), p.m.AppendEncoders(nil)
		run := out[0]
		run.Items[0] = Item{Request: 9, Index: 9}
		expect(t, p.must(p.m.FinishRun(0, run.Run, []Result{{Tokens: 5, Bytes: 5}, {Tokens: 6, Bytes: 6}}, nil)), "request 1 is ready")
		equal(t, "permits before", before.RunningObjects, 2)
		equal(t, "objects in flight before", load[0].InFlight, 2)
		copied := p.must(p.m.StageRequest(0, id, nil))
		copied[0].Sources[0] = RowSource{Index: 9, Rows: 9}
		expect(t, p.must(p.m.MarkCopied(0, id, nil)), "drop rows 1", "drop rows 2")
		equal(t, "objects encoded", p.m.Stats().Encoded, 2)
	})

	// The sample looks at all requests in each poll, and copies their list. Here the event which finishes the last
	// object reports the request, with memory for it alone.
	t.Run("B15 the end of one run costs the same beside many requests", func(t *testing.T) {
		cost := func(waiting int) uint64 {
			p := play(t, func(c *Config) { c.MaxObjects, c.CPUBudget = 20000, 1<<30 })
			for range waiting {
				if _, _, err := p.m.SubmitRequest(0, submissionOf(images(1), Usage{}), nil); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			results, out := []Result{{Tokens: 1, Bytes: 1}}, make([]Action, 0, 8)
			runtime.ReadMemStats(&before)
			out, err := p.m.FinishRun(0, 1, results, out)
			runtime.ReadMemStats(&after)
			if err != nil || out[0].Kind != RequestReady {
				t.Fatal(out, err)
			}
			return after.TotalAlloc - before.TotalAlloc
		}
		few, many := cost(10), cost(10000)
		if many > few+16<<10 { // a list of 10,000 ids has 80,000 bytes; the run which starts has some hundred
			t.Errorf("%d bytes are allocated beside 10 requests, and %d beside 10,000", few, many)
		}
	})

	t.Run("B16 a request without media is reported", func(t *testing.T) {
		p := play(t, nil)
		_, out := p.submit(nil)
		expect(t, out, "request 1 is ready")
	})

	// The sample's load is not taken back after an error, and its capacity bounds nothing.
	t.Run("B17 load is taken back after failures, and capacity is a bound", func(t *testing.T) {
		p := play(t, nil)
		p.must(p.m.LoseEncoder(0, 0, nil))
		p.must(p.m.AddEncoder(0, 1, EncoderLimits{Jobs: 2}, nil))
		p.submit(images(1, 1, 1))
		expect(t, p.pass(time.Second))
		loads := func() EncoderLoad { return p.m.AppendEncoders(nil)[0] }
		equal(t, "load", loads(), EncoderLoad{Encoder: 1, InFlight: 2, Capacity: 2})
		equal(t, "utilization", loads().Utilization(), 1)
		for len(p.runs) > 0 {
			p.failRun(EncoderFailed)
		}
		equal(t, "load", loads(), EncoderLoad{Encoder: 1, InFlight: 0, Capacity: 2})
		equal(t, "failed requests", p.m.Stats().Ended[Failed], 1)
	})

	t.Run("B18 batches do not wait for ever", func(t *testing.T) {
		p := play(t, nil)
		p.submit(rowsOf(media.Audio, 1)) // keeps the encoder busy
		like := images(1, 1, 1, 1, 1)
		like[1].Shape[0], like[4].Shape[0] = 7, 7
		like[2].Kind = uint8(media.Video)
		_, out := p.submit(like)
		expect(t, out)
		at, ok := p.m.Deadline()
		if want := p.now.Add(5 * time.Millisecond); !ok || at != want {
			t.Fatalf("deadline %d %t, want %d", at, ok, want)
		}
		expect(t, p.pass(5*time.Millisecond-1))
		expect(t, p.pass(1), "run 2 on encoder 0: 2.0 to rows 2 2.3 to rows 5", "run 3 on encoder 0: 2.1 to rows 3 2.4 to rows 6", "run 4 on encoder 0: 2.2 to rows 4")
		// What comes while they run is another batch, and a failure leaves none without an end.
		_, out = p.submit(images(1))
		expect(t, out)
		p.finish()
		for p.m.requests[2] != nil {
			p.failRun(EncoderFailed)
		}
		equal(t, "ends", p.m.Stats().Ended[Failed], 1)
		p.pass(5 * time.Millisecond)
		for len(p.runs) > 0 {
			p.finish()
		}
		equal(t, "requests which are ready", p.m.Stats().ReadyRequests, 2)
		// Eight are a batch without a wait.
		p.submit(rowsOf(media.Audio, 1))
		_, out = p.submit(images(1, 1, 1, 1, 1, 1, 1, 1))
		equal(t, "items", len(out[0].Items), 8)
	})

	// The sample frees as many bytes as are needed, not as many as are missing, and looks no further.
	t.Run("B19 eviction frees what is missing, and never less", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget = 100 })
		turn := p.ready(keyed(images(20, 20, 20, 20)), Usage{MultiTurn: true})
		p.walkTo(turn, Prefilled)
		p.must(p.m.EndRequest(0, turn, nil))
		_, out := p.submit(rowsOf(media.Video, 50)) // 20 bytes are free, 30 are missing
		equal(t, "evicted", countKind(out, DropRows), 2)
		equal(t, "bytes", p.m.Stats().CPUBytes, 90)
		equal(t, "kept bytes", p.m.Stats().KeptBytes, 40)
		_, out = p.submit(rowsOf(media.Video, 51)) // too much even without them
		equal(t, "evicted in vain", countKind(out, DropRows), 0)
		equal(t, "bytes", p.m.Stats().CPUBytes, 90)
	})

	// The sample evicts rows which are about to be merged, and loses the request.
	t.Run("B20 rows of a live request are never evicted", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget = 100 })
		first := p.ready(images(60), Usage{})
		_, out := p.submit(images(50))
		expect(t, out)
		expect(t, p.walkTo(first, Staged), "copy to staging for request 1: 0 from rows 1", "drop rows 1", "run 2 on encoder 0: 2.0 to rows 2")
	})

	// The sample's evicted rows are still referenced by the table of results.
	t.Run("B21 evicted rows are dropped, and not used again", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget = 100 })
		turn := p.ready(keyed(images(60)), Usage{MultiTurn: true})
		p.walkTo(turn, Prefilled)
		p.must(p.m.EndRequest(0, turn, nil))
		big, out := p.submit(rowsOf(media.Video, 50))
		expect(t, out, "drop rows 1", "run 2 on encoder 0: 2.0 to rows 2")
		p.must(p.m.CancelRequest(0, big, nil))
		p.finish()
		_, out = p.submit(keyed(images(60)))
		expect(t, out, "run 3 on encoder 0: 3.0 to rows 3")
	})

	// The sample keeps rows by request and never looks them up; its counters of hits and evictions stay 0.
	t.Run("B22 the next turn uses the rows, and hits and evictions are counted", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget = 100 })
		turn := p.ready(keyed(images(60)), Usage{MultiTurn: true})
		p.walkTo(turn, Prefilled)
		p.must(p.m.EndRequest(0, turn, nil))
		next, out := p.submitFor(keyed(images(60)), Usage{MultiTurn: true})
		expect(t, out, "request 2 is ready")
		p.walkTo(next, Prefilled)
		p.must(p.m.EndRequest(0, next, nil))
		p.submit(rowsOf(media.Video, 50))
		st := p.m.Stats()
		equal(t, "hits", st.CacheHits, 1)
		equal(t, "misses", st.CacheMisses, 2)
		equal(t, "evictions", st.Evictions, 1)
	})

	t.Run("B23 records end with their request", func(t *testing.T) {
		p := play(t, nil)
		for i := range 300 {
			switch id := p.ready(images(5, 6), Usage{Branches: i % 3}); i % 4 {
			case 0:
				p.must(p.m.CancelRequest(0, id, nil))
			case 1:
				p.walkTo(id, Staged)
				p.must(p.m.CancelRequest(0, id, nil))
				p.must(p.m.ReleaseStaging(0, id, nil))
			default:
				p.walkTo(id, Prefilled)
				if i%3 == 2 {
					p.must(p.m.EndRequest(0, id, nil))
				}
			}
		}
		m := p.m
		equal(t, "records", len(m.requests)+len(m.runs)+len(m.stages)+len(m.kept)+len(m.groups)+len(m.retries)+m.unsettled.Len()+m.waiting.Len()+m.stageQueue.Len()+m.idle.Len(), 0)
		equal(t, "ends", m.stats.Ended[Completed]+m.stats.Ended[Cancelled], 300)
	})

	// The sample stages a copy and merges another, and counts memory as free which is in use.
	t.Run("B24 rows are copied once, and both copies count while there are two", func(t *testing.T) {
		p := play(t, nil)
		id := p.ready(images(30), Usage{})
		expect(t, p.walkTo(id, EncodedCPU), "copy to staging for request 1: 0 from rows 1")
		equal(t, "bytes during the copy", p.m.Stats().CPUBytes+p.m.Stats().StagingBytes, 60)
		expect(t, p.must(p.m.MarkCopied(0, id, nil)), "drop rows 1")
		equal(t, "bytes after it", p.m.Stats().CPUBytes, 0)
		equal(t, "staged bytes", p.m.Stats().StagingBytes, 30)
		expect(t, p.must(p.m.MarkMerged(0, id, nil)))
	})

	t.Run("B25 the merge frees staging memory", func(t *testing.T) {
		p := play(t, nil)
		id := p.ready(images(30), Usage{})
		p.walkTo(id, Merged)
		equal(t, "staged bytes", p.m.Stats().StagingBytes, 0)
	})

	// The sample leaves kept rows in staging memory for ever, and no state follows PREFILLED.
	t.Run("B26 kept rows are in CPU memory, can be staged again, and end", func(t *testing.T) {
		p := play(t, nil)
		id := p.ready(images(30), Usage{Branches: 4})
		p.walkTo(id, Prefilled)
		equal(t, "bytes", p.m.Stats().CPUBytes, 30)
		equal(t, "staged bytes", p.m.Stats().StagingBytes, 0)
		expect(t, p.walkTo(id, Staged), "copy to staging for request 1: 0 from rows 1")
		equal(t, "staged bytes", p.m.Stats().StagingBytes, 30)
		p.must(p.m.MarkMerged(0, id, nil))
		p.must(p.m.MarkPrefilled(0, id, nil))
		expect(t, p.must(p.m.EndRequest(0, id, nil)), "drop rows 1", "request 1 has ended: completed")
		equal(t, "bytes", p.m.Stats().CPUBytes, 0)
	})

	// The sample stages one object after the other, and at the first without room it loses the request and leaks.
	t.Run("B27 staging memory is for all objects or for none, and waiting loses nothing", func(t *testing.T) {
		p := play(t, func(c *Config) { c.StagingBudget = 100 })
		first, second, small := p.ready(images(40), Usage{}), p.ready(images(30, 40), Usage{}), p.ready(images(5), Usage{})
		p.walkTo(first, Staged)
		expect(t, p.must(p.m.StageRequest(0, second, nil)))
		equal(t, "staged bytes", p.m.Stats().StagingBytes, 40)
		expect(t, p.must(p.m.StageRequest(0, small, nil))) // which does not pass the large one
		expect(t, p.must(p.m.MarkMerged(0, first, nil)), "copy to staging for request 2: 0 from rows 2 1 from rows 3", "copy to staging for request 3: 0 from rows 4")
	})

	t.Run("B28 illegal transitions are refused", checkTransitions)

	// The sample forgets a failed object, leaks its siblings' rows, and says nothing of what failed.
	t.Run("B29 a failure names its object, and its siblings leak nothing", func(t *testing.T) {
		p := play(t, nil)
		p.submit(rowsOf(media.Audio, 1))
		p.submit(images(5, 6, 7))
		p.finish()
		n := 0
		out := p.finishWith(func(r *Result) {
			if n++; n == 2 {
				*r = Result{Failure: Corrupt, Detail: "no picture"}
			}
		})
		expect(t, out, "drop rows 3", "drop rows 2", "drop rows 4", "request 2 has ended: failed; object 1: corrupt: no picture")
		equal(t, "bytes", p.m.Stats().CPUBytes, 1)
	})

	// The sample goes on with ids in place of rows, and with the memory of the rows. Here nothing of a failed request
	// can be staged. That an answer without the object is a new prompt is for the frontend's tests.
	t.Run("B30 a failed request has nothing to merge and no memory", func(t *testing.T) {
		p := play(t, nil)
		id, _ := p.submit(images(30))
		p.failRun(Corrupt)
		if _, err := p.m.StageRequest(0, id, nil); !errors.Is(err, ErrUnknownRequest) {
			t.Errorf("staging: %v", err)
		}
		equal(t, "bytes", p.m.Stats().CPUBytes+p.m.Stats().StagingBytes, 0)
	})

	// The sample repeats in secret, outside its bound, with the old number of tokens and without end.
	t.Run("B31 an object too large for an encoder is reported once and repeated by its submitter", func(t *testing.T) {
		p := play(t, func(c *Config) { c.CPUBudget, c.StagingBudget = 1<<20, 1<<20 })
		tokens := func(frames int) int {
			return layout(t, qwen(t), media.Video, media.Size{Width: 448, Height: 448, Frames: frames}).PadCount
		}
		p.submit(rowsOf(media.Video, tokens(30)))
		expect(t, p.failRun(OutOfMemory), "drop rows 1", "request 1 has ended: failed; object 0: out of memory: as told")
		expect(t, p.pass(time.Second))
		equal(t, "repeats", p.m.Stats().Repeats, 0)
		equal(t, "permits", p.m.Stats().RunningObjects, 0)
		equal(t, "tokens of half the frames", tokens(15), 8*256) // every second of 30 frames are 15, which are padded
		_, out := p.submit(rowsOf(media.Video, tokens(15)))
		expect(t, out, "run 2 on encoder 0: 2.0 to rows 2")
		expect(t, p.finish(), "request 2 is ready")
		equal(t, "bytes", p.m.Stats().CPUBytes, 8*256)
	})

	// The sample's deadline is never set, ends no job, and the job's result comes back to life.
	t.Run("B32 a deadline stops the job, whose result changes nothing", func(t *testing.T) {
		p := play(t, func(c *Config) { c.Timeout = time.Second })
		p.submit(images(30))
		if at, ok := p.m.Deadline(); !ok || at != kv.Mono(time.Second) {
			t.Errorf("deadline %d %t", at, ok)
		}
		expect(t, p.pass(time.Second), "abort run 1 on encoder 0", "request 1 has ended: failed; object 0: deadline: not encoded within 1s")
		equal(t, "bytes which may be written", p.m.Stats().CPUBytes, 30)
		expect(t, p.finish(), "drop rows 1")
		st := p.m.Stats()
		equal(t, "bytes", st.CPUBytes, 0)
		equal(t, "objects encoded", st.Encoded, 0)
		equal(t, "requests which are ready", st.ReadyRequests, 0)
		if _, err := p.m.FinishRun(p.now, 1, []Result{{Tokens: 30, Bytes: 30}}, nil); !errors.Is(err, ErrUnknownRun) {
			t.Errorf("a second report: %v", err)
		}
	})

	// The sample answers without the media and does not say so.
	t.Run("B33 a request with a failed object is never ready", func(t *testing.T) {
		for kind := Corrupt; kind < failureKinds; kind++ {
			p := play(t, func(c *Config) { c.MaxAttempts = 1 })
			p.submit([]SubmittedObject{{Kind: uint8(media.Image), Tokens: 5, Bytes: 5}, {Kind: uint8(media.Video), Position: 1, Tokens: 6, Bytes: 6}})
			all := p.finish()
			all = append(all, p.failRun(kind)...)
			equal(t, fmt.Sprintf("%v: ready", kind), countKind(all, RequestReady), 0)
			end := all[len(all)-1]
			if end.Kind != RequestEnded || end.Ending != Failed || len(end.Failures) != 1 || end.Failures[0].Index != 1 || end.Failures[0].Kind != kind {
				t.Errorf("%v: %v", kind, end)
			}
		}
	})

	t.Run("B34 objects and placeholders are one for one", func(t *testing.T) {
		image, video := uint8(media.Image), uint8(media.Video)
		at := func(position int, kind uint8) SubmittedObject {
			return SubmittedObject{Kind: kind, Position: position, Tokens: 1, Bytes: 1}
		}
		for _, c := range []struct {
			name    string
			places  []Placeholder
			objects []SubmittedObject
		}{
			{"two objects in one place", []Placeholder{{6, image}, {7, image}}, []SubmittedObject{at(6, image), at(6, image)}},
			{"two placeholders in one place", []Placeholder{{6, image}, {6, image}}, []SubmittedObject{at(6, image), at(6, image)}},
			{"a placeholder without an object", []Placeholder{{6, image}, {7, image}}, []SubmittedObject{at(6, image)}},
			{"an object without a placeholder", []Placeholder{{6, image}}, []SubmittedObject{at(6, image), at(7, image)}},
			{"an object elsewhere", []Placeholder{{6, image}}, []SubmittedObject{at(7, image)}},
			{"an object of another kind", []Placeholder{{6, image}}, []SubmittedObject{at(6, video)}},
			{"a negative position", []Placeholder{{-1, image}}, []SubmittedObject{at(-1, image)}},
			{"text which looks like a placeholder", []Placeholder{{6, image}}, nil},
		} {
			p := play(t, nil)
			if _, out, err := p.m.SubmitRequest(0, Submission{Placeholders: c.places, Objects: c.objects}, nil); fault.CodeOf(err) != fault.Invalid || len(out) > 0 || p.m.Stats().Requests > 0 {
				t.Errorf("%s: %v %v", c.name, out, err)
			}
		}
	})

	// The sample cannot cancel.
	t.Run("B35 a cancelled request leaks nothing and is never delivered", checkCancels)
}

// legalEvents are the events which are legal in each state of a request, with and without kept rows.
var legalEvents = map[string]string{
	"waiting": "cancel", "encoding": "cancel", "encoding, kept": "cancel", "ready": "stage cancel", "queued": "cancel", "copying": "copied cancel",
	"staged": "merged cancel", "merged": "prefilled cancel", "ended": "", "copying, ended": "release",
	"merged, kept": "stage prefilled cancel", "prefilled, kept": "stage end cancel", "copying, kept": "copied end cancel", "staged, kept": "merged end cancel",
}

// requestIn returns a player with a request in a state of legalEvents.
func requestIn(t *testing.T, state string) (*player, RequestID) {
	p := play(t, func(c *Config) { c.CPUBudget, c.StagingBudget = 100, 100 })
	use := Usage{}
	if strings.HasSuffix(state, "kept") {
		use.Speculative = true
	}
	switch state {
	case "waiting":
		p.submit(images(60))
		id, _ := p.submit(images(70))
		return p, id
	case "encoding", "encoding, kept":
		id, _ := p.submitFor(images(30), use)
		return p, id
	case "queued":
		p.walkTo(p.ready(images(60), use), Staged)
		id := p.ready(images(70), use)
		p.must(p.m.StageRequest(0, id, nil))
		return p, id
	}
	id := p.ready(images(30), use)
	switch state {
	case "copying", "copying, ended":
		p.walkTo(id, EncodedCPU)
	case "staged":
		p.walkTo(id, Staged)
	case "merged", "merged, kept":
		p.walkTo(id, Merged)
	case "ended", "prefilled, kept", "copying, kept", "staged, kept":
		p.walkTo(id, Prefilled)
	}
	switch state {
	case "copying, ended":
		p.must(p.m.CancelRequest(0, id, nil))
	case "copying, kept":
		p.walkTo(id, EncodedCPU)
	case "staged, kept":
		p.walkTo(id, Staged)
	}
	return p, id
}

// checkTransitions tries every event in every state. One which is illegal changes nothing.
func checkTransitions(t *testing.T) {
	for state, legal := range legalEvents {
		for _, event := range []string{"stage", "copied", "merged", "prefilled", "end", "cancel", "release"} {
			p, id := requestIn(t, state)
			before, was := p.m.Stats(), ObjectState(0)
			if q := p.m.requests[id]; q != nil {
				was = q.state
			}
			out, err := map[string]func(kv.Mono, RequestID, []Action) ([]Action, error){
				"stage": p.m.StageRequest, "copied": p.m.MarkCopied, "merged": p.m.MarkMerged, "prefilled": p.m.MarkPrefilled,
				"end": p.m.EndRequest, "cancel": p.m.CancelRequest, "release": p.m.ReleaseStaging,
			}[event](0, id, nil)
			if slices.Contains(strings.Fields(legal), event) {
				if p.must(out, err); p.m.requests[id] != nil && event != "stage" && p.m.requests[id].state == was {
					t.Errorf("%s in state %s changes nothing", event, state)
				}
				continue
			}
			var refused *StateError
			unknown := state == "ended" || state == "copying, ended"
			if !errors.As(err, &refused) && !(unknown && errors.Is(err, ErrUnknownRequest)) || len(out) > 0 || p.m.Stats() != before {
				t.Errorf("%s in state %s: %v, %v", event, state, out, err)
			}
		}
	}
}

// checkCancels cancels a request in every state, and ends what the shell has in progress.
func checkCancels(t *testing.T) {
	for state, legal := range legalEvents {
		if !strings.Contains(legal, "cancel") {
			continue
		}
		p, id := requestIn(t, state)
		all := p.must(p.m.CancelRequest(0, id, nil))
		if n := len(all); n == 0 || countKind(all, RequestEnded) != 1 {
			t.Errorf("%s: %v", state, all)
		}
		for _, a := range all {
			if a.Kind == DropStaged {
				all = append(all, p.must(p.m.ReleaseStaging(0, id, nil))...)
			}
		}
		for other := range p.m.requests {
			p.must(p.m.CancelRequest(0, other, nil))
			if p.m.stages[other] != nil {
				p.must(p.m.ReleaseStaging(0, other, nil))
			}
		}
		for len(p.runs) > 0 {
			all = append(all, p.finish()...)
		}
		for _, a := range append(all, p.pass(time.Hour)...) {
			if a.Request == id && a.Kind != RequestEnded && a.Kind != DropStaged {
				t.Errorf("%s: after the cancel: %v", state, a)
			}
		}
		st := p.m.Stats()
		if st.CPUBytes != 0 || st.StagingBytes != 0 || st.RunningObjects != 0 || st.Requests != st.Ended[Cancelled] {
			t.Errorf("%s: %+v", state, st)
		}
	}
}
