package fetch

import (
	"io"
	"time"
)

// firstBuffer bounds the initial buffer of a body, in bytes.
const firstBuffer = 64 << 10

// limitedBody is the body of a response which is read completely.
type limitedBody struct {
	io.Reader
	announced int64 // the announced length in bytes, -1 if unknown
	limit     int64 // maximum length in bytes; n if that is announced

	// grow reserves memory before it is allocated, and waits for it; shrink returns some. Both are
	// nil for bodies too small to count.
	grow   func(n int64) error
	shrink func(n int64)
}

// nextCapacity returns the capacity which follows had: the next of the limit, half of it, a quarter
// of it and so on, so that the last copy has exactly the capacity that the limit needs.
func (b *limitedBody) nextCapacity(had int64) int64 {
	room := b.limit
	for half := (room + 1) / 2; half > had && (had > 0 || room > firstBuffer); half = (room + 1) / 2 {
		room = half
	}
	return room
}

// readAll reads a body. The buffer grows when it is full of received bytes, never for announced
// bytes. It calls stop, which ends the request, if nothing arrives for IdleTimeout; time spent
// waiting for memory does not count.
func (f *Fetcher) readAll(stop func(error), in *limitedBody) ([]byte, error) {
	idle := time.AfterFunc(f.cfg.IdleTimeout, func() { stop(errIdle) })
	defer idle.Stop()
	pace := rateMeter{minRate: *f.cfg.MinRate, window: f.cfg.IdleTimeout, windowStart: time.Now()}
	var b []byte
	for begun := false; !begun || int64(len(b)) < in.limit; begun = true {
		if len(b) == cap(b) {
			idle.Stop()
			grown, err := in.growBuffer(b)
			if err != nil {
				return nil, err
			}
			b = grown
			pace.startWindow(time.Now())
			idle.Reset(f.cfg.IdleTimeout)
		}
		m, err := in.Read(b[len(b):cap(b)])
		b = b[:len(b)+m]
		idle.Reset(f.cfg.IdleTimeout)
		switch {
		case err == io.EOF && in.announced >= 0 && int64(len(b)) < in.announced:
			return nil, errLength
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		case pace.isTooSlow(time.Now(), m):
			return nil, errSlow
		}
	}
	return b, in.checkEnd()
}

// growBuffer returns a copy of had with more capacity.
func (b *limitedBody) growBuffer(had []byte) ([]byte, error) {
	room := b.nextCapacity(int64(cap(had)))
	if b.grow != nil {
		if err := b.grow(room); err != nil {
			return nil, err
		}
		defer b.shrink(int64(cap(had)))
	}
	return append(make([]byte, 0, room), had...), nil
}

// checkEnd returns an error if a body continues beyond its last byte.
func (b *limitedBody) checkEnd() error {
	var one [1]byte
	switch m, err := io.ReadFull(b, one[:]); {
	case m == 1 && b.announced >= 0:
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
type rateMeter struct {
	minRate     int64 // 0 means no minimum
	window      time.Duration
	windowStart time.Time // start of the window
	received    int64     // bytes received in the window
}

// startWindow starts a new window.
func (p *rateMeter) startWindow(now time.Time) { p.windowStart, p.received = now, 0 }

// isTooSlow counts n received bytes, and reports whether a window has ended with too few.
func (p *rateMeter) isTooSlow(now time.Time, n int) bool {
	p.received += int64(n)
	took := now.Sub(p.windowStart)
	if took < p.window {
		return false
	}
	slow := p.minRate > 0 && float64(p.received) < float64(p.minRate)*took.Seconds()
	p.startWindow(now)
	return slow
}
