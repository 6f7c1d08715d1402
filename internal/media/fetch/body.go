package fetch

import (
	"io"
	"time"
)

// firstRoom is how much memory a body begins with at most.
const firstRoom = 64 << 10

// body is the body of an answer that is read whole.
type body struct {
	io.Reader
	n     int64 // the length that its host announced, -1 without
	limit int64 // bytes that it may have; n if that is announced

	// grow reserves memory before it is allocated, and waits for it; shrink gives some back. They are
	// nil for bodies that are too small to count.
	grow   func(n int64) error
	shrink func(n int64)
}

// roomAfter returns how much room a body has whose room was had: half, a quarter and so on of its limit,
// whichever of them comes next, so that the last copy leaves the room that the limit needs and no more.
func (b *body) roomAfter(had int64) int64 {
	room := b.limit
	for half := (room + 1) / 2; half > had && (had > 0 || room > firstRoom); half = (room + 1) / 2 {
		room = half
	}
	return room
}

// readAll reads a body. Room is made when what there is is full of bytes that came, never for bytes
// that were promised. stop ends the request if nothing comes for IdleTimeout; time that is spent waiting
// for memory does not count.
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

// enlarge returns b in more room.
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

// end returns an error if a body goes on after its last byte.
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

// pace tells whether a body comes too slowly: fewer than least bytes a second over a window.
type pace struct {
	least  int64 // negative: any pace will do
	window time.Duration
	since  time.Time // begin of the window
	came   int64     // in it
}

// restart begins a window.
func (p *pace) restart(now time.Time) { p.since, p.came = now, 0 }

// slow counts n bytes that came, and reports whether a window ends that had too few.
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
