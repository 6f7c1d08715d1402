package handoff

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/png"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/tiny"
	"penstock/internal/plane/xfer"
)

var (
	combinationRequests = flag.Int("requests", 54, "requests of TestCombinations, spread evenly over 27 combinations")
	combinationTokens   = flag.Int("prompt-tokens", 200, "longest prompt of TestCombinations")
)

// TestCombinations: random requests, every other one with a picture, give the same tokens and log-probabilities
// aggregated, as a decode worker computes them, and with their prompts computed by a prefill worker: for each
// transport and for blocks of 16, 64 and 128 tokens on either side. It proves that the last were remote: see
// combination.runRemote. The long form is
//
//	go test ./internal/serve/handoff -run TestCombinations -requests 1000 -prompt-tokens 2500 -timeout 5h -v
//
// Owner and writer of a transfer are of one process. In shared memory and over TCP each has a plane of its own, which
// knows the other by the descriptor alone, so all bytes go through the region or the connection.
func TestCombinations(t *testing.T) {
	alone := newPictureEngine(t, 16, 256)
	ctx := enginetest.Start(t, alone)
	aggregated := func(req *engine.Request) []enginetest.Choice { return enginetest.MustGenerate(t, ctx, alone, req) }
	sizes := []int{16, 64, 128}
	total := combinationCounts{remote: map[string]int{}}
	index := 0
	for _, transport := range []xfer.Transport{xfer.Mem, xfer.Shm, xfer.TCP} {
		for _, decode := range sizes {
			for _, prefill := range sizes {
				first := index
				index++
				t.Run(fmt.Sprintf("%v, %d from %d", transport, decode, prefill), func(t *testing.T) {
					c := newCombination(t, transport, decode, prefill)
					defer c.awaitIdle()
					before := total
					for i := first; i < *combinationRequests; i += 27 {
						c.runRequest(i, aggregated, &total)
					}
					t.Logf("%d requests, %d with a picture; %d blocks of %d bytes moved", total.requests-before.requests, total.pictures-before.pictures,
						total.blocks-before.blocks, c.prefill.BlockLayout().BlockBytes)
				})
			}
		}
	}
	t.Logf("%d requests of at most %d tokens, %d with a picture, each aggregated, local and remote; %d with log-probabilities, %d sampled; at least %d of each of %d combinations",
		total.requests, *combinationTokens, total.pictures, total.logprobs, total.sampled, *combinationRequests/index, index)
	t.Logf("of %d tokens of remote prompts the prefill workers computed %d, and the decode workers the rest, at most %d of one; %d blocks moved, of %d bytes",
		total.tokens, total.moved, total.most, total.blocks, total.bytes)
	for _, name := range slices.Sorted(maps.Keys(total.remote)) {
		t.Logf("%s: %d remote", name, total.remote[name])
	}
}

// combinationCounts are counts over all combinations.
type combinationCounts struct {
	requests, pictures, logprobs, sampled int
	// tokens are those of remote prompts, moved those of them whose blocks moved, most the largest difference.
	tokens, moved, most int
	blocks              int
	bytes               int64
	remote              map[string]int // by transport
}

// pictureEngine is an engine which fetches pictures.
type pictureEngine struct {
	*tiny.Engine
	files *drawnFiles
}

// newPictureEngine returns an engine which computes at most batch tokens at once, and keeps no encoded picture.
func newPictureEngine(t *testing.T, blockSize, batch int) *pictureEngine {
	t.Helper()
	files := &drawnFiles{}
	return &pictureEngine{files: files, Engine: newTiny(t, blockSize, 4096, func(c *tiny.Config) {
		c.TokenBudget, c.MaxSeqs, c.EmbeddingCache, c.Files = batch, 16, new(0), files
	})}
}

// progress returns the batches which the engine has computed and the pictures which it has encoded, added.
func (e *pictureEngine) progress() uint64 { return e.HealthReport().Progress }

