package fetch

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// stalled serves the first bytes of files whose length it does not say, and then nothing until the test ends.
func stalled(t *testing.T) (url string, begun chan struct{}) {
	t.Helper()
	begun = make(chan struct{}, 1000)
	end := make(chan struct{})
	url, _ = serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("\xff\xd8\xff\xe0"))
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(end) })
	return url, begun
}

// TestStalledDownloads: downloads that began and do not go on take what came of them, so that other
// files are fetched beside any number of them.
func TestStalledDownloads(t *testing.T) {
	file := picture(t, 100, 100)
	good, _ := serve(t, content(file))
	url, begun := stalled(t)
	f := fetcher(t, nil)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer f.Close() //nolint:errcheck // it has none
	for i := range 8 {
		clients.Go(func() {
			if _, err := f.Get(t.Context(), url+"/"+string(rune('a'+i))); err == nil {
				t.Error("a file that does not end was had")
			}
		})
	}
	for range 8 {
		<-begun
	}
	for f.Memory() == 0 {
		runtime.Gosched()
	}
	b, err := f.Get(t.Context(), good)
	if err != nil || !bytes.Equal(b.Bytes, file) {
		t.Fatalf("beside stalled downloads: %v", err)
	}
	b.Release()
	if n := f.Memory(); n > 2<<20 {
		t.Errorf("%d bytes are taken by 8 downloads of which 4 bytes each came", n)
	}
}

// TestTooSlow: a body must come at the least rate, over each window.
func TestTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := func(conn net.Conn, _ *http.Request) {
			_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
			_, _ = conn.Write(make([]byte, 100<<10)) // what came before does not count
			drip(conn)
		}
		slow := piped(t, func(c *Config) { c.IdleTimeout = 3 * time.Second }, body)
		_, err := slow.Get(t.Context(), "http://127.0.0.1/")
		refused(t, "a body that drips", err, fault.Invalid, "too slowly")
		if n := slow.Memory(); n != 0 {
			t.Errorf("%d bytes are taken", n)
		}
		lenient := piped(t, func(c *Config) { c.IdleTimeout, c.MinRate, c.Timeout = 3*time.Second, new(int64(0)), 10*time.Second }, body)
		_, err = lenient.Get(t.Context(), "http://127.0.0.1/")
		refused(t, "a body that may drip", err, fault.Invalid, "within the time")
	})
}

// TestPace: which bodies are too slow.
func TestPace(t *testing.T) {
	begin := time.Unix(0, 0)
	for _, tc := range []struct {
		least int64
		every time.Duration
		n     int
		want  bool
	}{
		{100, time.Second, 100, false}, {100, time.Second, 99, true}, {100, 10 * time.Second, 1000, false}, {100, 10 * time.Second, 999, true}, {-1, 10 * time.Second, 1, false},
	} {
		p := rateMeter{minRate: tc.least, window: 3 * time.Second, windowStart: begin}
		slow := false
		for now := begin.Add(tc.every); now.Before(begin.Add(time.Minute)); now = now.Add(tc.every) {
			slow = slow || p.isTooSlow(now, tc.n)
		}
		if slow != tc.want {
			t.Errorf("%d bytes every %v, least %d/s: slow is %v", tc.n, tc.every, tc.least, slow)
		}
	}
}

