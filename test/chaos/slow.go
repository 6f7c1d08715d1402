package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"penstock/test/fleet"
)

// slowPatience bounds the time in which clients which read nothing are cut off: the write timeout, 60 s by
// default, and the contents of their buffers.
const slowPatience = 2 * time.Minute

// runSlowClients runs clients which read a byte a second, and clients which read nothing, beside normal ones.
func slowClients(ctx context.Context, e *env, r *result) error {
	f, err := e.fleet(ctx, fleet.Config{Workers: 2, Frontends: 1})
	if err != nil {
		return err
	}
	defer e.end(f, r)
	door := f.Frontends[0]
	alone, err := measure(ctx, e, door, 6*time.Second)
	if err != nil {
		return err
	}
	r.flawless(&alone)
	r.times("normal clients alone: request", &alone.Took)

	s := slow{e: e, door: door}
	defer s.leave()
	for range crowd {
		for _, every := range []time.Duration{time.Second, 0} {
			if err := s.start(ctx, every); err != nil {
				return err
			}
		}
	}
	if err := s.stuck(ctx, f); err != nil {
		return err
	}
	beside, err := measure(ctx, e, door, 6*time.Second)
	if err != nil {
		return err
	}
	r.flawless(&beside)
	r.times("normal clients beside slow ones: request", &beside.Took)
	if p, limit := beside.Took.Percentile(99), 3*alone.Took.Percentile(99); p > limit {
		r.problem("beside slow clients the p99 of a request is %v, alone %v", p, alone.Took.Percentile(99))
	}
	return s.ends(ctx, r, f)
}

// measureNormal runs six normal clients for a time.
func measure(ctx context.Context, e *env, door *fleet.Role, length time.Duration) (fleet.Tally, error) {
	load := e.load(door).Start(ctx, 6)
	err := pause(ctx, length)
	tally, _ := load.Finish()
	return tally, err
}

// slowClientCount is how many slow clients of each sort there are.
const crowd = 6

// slowReaders are clients which read slowly or not at all.
type slow struct {
	e       *env
	door    *fleet.Role
	readers sync.WaitGroup
	mu      struct {
		sync.Mutex
		conns []net.Conn
	}
}

// bulkyRequest is a request whose response fills all buffers between its worker and a client which does not
// read: each token comes with 20 alternatives.
func bulky(e *env) fleet.Request {
	return fleet.Request{Path: "/v1/chat/completions", Body: map[string]any{
		"model": fleet.Model, "stream": true, "max_tokens": 3600, "ignore_eos": true, "logprobs": true, "top_logprobs": 20, "temperature": 1, "seed": e.random.IntN(1e6),
		"messages": []map[string]string{{"role": "user", "content": fmt.Sprintf("Name %d rivers.", e.random.IntN(1e6))}},
	}}
}

// startReader sends a request over a connection with small buffers, and reads a byte of the response at each
// interval; 0 is never.
func (s *slow) start(ctx context.Context, every time.Duration) error {
	req := bulky(s.e)
	body, err := json.Marshal(req.Body)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: dialPatience}).DialContext(ctx, "tcp", s.door.HTTP)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.conns = append(s.mu.conns, conn)
	s.mu.Unlock()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		return err
	}
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", req.Path, s.door.HTTP, len(body), body)
	if err != nil || every == 0 {
		return err
	}
	s.readers.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for range tick.C {
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				return // cut off, or stopped
			}
		}
	})
	return nil
}

// stopReaders ends all clients and waits for their readers.
func (s *slow) leave() {
	s.mu.Lock()
	for _, c := range s.mu.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.readers.Wait()
}

// awaitStuck waits until nothing is computed for slow clients: either the buffers between workers and them
// are full, or workers have finished and hold the rest of the responses. By then none may have its full
// response, or be cut off.
func (s *slow) stuck(ctx context.Context, f *fleet.Fleet) error {
	last, calm := -1.0, 0
	_, err := fleet.Until(ctx, 500*time.Millisecond, slowPatience, func(ctx context.Context) error {
		blocks := 0.0
		for _, w := range f.Workers {
			m, err := fleet.Look(ctx, w.URL())
			if err != nil {
				return err
			}
			blocks += m.Sum("penstock_worker_load", `quantity="used_blocks"`)
		}
		if blocks != last {
			last, calm = blocks, 0
			return fmt.Errorf("their answers take %v blocks and grow", blocks)
		}
		if calm++; calm < 3 {
			return fmt.Errorf("it has not been calm for long")
		}
		return nil
	})
	if err != nil {
		return err
	}
	m, err := fleet.Look(ctx, s.door.URL())
	if n := m.Sum("penstock_frontend_inflight"); err == nil && n != 2*crowd {
		err = fmt.Errorf("%v of %d slow clients are there when what is beside them is to be measured", n, 2*crowd)
	}
	s.e.say("slow clients are full: their answers stand at %v blocks", last)
	return err
}

// awaitCutOff waits until the frontend has cut off every slow client, and all resources are free.
func (s *slow) ends(ctx context.Context, r *result, f *fleet.Fleet) error {
	took, err := fleet.Until(ctx, 100*time.Millisecond, slowPatience, func(ctx context.Context) error {
		m, err := fleet.Look(ctx, s.door.URL())
		if err != nil {
			return err
		}
		if n := m.Sum("penstock_frontend_inflight"); n != 0 {
			return fmt.Errorf("%v requests of slow clients are still served", n)
		}
		return idle(ctx, f, s.door)
	})
	if err != nil {
		return err
	}
	r.Sent += 2 * crowd
	r.Left += 2 * crowd
	r.time("slow clients: cut off and freed after the measurement, within", took)
	return nil
}