// drawnFiles is a source of pictures, whose URLs say how they are drawn.
type drawnFiles struct{ fetched atomic.Uint64 }

const drawnURL = "https://pictures.example/%d.png"

// drawPicture returns the file at a URL.
func drawPicture(seed uint64) ([]byte, error) {
	picture := image.NewNRGBA(image.Rect(0, 0, pictureSize.Width, pictureSize.Height))
	for i, b := range noise(seed) {
		picture.Pix[i/3*4+i%3], picture.Pix[i/3*4+3] = b, 255
	}
	var file bytes.Buffer
	err := png.Encode(&file, picture)
	return file.Bytes(), err
}

// FetchFile implements [tiny.Files].
func (f *drawnFiles) FetchFile(_ context.Context, url string) ([]byte, func(), error) {
	f.fetched.Add(1)
	var seed uint64
	if _, err := fmt.Sscanf(url, drawnURL, &seed); err != nil {
		return nil, nil, err
	}
	file, err := drawPicture(seed)
	return file, func() {}, err
}

// ParseData implements [tiny.Files].
func (*drawnFiles) ParseData(string) ([]byte, error) {
	return nil, fault.New(fault.Invalid, "no picture is in its URL")
}

// combination is a decode worker and a prefill worker with a transport between them.
type combination struct {
	*rig
	transport       xfer.Transport
	decode, prefill *pictureEngine
	local           atomic.Bool      // what comes now is prefilled by the decode worker
	reports         chan xfer.Report // of the decode worker's plane
	done            chan donePrompt  // of the prefill worker
}

// donePrompt is a prompt whose blocks the prefill worker has written.
type donePrompt struct {
	computed int
	bytes    int64
}

// ObserveTransfer implements [xfer.Observer].
func (c *combination) ObserveTransfer(r xfer.Report) {
	if r.Side == xfer.OwnerSide {
		c.reports <- r
	}
}

// newCombination starts the workers. A batch of the decode worker has at most the tokens of a block.
func newCombination(t *testing.T, transport xfer.Transport, decode, prefill int) *combination {
	t.Helper()
	c := &combination{transport: transport, reports: make(chan xfer.Report, 8), done: make(chan donePrompt, 8)}
	batches := []int{decode, 256}
	cfg := rigConfig{blocks: []int{decode, prefill}, open: func(blockSize int) exchangeEngine {
		e := newPictureEngine(t, blockSize, batches[0])
		batches = batches[1:]
		return e
	}}
	cfg.owner, cfg.writer = newEnds(t, transport, xfer.Config{Observer: c})
	split := decideRemotely(t, func() int { return 1 })
	cfg.change = func(d *DecodeWorkerConfig) {
		// Time is real here. None of these is reached on a slow machine.
		d.Handoff = disagg.HandoffConfig{MaxAttempts: 1, LocalWait: time.Hour, QueueWait: time.Hour, AddressedWait: time.Hour, Silence: time.Hour, Budget: time.Hour}
		d.Decide = func(asked disagg.SplitSettings, in disagg.SplitInputs, hint *engine.PrefillHint) disagg.Decision {
			if c.local.Load() {
				return disagg.Decision{Inputs: in}
			}
			return split(asked, in, hint)
		}
	}
	cfg.prefill = func(p *PrefillWorkerConfig) {
		p.Job = disagg.JobConfig{ClaimWait: time.Hour, Heartbeat: time.Second, Budget: time.Hour}
		p.Observe = func(computed int, bytes int64) { c.done <- donePrompt{computed, bytes} }
	}
	c.rig = newRig(t, cfg)
	c.decode, c.prefill = c.eng.(*pictureEngine), c.prefills[0].eng.(*pictureEngine)
	return c
}