// TestShares: neither a host nor a client has more than its share of what is fetched at a time.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFlightGroup(8, time.Minute, func(int) {})
		wait := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
		begin := func(i byte, o account) error {
			_, err := f.joinFlight(t.Context(), urlKey{i}, o, wait)
			return err
		}
		for i := range byte(4) {
			if err := begin(i, account{client: "a", host: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, "one more of the client", begin(9, account{client: "a", host: "z"}), fault.Overloaded, "for this API key")
		for i := range byte(3) {
			if err := begin(10+i, account{host: "h"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := begin(20, account{client: "b", host: "h"}); err != nil {
			t.Fatal(err)
		}
		refused(t, "one more at all", begin(21, account{client: "b", host: "i"}), fault.Overloaded, "being fetched:")
		f.closeAll()
		if len(f.mu.hosts)+len(f.mu.clients) != 0 {
			t.Errorf("what has ended counts: %v %v", f.mu.hosts, f.mu.clients)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFlightGroup(8, time.Minute, func(int) {})
		for i := range byte(4) {
			go f.runShared(t.Context(), urlKey{i}, account{host: "h"}, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }, func(int) {}) //nolint:errcheck // it ends with f
		}
		synctest.Wait()
		refused(t, "one more of the host", f.runShared(t.Context(), urlKey{9}, account{host: "h"}, nil, nil), fault.Overloaded, "from its host")
		f.closeAll()
	})
}

// finishable is the naive twin of budget.safe: it tries every order.
func finishable(b *downloadBudget, left []*downloadClaim, held int64, clients, hosts map[string]int64) bool {
	if len(left) == 0 {
		return true
	}
	for i, c := range left {
		need := c.most - c.held
		if held+need > b.limit || c.owner.client != "" && clients[c.owner.client]+need > b.share || c.owner.host != "" && hosts[c.owner.host]+need > b.share {
			continue
		}
		clients[c.owner.client] -= c.held
		hosts[c.owner.host] -= c.held
		rest := append(append([]*downloadClaim{}, left[:i]...), left[i+1:]...)
		ok := finishable(b, rest, held-c.held, clients, hosts)
		clients[c.owner.client] += c.held
		hosts[c.owner.host] += c.held
		if ok {
			return true
		}
	}
	return false
}

// TestBudget holds what is granted against every order in which downloads could finish.
func TestBudget(t *testing.T) {
	verdicts := map[bool]int{}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		b := &downloadBudget{limit: 100, share: 60}
		for range 1 + r.IntN(5) {
			c := &downloadClaim{owner: account{client: []string{"", "a", "b"}[r.IntN(3)], host: []string{"g", "h"}[r.IntN(2)]}, most: 1 + r.Int64N(60)}
			b.addClaim(c)
			b.resize(c, r.Int64N(c.most+1))
		}
		c := b.claims[r.IntN(len(b.claims))]
		n := r.Int64N(c.most - c.held + 1)
		got := b.isSafe(c, n, limitAndShares)
		b.resize(c, n)
		clients, hosts := map[string]int64{}, map[string]int64{}
		for _, c := range b.claims {
			clients[c.owner.client] += c.held
			hosts[c.owner.host] += c.held
		}
		if want := finishable(b, b.claims, b.held, clients, hosts); got != want {
			t.Fatalf("seed %d: safe is %v, want %v", seed, got, want)
		}
		verdicts[got]++
	}
	if verdicts[true] < 100 || verdicts[false] < 100 {
		t.Errorf("the cases are one-sided: %v", verdicts)
	}
}

// nextRoom is nextCapacity for bodies that begin with a byte.
func nextRoom(limit, had int64) int64 {
	room := limit
	for half := (room + 1) / 2; half > had && half < room; half = (room + 1) / 2 {
		room = half
	}
	return room
}

// TestProgress: any number of downloads of any lengths, from few hosts and for few clients, are all complete
// in the end, within the bounds, however much they need together. None waits for ever.
func TestProgress(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			const most = 100
			s := newFileStore(2*most, shareOf(2*most, downloadMemory(most)), time.Hour, time.Now)
			var all sync.WaitGroup
			for i := range 40 {
				b := &limitedBody{limit: 1 + r.Int64N(most)}
				o := account{client: []string{"", "a", "b"}[r.IntN(3)], host: fmt.Sprint(r.IntN(3))}
				pause := time.Duration(r.IntN(100)) * time.Millisecond
				all.Go(func() {
					time.Sleep(pause) // in virtual time
					c := s.startDownload(o, downloadMemory(b.limit))
					had := int64(0)
					for had < b.limit {
						room := nextRoom(b.limit, had)
						if err := s.reserveMemory(t.Context(), c, room); err != nil {
							t.Error(err)
						}
						if used := s.usedBytes(); used > s.limit {
							t.Errorf("%d bytes are taken", used)
						}
						time.Sleep(pause)
						s.releaseMemory(c, had)
						had = room
					}
					if c.held > c.most {
						t.Errorf("a download of %d bytes held %d", b.limit, c.held)
					}
					s.unpinFile(s.putFile(urlKey{byte(i + 1)}, make([]byte, had), c))
				})
			}
			all.Wait()
			if len(s.mu.budget.claims) != 0 || s.mu.budget.held != 0 || s.mu.waiting.Len() != 0 {
				t.Errorf("seed %d: %d downloads are left, which hold %d bytes", seed, len(s.mu.budget.claims), s.mu.budget.held)
			}
		})
	}
}

// TestRooms: a body's room grows by no more than to twice what came, and with its copy never takes more
// than was announced for it.
func TestRooms(t *testing.T) {
	for _, limit := range []int64{0, 1, 2, 1000, firstBuffer - 1, firstBuffer, firstBuffer + 1, 3*firstBuffer + 1, 1 << 20, 5<<20 + 7, 64 << 20, 1<<32 + 1} {
		b := &limitedBody{limit: limit}
		peak, had := int64(0), b.nextCapacity(0)
		if had > firstBuffer {
			t.Errorf("a body of %d bytes begins with %d", limit, had)
		}
		for had < limit {
			room := b.nextCapacity(had)
			if room <= had || room > 2*had {
				t.Fatalf("a body of %d bytes grows from %d to %d", limit, had, room)
			}
			peak, had = max(peak, had+room), room
		}
		if had != limit || peak > downloadMemory(limit) {
			t.Errorf("a body of %d bytes has room for %d, and takes %d", limit, had, peak)
		}
	}
}
