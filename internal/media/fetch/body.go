package fetch

import (
	"io"
	"time"
)

// firstBuffer bounds the initial buffer of a body, in bytes.
const firstRoom = 64 << 10

// limitedBody is the body of a response which is read completely.
type body struct {
	io.Reader
	n     int64 // the announced length in bytes, -1 if unknown
	limit int64 // maximum length in bytes; n if that is announced

	// grow reserves memory before it is allocated, and waits for it; shrink returns some. Both are
	// nil for bodies too small to count.
	grow   func(n int64) error
	shrink func(n int64)
}

// nextCapacity returns the capacity which follows had: the next of the limit, half of it, a quarter
// of it and so on, so that the last copy has exactly the capacity that the limit needs.
func (b *body) roomAfter(had int64) int64 {
	room := b.limit
	for half := (room + 1) / 2; half > had && (had > 0 || room > firstRoom); half = (room + 1) / 2 {
		room = half
	}
	return room
}

// readAll reads a body. The buffer grows when it is full of received bytes, never for announced
// bytes. It calls stop, which ends the request, if nothing arrives for IdleTimeout; time spent
// waiting for memory does not count.
func (f *Fetcher) readAll(stop func(error), in *body) ([]byte, error) {
	idle := time.AfterFunc(f.cfg.IdleTimeout, func() { stop(errIdle) })
	defer idle.Stop()
	pace := pace{least: f.cfg.MinRate, window: f.cfg.IdleTimeout, since: time.Now()}
	var b []byte
	for begun := false; !begun || int64(len(b)) < in.limit; begun = true {
		if len(b) == cap(b) {
			idle.Stop()
			grown, err := in.enlarge(b)
			if err != nil {
				return nil, err
			}
			b = grown
			pace.restart(time.Now())
			idle.Reset(f.cfg.IdleTimeout)
		}
		m, err := in.Read(b[len(b):cap(b)])
		b = b[:len(b)+m]
		idle.Reset(f.cfg.IdleTimeout)
		switch {
		case err == io.EOF && in.n >= 0 && int64(len(b)) < in.n:
			return nil, errLength
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		case pace.slow(time.Now(), m):
			return nil, errSlow
		}
	}
	return b, in.end()
}

// growBuffer returns a copy of had with more capacity.
func (b *body) enlarge(had []byte) ([]byte, error) {
	room := b.roomAfter(int64(cap(had)))
	if b.grow != nil {
		if err := b.grow(room); err != nil {
			return nil, err
		}
		defer b.shrink(int64(cap(had)))
	}
	return append(make([]byte, 0, room), had...), nil
}

// checkEnd returns an error if a body continues beyond its last byte.
func (b *body) end() error {
	var one [1]byte
	switch m, err := io.ReadFull(b, one[:]); {
	case m == 1 && b.n >= 0:
		return errLength
	case m == 1:
		return errTooLarge
	case err != io.EOF:
		return err
	}
	return nil
}

// rateMeter detects a body which arrives too slowly: fewer than minRate bytes per second over a
// window.
type pace struct {
	least  int64 // negative means no minimum
	window time.Duration
	since  time.Time // start of the window
	came   int64     // bytes received in the window
}

// startWindow starts a new window.
func (p *pace) restart(now time.Time) { p.since, p.came = now, 0 }

// isTooSlow counts n received bytes, and reports whether a window has ended with too few.
func (p *pace) slow(now time.Time, n int) bool {
	p.came += int64(n)
	took := now.Sub(p.since)
	if took < p.window {
		return false
	}
	slow := p.least > 0 && float64(p.came) < float64(p.least)*took.Seconds()
	p.restart(now)
	return slow
}