// newEnds returns the planes of a decode worker and of a prefill worker.
func newEnds(t *testing.T, transport xfer.Transport, cfg xfer.Config) (owner, writer xfer.Plane) {
	t.Helper()
	open := func(cfg xfer.Config) xfer.Plane {
		var p interface {
			xfer.Plane
			Close() error
		}
		var err error
		if transport == xfer.Shm {
			p, err = xfer.NewShmPlane(cfg)
		} else {
			p, err = xfer.NewTCPPlane(xfer.TCPConfig{Config: cfg})
		}
		if fault.CodeOf(err) == fault.Unimplemented {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	if transport == xfer.Mem {
		p := newMemPlane(t, cfg)
		return p, p
	}
	cfg.Handshake, cfg.Silence = time.Hour, time.Hour // of real time
	return open(cfg), open(xfer.Config{Handshake: cfg.Handshake, Silence: cfg.Silence})
}

// awaitIdle checks that nothing is left.
func (c *combination) awaitIdle() {
	for end := time.Now().Add(time.Minute); ; {
		left := c.listLeft()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Error(left)
			return
		}
		time.Sleep(time.Millisecond) // nothing tells when the last goroutine of a job has ended
	}
}

// drawRequest returns a request which has a block to move. Every third prompt ends at a block boundary, or one token
// after it. A picture stands anywhere in the blocks which move.
func (c *combination) drawRequest(i int) *engine.Request {
	random := func(what uint64, n int) int { return int(mix(mix(uint64(i), what), 7) % uint64(n)) }
	size := c.decode.BlockLayout().BlockSize
	n := size + 1 + random(1, max(*combinationTokens-size, 1))
	if random(2, 3) == 0 {
		boundary := c.prefills[random(3, len(c.prefills))].eng.BlockLayout().BlockSize
		n = max(n/boundary*boundary+random(4, 2), size+1)
	}
	req := newRequest(i, n, 4)
	req.Sampling = []engine.Sampling{
		{}, {Temperature: 1, TopK: 50, Seed: uint64(i)}, {Temperature: 0.8, TopP: 0.9, RepetitionPenalty: 1.2, Seed: uint64(i)},
	}[random(5, 3)]
	if i%2 == 0 {
		req.Logprobs = 2
	}
	if i/27%2 == 0 {
		return req
	}
	file, err := drawPicture(uint64(i))
	if err != nil {
		c.t.Fatal(err)
	}
	const tokens = 6
	at := random(6, (n-1)/size*size-tokens+1)
	o := media.Object{Key: media.BytesKey(file), Identity: media.ByBytes, Source: fmt.Sprintf(drawnURL, i), Size: pictureSize}
	if end := showObject(c.t, req, at, o); end != at+tokens {
		c.t.Fatalf("a picture has %d tokens", end-at)
	}
	return req
}

// runRequest serves a request in the three ways, and counts it.
func (c *combination) runRequest(i int, aggregated func(*engine.Request) []enginetest.Choice, total *combinationCounts) {
	req := c.drawRequest(i)
	want := aggregated(req)
	o := c.runRemote(req, want)
	c.runLocal(req, want)
	total.requests++
	total.pictures += len(req.Objects)
	if req.Logprobs >= 0 {
		total.logprobs++
	}
	if req.Sampling.Temperature > 0 {
		total.sampled++
	}
	layout := c.prefill.BlockLayout()
	first, last := layout.BlockRange(o.Start, o.End)
	total.remote[c.transport.String()]++
	total.tokens, total.moved, total.most = total.tokens+len(req.Prompt), total.moved+o.End-o.Start, max(total.most, len(req.Prompt)-o.End)
	total.blocks, total.bytes = total.blocks+last-first, total.bytes+o.Bytes
}

// runRemote serves a request whose prompt the prefill worker computes. It checks the answer, and the proof: the
// decode worker has computed as many batches as the answer has tokens, so the first of them had all that it computed
// of the prompt, at most a block. It has neither fetched nor encoded a picture; the prefill worker has. The decode
// worker's plane has received over the transport the bytes of the blocks, and no others.
func (c *combination) runRemote(req *engine.Request, want []enginetest.Choice) *HandoffOutcome {
	pictures := uint64(len(req.Objects))
	progress, encoded, fetched := c.decode.progress(), encodedBy(c.decode), c.decode.files.fetched.Load()
	elsewhere, fetchedThere := encodedBy(c.prefill), c.prefill.files.fetched.Load()
	c.compareWith(req, want, <-c.start(c.ctx, req))
	o := <-c.outcomes
	size, layout := c.decode.BlockLayout().BlockSize, c.prefill.BlockLayout()
	end := (len(req.Prompt) - 1) / size * size
	if !isRemote(o) || o.Jobs != 1 || o.Start != 0 || o.End != end {
		c.t.Fatalf("%s, of %d tokens, was not remote: %+v", req.ID, len(req.Prompt), o)
	}
	if n, tokens := c.decode.progress()-progress, len(want[0].Tokens); n != uint64(tokens) {
		c.t.Errorf("%s: the decode worker computed %d batches of at most %d tokens for an answer of %d tokens", req.ID, n, size, tokens)
	}
	if n, m := encodedBy(c.decode)-encoded, c.decode.files.fetched.Load()-fetched; n+m != 0 {
		c.t.Errorf("%s: the decode worker encoded %d pictures and fetched %d", req.ID, n, m)
	}
	if n, m := encodedBy(c.prefill)-elsewhere, c.prefill.files.fetched.Load()-fetchedThere; n != pictures || m != pictures {
		c.t.Errorf("%s: the prefill worker encoded %d pictures and fetched %d, of %d", req.ID, n, m, pictures)
	}
	first, last := layout.BlockRange(o.Start, o.End)
	bytes := int64((last - first) * layout.BlockBytes)
	if o.Bytes != bytes {
		c.t.Errorf("%s: %d bytes came: %d blocks of %d bytes are expected", req.ID, o.Bytes, last-first, layout.BlockBytes)
	}
	if r := <-c.reports; r.Transport != c.transport || r.Bytes != bytes || r.Outcome != xfer.OK {
		c.t.Errorf("%s: the transfer of %d bytes: %+v", req.ID, bytes, r)
	}
	if d := <-c.done; d.computed != end || d.bytes != bytes {
		c.t.Errorf("%s: the prefill worker has computed %d of %d tokens, and written %d of %d bytes", req.ID, d.computed, end, d.bytes, bytes)
	}
	return o
}

// runLocal serves a request whose prompt the decode worker computes, with nothing of an earlier one: its blocks are
// kept apart. The counters of runRemote must show that.
func (c *combination) runLocal(req *engine.Request, want []enginetest.Choice) {
	here := *req
	here.Salt.Namespace = "local"
	c.local.Store(true)
	defer c.local.Store(false)
	progress, fetched := c.decode.progress(), c.decode.files.fetched.Load()
	c.compareWith(&here, want, <-c.start(c.ctx, &here))
	if o := <-c.outcomes; o.State != disagg.Local || o.Reason != disagg.Decided || o.Bytes != 0 {
		c.t.Errorf("%s was not local: %+v", req.ID, o)
	}
	size := c.decode.BlockLayout().BlockSize
	least := (len(req.Prompt)+size-1)/size + len(req.Objects) + len(want[0].Tokens) - 1
	if n := c.decode.progress() - progress; n < uint64(least) {
		c.t.Errorf("%s: the decode worker computed %d batches of a prompt of %d tokens, at least %d are expected", req.ID, n, len(req.Prompt), least)
	}
	if n := c.decode.files.fetched.Load() - fetched; n != uint64(len(req.Objects)) {
		c.t.Errorf("%s: the decode worker fetched %d pictures of %d", req.ID, n, len(req.Objects))
	}
	select {
	case r := <-c.reports:
		c.t.Errorf("%s: a transfer of a local prompt: %+v", req.ID, r)
	default:
	}
}
