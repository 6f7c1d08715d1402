package bulk

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// pair is a lender and a fetcher which run, as of two processes which share a request plane.
type pair struct {
	lender  *Lender
	fetcher *Fetcher
	stop    func() // ends both and waits
}

func startPair(t *testing.T, cfg FetcherConfig, sends, receives xfer.Plane) *pair {
	t.Helper()
	calls := rpc.NewMemPlane()
	cfg.Log = slog.New(slog.DiscardHandler)
	p := &pair{lender: NewLender(calls, sends, "", cfg.Log), fetcher: NewFetcher(cfg, calls, receives)}
	p.lender.startTimeout, p.fetcher.startTimeout = patience, patience
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{p.lender.Run, p.fetcher.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	p.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(p.stop)
	return p
}

// countingPlane counts transfers.
type countingPlane struct {
	xfer.Plane
	expected int
}

func (p *countingPlane) Expect(in xfer.Incoming) (*xfer.Transfer, error) {
	p.expected++
	return p.Plane.Expect(in)
}

// patience is the limit of what must happen: only a failure reaches it.
const patience = 5 * time.Minute

func newTCP(t *testing.T) *xfer.TCPPlane {
	t.Helper()
	p, err := xfer.NewTCPPlane(xfer.TCPConfig{Config: xfer.Config{Handshake: patience, Silence: patience}})
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

// content returns n bytes which are not all equal.
func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// forgetfulPlane knows no transfer.
type forgetfulPlane struct{ xfer.Plane }

func (forgetfulPlane) Open(context.Context, xfer.Descriptor) (xfer.TransferWriter, error) {
	return nil, fault.New(fault.NotFound, "it is over")
}

// TestTransferOver: a transfer which is over does not mean that nothing is lent: the bytes come with the answer.
func TestTransferOver(t *testing.T) {
	p := startPair(t, FetcherConfig{}, forgetfulPlane{}, newTCP(t))
	data := content(10)
	place, release, err := p.lender.Lend(data)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if got, err := p.fetcher.Fetch(t.Context(), place, len(data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%q %v", got, err)
	}
}

// TestFetch: what is lent comes, over the plane for bulk data or with the answer, more than once, also beyond what a
// call can carry, and not after its release.
func TestFetch(t *testing.T) {
	sends, receives := newTCP(t), newTCP(t)
	for name, c := range map[string]struct {
		sends, receives xfer.Plane
		bulk            bool
	}{
		"bulk data":           {sends, receives, true},
		"sender has no plane": {nil, newTCP(t), false},
		"neither has a plane": {nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			counts := &countingPlane{Plane: c.receives}
			var receives xfer.Plane
			if c.receives != nil {
				receives = counts
			}
			p := startPair(t, FetcherConfig{BulkOnly: c.bulk}, c.sends, receives)
			for _, size := range []int{1, engine.MaxPiece, engine.MaxPiece + 1, rpc.MaxBody + 5} {
				data := content(size)
				place, release, err := p.lender.Lend(data)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					got, err := p.fetcher.Fetch(t.Context(), place, size)
					if err != nil || !bytes.Equal(got, data) {
						t.Fatalf("%d bytes: %v", size, err)
					}
				}
				if n, lent := p.lender.Usage(); n != 1 || lent != int64(size) {
					t.Errorf("%d objects of %d bytes are lent", n, lent)
				}
				release()
				release()
				if _, err := p.fetcher.Fetch(t.Context(), place, size); fault.CodeOf(err) != fault.NotFound {
					t.Errorf("after its release: %v", err)
				}
			}
			if n, lent := p.lender.Usage(); n != 0 || lent != 0 {
				t.Errorf("%d objects of %d bytes are still lent", n, lent)
			}
			if (counts.expected > 0) != (c.receives != nil) {
				t.Errorf("%d transfers were opened", counts.expected)
			}
		})
	}
}

// TestFetchFails: what does not come is TransferFailed, which another worker may try again.
func TestFetchFails(t *testing.T) {
	const size = 100
	lend := func(p *pair) string {
		place, release, err := p.lender.Lend(content(size))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		return place
	}
	alone := startPair(t, FetcherConfig{BulkOnly: true}, nil, newTCP(t))
	ended := startPair(t, FetcherConfig{}, nil, nil)
	gone := lend(ended)
	ended.stop()
	good := startPair(t, FetcherConfig{}, newTCP(t), newTCP(t))
	place := lend(good)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		by    *pair
		ctx   context.Context
		place string
		size  int
		want  fault.Code
	}{
		"only bulk data":   {alone, t.Context(), lend(alone), size, fault.TransferFailed},
		"lender has ended": {ended, t.Context(), gone, size, fault.TransferFailed},
		"too few bytes":    {good, t.Context(), place, size - 1, fault.TransferFailed},
		"too many bytes":   {good, t.Context(), place, size + 1, fault.TransferFailed},
		"another handle":   {good, t.Context(), place[:len(place)-1] + "x", size, fault.Invalid},
		"no handle":        {good, t.Context(), strings.TrimRight(place, "0123456789abcdef"), size, fault.Invalid},
		"never lent":       {good, t.Context(), place[:len(place)-4] + "0000", size, fault.NotFound},
		"canceled":         {good, canceled, place, size, 0},
	} {
		got, err := c.by.fetcher.Fetch(c.ctx, c.place, c.size)
		if got != nil || err == nil || c.want != 0 && fault.CodeOf(err) != c.want || c.want == 0 && err != context.Canceled {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if got, err := good.fetcher.Fetch(t.Context(), place, size); err != nil || !bytes.Equal(got, content(size)) {
		t.Errorf("after failures: %v", err)
	}
	if _, _, err := ended.lender.Lend(content(1)); err == nil {
		t.Error("a lender which has ended lends")
	}
}

// TestServesOnlyFetch: a lender answers the method fetch alone, and refuses what is malformed.
func TestServesOnlyFetch(t *testing.T) {
	l := NewLender(nil, nil, "", nil)
	send := func([]byte) error { return nil }
	for method, want := range map[string]fault.Code{engine.MethodGenerate: fault.Unimplemented, engine.MethodFetch: fault.Invalid} {
		if err := l.serveFetch(t.Context(), method, []byte{4, 255}, send); fault.CodeOf(err) != want {
			t.Errorf("%s: %v", method, err)
		}
	}
	empty := engine.AppendFetchRequest(nil, &engine.FetchRequest{Attempt: 1})
	if err := l.serveFetch(t.Context(), engine.MethodFetch, empty, send); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
}

// answeringPlane answers each call with the same frames.
type answeringPlane struct {
	rpc.Plane
	frames []engine.Fetched
}

func (p *answeringPlane) Call(_ context.Context, _, _ string, _ []byte, recv func([]byte) error) error {
	for i := range p.frames {
		if err := recv(engine.AppendFetched(nil, &p.frames[i])); err != nil {
			return err
		}
	}
	return nil
}

// TestAnswersAreChecked: bytes in the answer of a call count only if they are all there, in the number which was asked
// for and with their digest.
func TestAnswersAreChecked(t *testing.T) {
	data := content(100)
	damaged := bytes.Clone(data)
	damaged[50] ^= 1
	digest := binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(data)))
	piece := func(b []byte) engine.Fetched { return engine.Fetched{Attempt: 1, Data: b} }
	last := engine.Fetched{Attempt: 1, Last: true, Total: 100, Digest: digest}
	p := startPair(t, FetcherConfig{}, nil, nil)
	for name, c := range map[string]struct {
		frames []engine.Fetched
		good   bool
	}{
		"all":            {[]engine.Fetched{piece(data[:60]), piece(data[60:]), last}, true},
		"damaged":        {[]engine.Fetched{piece(damaged), last}, false},
		"without digest": {[]engine.Fetched{piece(data), {Attempt: 1, Last: true, Total: 100}}, false},
		"without end":    {[]engine.Fetched{piece(data)}, false},
		"too few":        {[]engine.Fetched{piece(data[:99]), last}, false},
		"too many":       {[]engine.Fetched{piece(data), piece(data[:1]), last}, false},
	} {
		p.fetcher.calls = &answeringPlane{frames: c.frames}
		got, err := p.fetcher.Fetch(t.Context(), "there#00", len(data))
		if c.good != (err == nil && bytes.Equal(got, data)) || !c.good && (got != nil || fault.CodeOf(err) != fault.TransferFailed) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// TestDigestOfAnswer: an answer has a digest only if the bytes came in it: a transfer has its own.
func TestDigestOfAnswer(t *testing.T) {
	p := startPair(t, FetcherConfig{}, newTCP(t), newTCP(t))
	data := content(100)
	place, release, err := p.lender.Lend(data)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := p.fetcher.Fetch(t.Context(), place, len(data)); err != nil { // now it listens
		t.Fatal(err)
	}
	transfer, err := p.fetcher.bulk.Expect(xfer.Incoming{Into: [][]byte{make([]byte, len(data))}})
	if err != nil {
		t.Fatal(err)
	}
	into, err := transfer.Descriptor().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, h, _ := splitPlace(place)
	for _, into := range [][]byte{into, nil} {
		last, err := p.fetcher.call(t.Context(), addr, &engine.FetchRequest{Handle: h, Into: into}, nil)
		if err != nil || last.Total != 100 || (len(last.Digest) > 0) != (into == nil) {
			t.Errorf("into %x: %+v, %v", into, last, err)
		}
	}
}

// FuzzPlace: any text is a place or none, and a handle is within its bounds.
func FuzzPlace(f *testing.F) {
	f.Add("tcp://127.0.0.1:7000#00112233445566778899aabbccddeeff")
	f.Add("#")
	f.Fuzz(func(t *testing.T, place string) {
		addr, h, ok := splitPlace(place)
		if ok && (len(h) == 0 || len(h) > engine.MaxHandle || !strings.HasPrefix(place, addr+placeMark)) {
			t.Fatalf("%q is %q and %x", place, addr, h)
		}
	})
}

// TestHandles: lent bytes are fetched by a handle in any way, also where media come as bulk data alone, and are freed
// once, after their release and after the last fetch.
func TestHandles(t *testing.T) {
	calls, sends, receives := rpc.NewMemPlane(), newTCP(t), newTCP(t)
	for name, planes := range map[string][2]xfer.Plane{"bulk data": {sends, receives}, "in the answer": {nil, nil}} {
		t.Run(name, func(t *testing.T) {
			h := NewHandles(planes[0])
			ctx, stop := context.WithCancel(context.Background())
			var running sync.WaitGroup
			defer running.Wait()
			defer stop()
			held, proceed := make(chan struct{}), make(chan struct{})
			at := make(chan string, 1)
			running.Go(func() {
				err := calls.Serve(ctx, "", func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
					return h.ServeFetch(ctx, body, func(frame []byte) error {
						if method == "held" {
							held <- struct{}{}
							<-proceed
						}
						return send(frame)
					})
				}, func(addr string) { at <- addr })
				if err != nil {
					t.Error(err)
				}
			})
			f := NewFetcher(FetcherConfig{BulkOnly: true, Log: slog.New(slog.DiscardHandler)}, calls, planes[1])
			running.Go(func() { _ = f.Run(ctx) }) // it says nothing but that ctx has ended
			addr := <-at

			data, freed := content(3*engine.MaxPiece), make(chan struct{})
			name, fetched, release := h.LendHandle(data, func() { close(freed) }) // twice would panic
			for range 2 {
				into := make([]byte, len(data))
				digest, err := f.FetchInto(t.Context(), addr, name, into)
				if err != nil || !bytes.Equal(into, data) || !bytes.Equal(digest, appendDigest(nil, xfer.DigestOf(data))) {
					t.Fatalf("%x, %v", digest, err)
				}
				<-fetched
			}
			ended := make(chan error, 1)
			go func() {
				ended <- calls.Call(t.Context(), addr, "held", engine.AppendFetchRequest(nil, &engine.FetchRequest{Attempt: 1, Handle: name}), func([]byte) error { return nil })
			}()
			<-held
			release()
			release()
			select {
			case <-freed:
				t.Error("freed while they are fetched")
			default:
			}
			go func() {
				for range held { // the other frames
				}
			}()
			close(proceed)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			<-freed
			close(held)
			if n, lent := h.Usage(); n != 0 || lent != 0 {
				t.Errorf("%d objects of %d bytes are lent", n, lent)
			}
			if _, err := f.FetchInto(t.Context(), addr, name, make([]byte, len(data))); fault.CodeOf(err) != fault.NotFound {
				t.Errorf("after their release: %v", err)
			}
		})
	}
}
