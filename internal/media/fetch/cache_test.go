package fetch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/media"
)

// clock is a clock that tests set.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// TestGet: a file is had once, and again when it is too old.
func TestGet(t *testing.T) {
	file := picture(t, 100, 100)
	url, heard := serve(t, content(file))
	c := &clock{}
	f := fetcher(t, func(cfg *Config) { cfg.Now = c.now })
	get := func() {
		t.Helper()
		b, err := f.Get(t.Context(), url)
		if err != nil || !bytes.Equal(b.Bytes, file) {
			t.Fatal(err)
		}
		b.Release()
		b.Release()
	}
	get()
	get()
	if info, err := f.Size(t.Context(), url); err != nil || info.Size != (media.Size{Width: 100, Height: 100}) {
		t.Errorf("%+v %v", info, err)
	}
	if n := len(heard.all()); n != 1 {
		t.Errorf("%d requests", n)
	}
	c.advance(5*time.Minute + 1)
	get()
	if n := len(heard.all()); n != 2 {
		t.Errorf("%d requests", n)
	}
	if n := f.Memory(); n < int64(len(file)) || n > int64(2*len(file)) {
		t.Errorf("%d bytes are taken", n)
	}
}

// TestSize: the header alone is read, once.
func TestSize(t *testing.T) {
	head := picture(t, 300, 200)
	segment := append([]byte{0xFF, 0xE2, 0xFF, 0xFF}, make([]byte, 65533)...)
	frame := []byte{0xFF, 0xC9, 0, 11, 12, 0, 200, 1, 44, 1, 1, 0x11, 0, 0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0}
	far := bytes.Join([][]byte{{0xFF, 0xD8}, segment, segment, frame, make([]byte, 1<<20)}, nil)
	for name, file := range map[string][]byte{"png": head, "jpeg": far} {
		var sent atomic.Int64
		url, heard := serve(t, func(w http.ResponseWriter, r *http.Request) {
			content(file)(counted{w, &sent}, r)
		})
		c := &clock{}
		f := fetcher(t, func(cfg *Config) { cfg.Now = c.now })
		for range 3 {
			info, err := f.Size(t.Context(), url)
			if err != nil || info.Size != (media.Size{Width: 300, Height: 200}) || !info.Oriented {
				t.Errorf("%s: %+v %v", name, info, err)
			}
		}
		if n := len(heard.all()); n > 4 || sent.Load() > 4*4096 {
			t.Errorf("%s: %d requests, %d bytes", name, n, sent.Load())
		}
		before := len(heard.all())
		c.advance(24*time.Hour + 1)
		if _, err := f.Size(t.Context(), url); err != nil || len(heard.all()) == before {
			t.Errorf("%s: it is remembered for ever", name)
		}
	}
}

// counted counts the bytes of answers.
type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

// TestSizeEitherWay asks for no more than the size, and leaves the rest to Size.
func TestSizeEitherWay(t *testing.T) {
	url, heard := serve(t, content(picture(t, 300, 200)))
	f := fetcher(t, nil)
	for range 2 {
		info, err := f.SizeEitherWay(t.Context(), url)
		if err != nil || info.Size != (media.Size{Width: 300, Height: 200}) || info.Oriented || len(heard.all()) != 1 {
			t.Errorf("%+v %v, %d requests", info, err, len(heard.all()))
		}
	}
	for range 2 {
		if info, err := f.Size(t.Context(), url); err != nil || !info.Oriented {
			t.Errorf("%+v %v", info, err)
		}
	}
	before := len(heard.all())
	if info, err := f.SizeEitherWay(t.Context(), url); err != nil || !info.Oriented || len(heard.all()) != before {
		t.Errorf("%+v %v", info, err)
	}
}

