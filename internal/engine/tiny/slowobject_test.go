package tiny

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// slowFiles has files, one of which comes when release is closed.
type slowFiles struct {
	files
	slow    string
	release chan struct{}
}

func (f *slowFiles) FetchFile(ctx context.Context, url string) ([]byte, func(), error) {
	if url == f.slow {
		<-f.release
	}
	return f.files.FetchFile(ctx, url)
}

// slowElsewhere encodes nothing, and says so about one object when release is closed.
type slowElsewhere struct {
	slow    kv.Digest
	release chan struct{}
}

func (*slowElsewhere) HasEncoders() bool { return true }

func (*slowElsewhere) HasHolder(*embcache.RowKey) bool { return false }

func (e *slowElsewhere) EncodeObject(_ context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	if job.Key.Digest == e.slow {
		<-e.release
	}
	return grid, fault.New(fault.Unavailable, "nothing is encoded here")
}

// TestSlowObjectHoldsUpNoOther: objects of one batch are encoded, and their requests answered, while one of them is not
// found, or is not encoded. That one is answered later.
func TestSlowObjectHoldsUpNoOther(t *testing.T) {
	for _, name := range []string{"its file", "another worker", "a run of another request", "an encoder of its shape"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { holdUpNone(t, name) })
		})
	}
}

func holdUpNone(t *testing.T, waitsFor string) {
	const slow, requests = 1, 4 // the first request is answered before the batch begins
	release := make(chan struct{})
	var all []media.Object
	from := &slowFiles{files: files{by: map[string][]byte{}}, release: release}
	for seed := range 1 + uint64(requests) {
		o := noise(media.Image, seed, 56, 84, 3)
		if waitsFor == "an encoder of its shape" && seed == slow {
			o = noise(media.Image, seed, 84, 56, 3) // as many tokens
		}
		all = append(all, o)
	}
	remote := &slowElsewhere{all[slow].Key.Digest, release}
	e := seeing(t, func(c *Config) {
		c.Encode.Threads, c.Files, c.EmbeddingCache = 1, from, new(0)
		switch waitsFor {
		case "another worker":
			c.Remote = remote
		case "a run of another request":
			c.Encode.BatchWait = 24 * time.Hour // a run which was joined is not waited for, however long a batch waits
		}
	})
	s := e.cpu.encoders
	open, entered := heldEncoder(s)
	fetched := func(req *engine.Request, known bool) {
		o := &req.Objects[0]
		o.Source = "http://x/" + o.Part
		from.by[o.Source] = encodePNG(t, o)
		if known {
			o.Size = sizeOf(o, &o.Tensor)
		}
		o.Tensor = media.Tensor{}
	}
	leave := func() {}
	switch waitsFor {
	case "a run of another request":
		run, _, _ := s.runs.join(t.Context(), runKey{s.rows.keyOf(&all[slow], ""), 6}, true)
		leave = func() {
			run.finish(storedRows{}, errors.New("it fails"))
			run.leave()
		}
	case "an encoder of its shape":
		s.pool.cores = make(chan struct{}, 2)
		inner := s.encode
		s.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			if grid == [3]int{1, 6, 4} {
				<-release
			}
			return inner(ctx, kind, input, grid)
		}
	}
	ctx := enginetest.Start(t, e)
	var results []chan outcome
	for i := range all {
		req := within(80, greedy(i, 30, 4))
		show(t, req, 20, all[i])
		switch {
		case waitsFor == "its file" && i == slow:
			fetched(req, true)
			from.slow = req.Objects[0].Source
		case waitsFor == "an encoder of its shape" && i > 0:
			fetched(req, false)
		}
		result, _ := ask(ctx, e, req)
		if results = append(results, result); i == 0 {
			<-entered
		}
		synctest.Wait()
	}
	close(open)
	for i, result := range results {
		if i == slow {
			continue
		}
		if got := <-result; got.err != nil {
			t.Errorf("request %d waits for the slow one: %v", i, got.err)
		}
	}
	synctest.Wait()
	st := e.EncodeStats()
	if len(results[slow]) > 0 || st.Runs != 2 || st.Encoded != requests || st.RunningObjects != 1 || st.CPUBytes != oneStaged {
		t.Errorf("while the slow one waits (it is answered: %t): %+v", len(results[slow]) > 0, st.Stats)
	}
	close(release)
	leave()
	if got := <-results[slow]; got.err != nil {
		t.Errorf("the slow one: %v", got.err)
	}
	if st := e.EncodeStats(); st.Encoded != 1+requests || st.Repeats != 0 {
		t.Errorf("at the end: %+v", st.Stats)
	}
}

// elsewhereOne encodes one object, and no other.
type elsewhereOne struct {
	*elsewhere
	only kv.Digest
}

func (e *elsewhereOne) EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	if job.Key.Digest != e.only {
		return grid, fault.New(fault.Unavailable, "it is not encoded here")
	}
	return e.elsewhere.EncodeObject(ctx, job)
}

// TestFoundWaitsForNoEncoder: an object whose rows come from another worker is answered while the others of its batch
// are being encoded.
func TestFoundWaitsForNoEncoder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const found, requests = 2, 4
		remote := &elsewhereOne{&elsewhere{of: encoding(t, nil)}, noise(media.Image, found, 56, 84, 3).Key.Digest}
		e := seeing(t, func(c *Config) { c.Encode.Threads, c.Remote, c.EmbeddingCache = 1, remote, new(0) })
		open, entered := heldEncoder(e.cpu.encoders)
		release, inner := make(chan struct{}), e.cpu.encoders.encode
		e.cpu.encoders.encode = func(ctx context.Context, kind media.Kind, input []float32, grid [3]int) ([]float32, error) {
			if grid[0] > 1 {
				<-release
			}
			return inner(ctx, kind, input, grid)
		}
		ctx := enginetest.Start(t, e)
		var results []chan outcome
		for i := range 1 + requests {
			result, _ := ask(ctx, e, picture(t, i, 4))
			if results = append(results, result); i == 0 {
				<-entered
			}
			synctest.Wait()
		}
		close(open)
		for _, i := range []int{0, found} {
			if got := <-results[i]; got.err != nil {
				t.Errorf("request %d waits for an encoder: %v", i, got.err)
			}
		}
		synctest.Wait()
		if s := e.EncodeStats(); s.Runs != 2 || s.Encoded != 2 || s.RunningObjects != requests-1 || len(results[1]) > 0 {
			t.Errorf("while the others are encoded: %+v", s.Stats)
		}
		close(release)
		for _, i := range []int{1, 3, 4} {
			if got := <-results[i]; got.err != nil {
				t.Errorf("request %d: %v", i, got.err)
			}
		}
	})
}
