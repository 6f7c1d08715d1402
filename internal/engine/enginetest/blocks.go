package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// Moved says which tokens of a request were moved from one engine to another: those from Held to End.
type Moved struct {
	Held, End int
	Cached    int // tokens which the cache of the first engine had
	Bytes     int
}

// reservations is a watcher which keeps what it is told.
type reservations struct {
	held chan int
}

func (r *reservations) BlocksReserved(held int) { r.held <- held }
func (r *reservations) BlocksReclaimed()        {}

// GenerateApart serves a request at decode, for which prefill computes the prompt. The bytes go through a buffer.
func GenerateApart(ctx context.Context, prefill engine.BlockProvider, decode engine.BlockReceiver, req *engine.Request) ([]Choice, Moved, error) {
	var m Moved
	w := &reservations{held: make(chan int, 8)}
	imp, err := decode.OpenImport(req, w)
	if err != nil {
		return nil, m, err
	}
	rec := NewRecorder(req)
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- imp.Generate(ctx, rec.Sink)
	}()
	err = importBlocks(ctx, prefill, decode, req, imp, w, &m)
	if err != nil {
		stop()
	}
	if failed := <-ended; failed != nil || err != nil {
		return nil, m, errors.Join(err, failed)
	}
	return rec.Choices, m, rec.Complete()
}

// importBlocks moves what the request of imp needs.
func importBlocks(ctx context.Context, prefill engine.BlockProvider, decode engine.BlockReceiver, req *engine.Request, imp engine.BlockImport, w *reservations, m *Moved) error {
	select {
	case m.Held = <-w.held:
	case <-ctx.Done():
		select {
		case m.Held = <-w.held: // of a request which needed no import, and has ended
		default:
			return ctx.Err()
		}
	}
	layout := decode.BlockLayout()
	m.End = (firstOpenLength(req) - 1) / layout.BlockSize * layout.BlockSize
	if m.Held >= m.End {
		imp.PrefillLocal()
		return nil
	}
	data := engine.BlockData{Layout: prefill.BlockLayout()}
	err := prefill.PrefillBlocks(ctx, req, func(h engine.HeldBlocks) error {
		first, last := data.Layout.BlockRange(m.Held, m.End)
		data.First, data.Bytes, m.Cached = first, make([]byte, (last-first)*data.Layout.BlockBytes), h.Cached()
		return h.ReadBlocks(ctx, data.Bytes, first, last)
	})
	if err != nil {
		return err
	}
	m.Bytes = len(data.Bytes)
	return imp.ImportBlocks(ctx, &data, m.Cached)
}

// firstOpenLength is the length of a request's first open choice in tokens.
func firstOpenLength(req *engine.Request) int {
	n := len(req.Prompt)
	if req.Generated != nil {
		n += len(req.Generated[max(0, slices.Index(req.Done, false))])
	}
	return n
}

// testBlocks: a prompt which one engine computes and another one continues gives the tokens of one engine alone, and is
// in the second engine's cache as if that one had computed it. What is not imported is computed.
func (s *suite) testBlocks(t *testing.T) {
	first, ctx := s.startEngine(t)
	prefill, gives := first.(engine.BlockProvider)
	if !gives || prefill.BlockLayout() == (engine.KVLayout{}) {
		t.Skip("the engine moves no blocks")
	}
	second, _ := s.startEngine(t)
	decode := second.(engine.BlockReceiver)
	layout := decode.BlockLayout()
	size := layout.BlockSize
	alone, _ := s.startEngine(t)
	if card := first.Card(); size != card.BlockSize || layout.Numerics != card.BlockNumerics() || layout.Order == "" || layout.BlockBytes%size != 0 {
		t.Errorf("the layout is %+v, the card says %d tokens and numerics %q", layout, card.BlockSize, card.BlockNumerics())
	}
	for i, n := range []int{1, size, size + 1, 3 * size, 3*size + 2, 90} {
		req := s.newRequest(uint64(500+i), n, 6)
		req.Sampling = engine.Sampling{Temperature: float64(i % 2), Seed: uint64(i)}
		want := MustGenerate(t, ctx, alone, req)
		got, m, err := GenerateApart(ctx, prefill, decode, req)
		if err != nil {
			t.Fatalf("%d tokens: %v", n, err)
		}
		if diff := cmp.Diff(tokensOf(want), tokensOf(got)); diff != "" {
			t.Errorf("%d tokens: not the answer of one engine (-want +got):\n%s", n, diff)
		}
		if end := (n - 1) / size * size; m.Held != 0 || m.End != end || m.Bytes != end/size*layout.BlockBytes {
			t.Errorf("%d tokens: %+v was moved", n, m)
		}
		if cached, err := decode.CountCached(ctx, req); cached != m.End || err != nil {
			t.Errorf("%d tokens: %d are cached, want %d: %v", n, cached, m.End, err)
		}
		resumed := s.newRequest(uint64(500+i), n, 12)
		resumed.Sampling, resumed.Attempt, resumed.Generated = req.Sampling, 2, [][]kv.Token{got[0].Tokens}
		again, m, err := GenerateApart(ctx, prefill, decode, resumed)
		if err != nil || len(again[0].Tokens) != 6 {
			t.Errorf("%d tokens, resumed: %v, %+v", n, err, m)
		}
	}
	s.testImportEnds(t, ctx, decode)
	requireIdle(t, first, "after all")
	requireIdle(t, second, "after all")
}

// testImportEnds: without blocks a prompt is computed, and the end of a request frees what is reserved for it.
func (s *suite) testImportEnds(t *testing.T, ctx context.Context, e engine.BlockReceiver) {
	w := &reservations{held: make(chan int, 8)}
	for i, local := range []bool{true, false} {
		req := s.newRequest(uint64(600+i), 50, 4)
		imp, err := e.OpenImport(req, w)
		if err != nil {
			t.Fatal(err)
		}
		short, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		rec := NewRecorder(req)
		go func() { ended <- imp.Generate(short, rec.Sink) }()
		<-w.held
		if local {
			imp.PrefillLocal()
		} else {
			stop()
		}
		if err := <-ended; (err == nil) != local {
			t.Errorf("local %v: %v", local, err)
		}
		stop()
		if err := imp.ImportBlocks(ctx, &engine.BlockData{Layout: e.BlockLayout()}, 0); fault.CodeOf(err) != fault.Conflict {
			t.Errorf("after the end: %v", err)
		}
	}
}

// tokensOf is what the choices of an answer say.
func tokensOf(choices []Choice) (all []string) {
	for _, c := range choices {
		all = append(all, fmt.Sprint(c.Tokens, c.Finish))
	}
	return all
}