// TestFailuresAreRemembered, for a minute.
func TestFailuresAreRemembered(t *testing.T) {
	url, heard := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusNotFound) })
	c := &clock{}
	f := fetcher(t, func(cfg *Config) { cfg.Now = c.now })
	for range 5 {
		_, err := f.Size(t.Context(), url)
		refused(t, "size", err, fault.Invalid, "status 404")
	}
	if n := len(heard.all()); n != 1 {
		t.Errorf("%d requests", n)
	}
	c.advance(failureTTL + 1)
	_, _ = f.Size(t.Context(), url)
	if n := len(heard.all()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// TestOneFlight: concurrent requests for a file share one download; some of them are canceled,
// which does not affect the others.
func TestOneFlight(t *testing.T) {
	file := picture(t, 50, 50)
	begun, go_ := make(chan struct{}), make(chan struct{})
	var first sync.Once
	url, heard := serve(t, func(w http.ResponseWriter, r *http.Request) {
		first.Do(func() { close(begun) })
		<-go_
		content(file)(w, r)
	})
	f := fetcher(t, nil)
	impatient, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 20 {
		ctx := t.Context()
		if i%4 == 0 {
			ctx = impatient
		}
		wg.Go(func() {
			b, err := f.Get(ctx, url)
			if ctx == impatient {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the caller which left got %v", err)
				}
				return
			}
			if err != nil || !bytes.Equal(b.Bytes, file) {
				t.Error(err)
				return
			}
			b.Release()
		})
	}
	<-begun
	for joined := 0; joined < 20; { // all of them wait for the one
		f.downloads.mu.Lock()
		joined = 0
		for _, c := range f.downloads.mu.calls {
			joined += c.waiters
		}
		f.downloads.mu.Unlock()
	}
	leave()
	for waiting := 20; waiting != 15; {
		f.downloads.mu.Lock()
		waiting = f.downloads.mu.calls[urlKeyOf(url)].waiters
		f.downloads.mu.Unlock()
	}
	close(go_)
	wg.Wait()
	if n := len(heard.all()); n != 1 {
		t.Errorf("%d requests", n)
	}
	if e := f.store.mu.entries[urlKeyOf(url)]; e.pins != 0 {
		t.Errorf("%d pins are left", e.pins)
	}
}

// TestLastLeaves: a download without waiters is canceled.
func TestLastLeaves(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(gone)
	})
	f := fetcher(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := f.Get(ctx, url)
		done <- err
	}()
	<-begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-gone
}

// TestClose aborts requests in progress, with an error for the waiters.
func TestClose(t *testing.T) {
	begun := make(chan struct{})
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})
	f := fetcher(t, nil)
	done := make(chan error)
	go func() {
		_, err := f.Get(t.Context(), url)
		done <- err
	}()
	<-begun
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	refused(t, "a download under way", <-done, fault.Unavailable, "about to stop")
	_, err := f.Get(t.Context(), url)
	refused(t, "a download afterwards", err, fault.Unavailable, "about to stop")
}

// TestFlights: a result without remaining waiters is dropped, once.
func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped atomic.Int64
		f := newFlightGroup(2, time.Minute, func(int) { dropped.Add(1) })
		slow := func(ctx context.Context) (int, error) {
			time.Sleep(time.Second) // virtual time (synctest): a download that ignores its context
			return 7, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := f.runShared(ctx, urlKey{1}, account{}, slow, func(int) { t.Error("taken") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		got := 0
		if err := f.runShared(t.Context(), urlKey{1}, account{}, slow, func(n int) { got = n }); err != nil || got != 7 {
			t.Errorf("%d %v", got, err)
		}
		synctest.Wait()
		if dropped.Load() != 2 || len(f.mu.calls) != 0 || len(f.mu.cancel) != 0 {
			t.Errorf("dropped %d times, %d calls are left", dropped.Load(), len(f.mu.calls))
		}
		for i := range byte(2) {
			go func() { _ = f.runShared(t.Context(), urlKey{i}, account{}, slow, func(int) {}) }()
		}
		synctest.Wait()
		err := f.runShared(t.Context(), urlKey{9}, account{}, slow, func(int) {})
		refused(t, "one more", err, fault.Overloaded, "too many files")
		f.closeAll()
	})
}

// TestStore holds the account of memory against a naive one, over random steps.
func TestStore(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := &clock{}
		s := newFileStore(1000, 1000, 100, c.now)
		var pinned []*cachedFile
		var claims []*downloadClaim
		for range 300 {
			switch r.IntN(6) {
			case 0, 1:
				if len(claims) == 0 || r.IntN(2) == 0 {
					claims = append(claims, s.startDownload(account{}, 1+r.Int64N(500)))
				}
				c := claims[r.IntN(len(claims))]
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // does not wait
				_ = s.reserveMemory(ctx, c, r.Int64N(c.most-c.held+1))
			case 2:
				if len(claims) == 0 {
					break
				}
				i := r.IntN(len(claims))
				c := claims[i]
				claims = append(claims[:i], claims[i+1:]...)
				if r.IntN(4) == 0 {
					s.abortDownload(c)
					break
				}
				var k urlKey
				binary.LittleEndian.PutUint64(k[:], r.Uint64N(6)) // 0 is not kept
				pinned = append(pinned, s.putFile(k, make([]byte, r.Int64N(c.held+1)), c))
			case 3:
				if len(pinned) > 0 {
					i := r.IntN(len(pinned))
					s.unpinFile(pinned[i])
					pinned = append(pinned[:i], pinned[i+1:]...)
				}
			case 4:
				if e, ok := s.getPinned(urlKey{byte(r.IntN(6))}); ok {
					pinned = append(pinned, e)
				}
			case 5:
				c.advance(time.Duration(r.IntN(40)))
			}
			in := map[*cachedFile]bool{}
			for _, e := range pinned {
				in[e] = true
			}
			for _, e := range s.mu.entries {
				in[e] = true
			}
			want := int64(0)
			for _, c := range claims {
				want += c.held
			}
			for e := range in {
				want += e.memory
			}
			if s.usedBytes() != want || want > s.limit {
				t.Fatalf("seed %d: %d bytes are taken, want %d", seed, s.usedBytes(), want)
			}
		}
	}
}

