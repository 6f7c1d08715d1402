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
func runSlowClients(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	door := f.Frontends[0]
	alone, err := measureNormal(ctx, e, door, 6*time.Second)
	if err != nil {
		return err
	}
	r.requireFlawless(&alone)
	r.addDurations("normal clients alone: request", &alone.Took)

	s := slowReaders{e: e, door: door}
	defer s.stopReaders()
	for range slowClientCount {
		for _, every := range []time.Duration{time.Second, 0} {
			if err := s.startReader(ctx, every); err != nil {
				return err
			}
		}
	}
	if err := s.awaitStuck(ctx, f); err != nil {
		return err
	}
	beside, err := measureNormal(ctx, e, door, 6*time.Second)
	if err != nil {
		return err
	}
	r.requireFlawless(&beside)
	r.addDurations("normal clients beside slow ones: request", &beside.Took)
	if p, limit := beside.Took.Percentile(99), 3*alone.Took.Percentile(99); p > limit {
		r.addProblem("beside slow clients the p99 of a request is %v, alone %v", p, alone.Took.Percentile(99))
	}
	return s.awaitCutOff(ctx, r, f)
}

// measureNormal runs six normal clients for a time.
func measureNormal(ctx context.Context, e *testEnv, door *fleet.Role, length time.Duration) (fleet.OutcomeCounts, error) {
	load := e.newLoad(door).StartClients(ctx, 6)
	err := sleepContext(ctx, length)
	tally, _ := load.FinishLoad()
	return tally, err
}

// slowClientCount is how many slow clients of each sort there are.
const slowClientCount = 6

// slowReaders are clients which read slowly or not at all.
type slowReaders struct {
	e       *testEnv
	door    *fleet.Role
	readers sync.WaitGroup
	mu      struct {
		sync.Mutex
		conns []net.Conn
	}
}

// bulkyRequest is a request whose response fills all buffers between its worker and a client which does not
// read: each token comes with 20 alternatives.
func bulkyRequest(e *testEnv) fleet.Request {
	return fleet.Request{Path: "/v1/chat/completions", Body: map[string]any{
		"model": fleet.Model, "stream": true, "max_tokens": 3600, "ignore_eos": true, "logprobs": true, "top_logprobs": 20, "temperature": 1, "seed": e.random.IntN(1e6),
		"messages": []map[string]string{{"role": "user", "content": fmt.Sprintf("Name %d rivers.", e.random.IntN(1e6))}},
	}}
}

// startReader sends a request over a connection with small buffers, and reads a byte of the response at each
// interval; 0 is never.
func (s *slowReaders) startReader(ctx context.Context, every time.Duration) error {
	req := bulkyRequest(s.e)
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
func (s *slowReaders) stopReaders() {
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
func (s *slowReaders) awaitStuck(ctx context.Context, f *fleet.Fleet) error {
	last, calm := -1.0, 0
	_, err := fleet.WaitUntil(ctx, 500*time.Millisecond, slowPatience, func(ctx context.Context) error {
		blocks := 0.0
		for _, w := range f.Workers {
			m, err := fleet.ReadMetrics(ctx, w.URL())
			if err != nil {
				return err
			}
			blocks += m.SumOf("penstock_worker_load", `quantity="used_blocks"`)
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
	m, err := fleet.ReadMetrics(ctx, s.door.URL())
	if n := m.SumOf("penstock_frontend_inflight"); err == nil && n != 2*slowClientCount {
		err = fmt.Errorf("%v of %d slow clients are there when what is beside them is to be measured", n, 2*slowClientCount)
	}
	s.e.logProgress("slow clients are full: their answers stand at %v blocks", last)
	return err
}

// awaitCutOff waits until the frontend has cut off every slow client, and all resources are free.
func (s *slowReaders) awaitCutOff(ctx context.Context, r *scenarioResult, f *fleet.Fleet) error {
	took, err := fleet.WaitUntil(ctx, 100*time.Millisecond, slowPatience, func(ctx context.Context) error {
		m, err := fleet.ReadMetrics(ctx, s.door.URL())
		if err != nil {
			return err
		}
		if n := m.SumOf("penstock_frontend_inflight"); n != 0 {
			return fmt.Errorf("%v requests of slow clients are still served", n)
		}
		return checkIdle(ctx, f, s.door)
	})
	if err != nil {
		return err
	}
	r.Sent += 2 * slowClientCount
	r.Left += 2 * slowClientCount
	r.addTime("slow clients: cut off and freed after the measurement, within", took)
	return nil
}
