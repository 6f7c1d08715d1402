package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// client is the receiver of a stream: it takes each write when it is told to, or at once when gate is
// nil.
type client struct {
	gate   chan error
	writes []string
}

func (c *client) write(b []byte) error {
	if c.gate != nil {
		if err := <-c.gate; err != nil {
			return err
		}
	}
	c.writes = append(c.writes, string(b))
	return nil
}

// TestStreamCoalesces: an idle stream writes each event at once, a busy one all pending events in one
// write.
func TestStreamCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{gate: make(chan error)}
		s := newSSEStream(time.Hour, c.write, func(error) {})
		go s.run()
		begun := time.Now()
		put := func(event string) {
			if err := s.put([]byte(event)); err != nil {
				t.Error(err)
			}
		}
		c.gate <- nil // the header
		synctest.Wait()
		put("a")
		synctest.Wait()
		c.gate <- nil
		synctest.Wait()
		put("b") // in progress
		synctest.Wait()
		for i := range 5 {
			put(fmt.Sprint(i))
		}
		c.gate <- nil
		c.gate <- nil
		if err := s.close(); err != nil {
			t.Error(err)
		}
		if got := strings.Join(c.writes, "|"); got != "|a|b|01234" {
			t.Errorf("the writes are %s", got)
		}
		if d := time.Since(begun); d != 0 {
			t.Errorf("events waited for %v", d)
		}
	})
}

// TestStreamFinal: only the last events go to the writer that sends them with the end of the answer.
func TestStreamFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, end := &client{}, &client{}
		s := newSSEStream(time.Hour, c.write, func(error) {})
		s.writeLast = end.write
		go s.run()
		synctest.Wait()
		for _, event := range []string{"a", "b", "c"} {
			synctest.Wait()
			if err := s.put([]byte(event)); err != nil {
				t.Error(err)
			}
		}
		if err := s.close(); err != nil || s.close() != nil {
			t.Error(err)
		}
		if got := strings.Join(c.writes, "|") + "/" + strings.Join(end.writes, "|"); got != "|a|b/c" {
			t.Errorf("the writes are %s", got)
		}
	})
}

// TestStreamHoldsTheWorker: a client that is far behind makes the worker wait, and its end releases the
// worker.
func TestStreamHoldsTheWorker(t *testing.T) {
	for _, end := range []error{nil, errors.New("gone")} {
		synctest.Test(t, func(t *testing.T) {
			c := &client{gate: make(chan error)}
			told := 0
			s := newSSEStream(time.Hour, c.write, func(error) { told++ })
			go s.run()
			event := []byte(strings.Repeat("x", maxPending/4))
			puts, put := 0, make(chan error)
			go func() {
				var err error
				for ; puts < 20 && err == nil; puts++ {
					err = s.put(event)
				}
				put <- err
			}()
			synctest.Wait()
			if puts > 8 { // one write and the pending events
				t.Errorf("%d puts did not wait", puts)
			}
			if end != nil {
				c.gate <- end
			} else {
				close(c.gate)
			}
			if err := <-put; err != end {
				t.Errorf("put: %v", err)
			}
			if err := s.close(); err != end || s.close() != end {
				t.Errorf("close: %v", err)
			}
			if n := len(strings.Join(c.writes, "")); end == nil && n != 20*len(event) || (told == 1) != (end != nil) {
				t.Errorf("%d bytes were written, and told %d times", n, told)
			}
		})
	}
}

// TestKeepAlive: an idle stream sends keep-alives, only between events.
func TestKeepAlive(t *testing.T) {
	inWorld(t, Config{KeepAlive: 10 * time.Second}, func(t *testing.T, w *world) {
		s := constant("hi")
		s.interlude = func() { time.Sleep(35 * time.Second) } // prefill, of virtual time
		w.worker(7, s)
		const body = `{"model":"bytes","messages":[{"role":"user","content":"x"}],"stream":`
		streamed := w.post("/v1/chat/completions", body+`true}`)
		events := strings.Split(streamed.body, "\n\n")
		alive := 0
		for i, e := range events {
			switch {
			case e == strings.TrimSpace(keepAlive):
				if alive++; i >= 3 {
					t.Errorf("event %d is a keep-alive", i)
				}
			case e != "" && !strings.HasPrefix(e, "data: "):
				t.Errorf("event %d is %q", i, e)
			}
		}
		if streamed.status != http.StatusOK || alive != 3 || !strings.HasSuffix(streamed.body, "data: [DONE]\n\n") {
			t.Errorf("%d, %d keep-alives in\n%s", streamed.status, alive, streamed.body)
		}
		if whole := w.post("/v1/chat/completions", body+`false}`); strings.Contains(whole.body, "keep-alive") {
			t.Errorf("a whole answer is %s", whole.body)
		}
	})
}

// TestKeepAliveFindsTheClientGone: a client that reads nothing is dropped even without events from the
// worker, and the worker's call ends with it.
func TestKeepAliveFindsTheClientGone(t *testing.T) {
	inWorld(t, Config{KeepAlive: 10 * time.Second, WriteTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		s := constant("hi")
		s.frames = 1
		w.worker(7, s)
		resp := w.send(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"bytes","prompt":"x","stream":true}`))
		time.Sleep(2 * time.Minute) // of virtual time, in which the client reads nothing
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != 1 {
			t.Errorf("%d calls run, %d were cancelled", running, cancelled)
		}
		_ = resp.Body.Close()
	})
}

// TestStreamDoesNotAllocate: an event on its way through a stream allocates nothing once the two
// buffers have grown.
func TestStreamDoesNotAllocate(t *testing.T) {
	s := newSSEStream(time.Hour, func([]byte) error { return nil }, func(error) {})
	go s.run()
	event := []byte(strings.Repeat("x", 200))
	for range 1000 {
		if err := s.put(event); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(2000, func() {
		if err := s.put(event); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for each event", n)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