// TestWaiting: downloads wait for memory in their order, and what is only kept makes room.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFileStore(100, 100, time.Hour, time.Now)
		first := s.startDownload(account{}, 60)
		if err := s.reserveMemory(t.Context(), first, 60); err != nil {
			t.Fatal(err)
		}
		a := s.putFile(urlKey{1}, make([]byte, 60), first)
		claims := []*downloadClaim{s.startDownload(account{}, 90), s.startDownload(account{}, 10), s.startDownload(account{}, 100)}
		var order []int64
		var mu sync.Mutex
		for i, c := range claims {
			go func() {
				if s.reserveMemory(t.Context(), c, c.most) != nil {
					return
				}
				mu.Lock()
				order = append(order, int64(i))
				mu.Unlock()
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.reserveMemory(ctx, s.startDownload(account{}, 1), 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the last download is given memory first: %v", err)
		}
		if len(order) != 0 {
			t.Errorf("a file in use made room for %v", order)
		}
		s.unpinFile(a)
		synctest.Wait()
		slices.Sort(order) // both were given memory at once
		if fmt.Sprint(order) != "[0 1]" || s.usedBytes() != 100 {
			t.Errorf("%v have memory, %d bytes are taken", order, s.usedBytes())
		}
		s.abortDownload(claims[0])
		s.abortDownload(claims[1])
		synctest.Wait()
		if fmt.Sprint(order) != "[0 1 2]" || s.usedBytes() != 100 {
			t.Errorf("%v have memory, %d bytes are taken", order, s.usedBytes())
		}
	})
}

// waiting waits until n downloads wait for memory.
func waiting(s *fileStore, n int) {
	for {
		s.mu.Lock()
		got := s.mu.waiting.Len()
		s.mu.Unlock()
		if got == n {
			return
		}
		runtime.Gosched()
	}
}

// TestPinned: a file in use is not evicted, and its memory is not reused: a download which needs it
// waits.
func TestPinned(t *testing.T) {
	file := picture(t, 180, 180) // some 130 KB
	url, _ := serve(t, content(file))
	f := fetcher(t, func(c *Config) { c.MaxBytes, c.CacheBytes, c.Timeout = 200<<10, 400<<10, time.Minute })
	get := func(url string) *Blob {
		b, err := f.Get(t.Context(), url)
		if err != nil {
			t.Error(err)
			b = &Blob{}
			b.released.Store(true) // there is nothing to release
		}
		return b
	}
	a, b := get(url+"/a"), get(url+"/b")
	blobs := make(chan *Blob)
	go func() { blobs <- get(url + "/c") }()
	waiting(f.store, 1)
	go func() { blobs <- get(url + "/d") }()
	waiting(f.store, 2)

	hasty, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	refused(t, "a hasty one", f.reserveMemory(hasty, f.store.startDownload(account{}, 1), 1), fault.Overloaded, "no memory")
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := f.Get(gone, url+"/e"); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller which left got %v", err)
	}

	b.Release()
	c := <-blobs
	if !bytes.Equal(a.Bytes, file) || f.Memory() > 400<<10 {
		t.Error("a file in use changed")
	}
	a.Release()
	c.Release()
	(<-blobs).Release()
}

// TestSizesBounded: the newest entries are kept.
func TestSizesBounded(t *testing.T) {
	s := newSizeCache(3, time.Hour, time.Now)
	for i := range byte(5) {
		s.getSize(urlKey{0}) // used all the time
		s.putSize(urlKey{i}, sizeEntry{info: probeInfo(int(i))})
	}
	for i, want := range []bool{true, false, false, true, true} {
		if e, ok := s.getSize(urlKey{byte(i)}); ok != want || ok && e.info.Size.Width != i {
			t.Errorf("entry %d is there: %v", i, ok)
		}
	}
	if n := s.mu.entries.Len(); n != 3 {
		t.Errorf("%d entries", n)
	}
}
