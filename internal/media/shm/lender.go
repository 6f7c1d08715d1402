package shm

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Config says how much a Lender lends.
type Config struct {
	Dir       string // default Dir
	Prefix    string // of names; default "media"
	MaxBytes  int64  // lent at a time; default 256 MiB
	MaxLeases int    // at a time; default 1024
}

// EnsureDefaults sets what was left at zero.
func (c *Config) EnsureDefaults() {
	if c.Dir == "" {
		c.Dir = Dir
	}
	if c.Prefix == "" {
		c.Prefix = "media"
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 256 << 20
	}
	if c.MaxLeases == 0 {
		c.MaxLeases = 1024
	}
}

// Validate reports all that is wrong with c, after EnsureDefaults.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxBytes < 0 || c.MaxLeases < 0 {
		errs = append(errs, errors.New("shm config: max bytes and max leases must be above 0"))
	}
	if _, err := newName(c.Prefix); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Lender lends segments until a deadline. It is safe for concurrent use.
type Lender struct {
	cfg  Config
	busy sync.WaitGroup // leases that are made, or that their deadline ends, just now; added to under mu
	mu   struct {
		sync.Mutex
		leases map[*Lease]struct{}
		bytes  int64
		closed bool
	}
}

// Lease is a segment that is lent.
type Lease struct {
	lender  *Lender
	segment *segment
	size    int64
	timer   *time.Timer
}

// NewLender returns a Lender, after it has swept what dead ones left. Close ends it.
func NewLender(cfg Config) (*Lender, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, err := Sweep(cfg.Dir); err != nil {
		return nil, err
	}
	l := &Lender{cfg: cfg}
	l.mu.leases = map[*Lease]struct{}{}
	return l, nil
}

// Lend puts a copy of data into a segment that others can open until the lease is released
// or d has passed. It returns ErrFull, wrapped, if as much is lent as may be.
func (l *Lender) Lend(data []byte, d time.Duration) (*Lease, error) {
	e := &Lease{lender: l, size: int64(len(data))}
	if err := l.book(e); err != nil {
		return nil, err
	}
	defer l.busy.Done()
	segment, err := l.make(data)
	if err != nil {
		l.unbook(e)
		return nil, err
	}
	l.mu.Lock()
	if l.mu.closed { // in the meantime
		l.mu.Unlock()
		l.unbook(e)
		return nil, errors.Join(errClosed, segment.Close())
	}
	e.segment = segment
	e.timer = time.AfterFunc(d, e.expire)
	l.mu.Unlock()
	return e, nil
}

var errClosed = errors.New("shm lend: the lender is closed")

// book notes that e takes memory, and is made.
func (l *Lender) book(e *Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.mu.closed:
		return errClosed
	case e.size > l.cfg.MaxBytes-l.mu.bytes || len(l.mu.leases) >= l.cfg.MaxLeases:
		return fmt.Errorf("shm lend: %w: %d bytes are lent in %d segments", ErrFull, l.mu.bytes, len(l.mu.leases))
	}
	l.busy.Add(1)
	l.mu.leases[e] = struct{}{}
	l.mu.bytes += e.size
	return nil
}

// unbook notes that e takes no memory, and reports whether it did until now.
func (l *Lender) unbook(e *Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.mu.leases[e]; !ok {
		return false
	}
	delete(l.mu.leases, e)
	l.mu.bytes -= e.size
	return true
}

// make returns a sealed segment with data.
func (l *Lender) make(data []byte) (*segment, error) {
	s, err := createIn(l.cfg.Dir, l.cfg.Prefix, len(data))
	if errors.Is(err, ErrFull) { // perhaps somebody has died
		if n, _ := Sweep(l.cfg.Dir); n > 0 {
			s, err = createIn(l.cfg.Dir, l.cfg.Prefix, len(data))
		}
	}
	if err != nil {
		return nil, err
	}
	copy(s.Bytes(), data)
	if err := s.Seal(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Held returns how much is lent.
func (l *Lender) Held() (leases int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.leases), l.mu.bytes
}

// Close ends all leases, and lends no more. Calls after the first do nothing.
func (l *Lender) Close() error {
	l.mu.Lock()
	l.mu.closed = true
	var open []*Lease
	for e := range l.mu.leases {
		if e.segment != nil { // otherwise Lend, which is under way, finds l closed
			open = append(open, e)
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, e := range open {
		errs = append(errs, e.Release())
	}
	l.busy.Wait()
	return errors.Join(errs...)
}

// Name returns what Open finds the segment by.
func (e *Lease) Name() string { return e.segment.Name() }

// Release ends the lease. Whoever has opened the segment keeps it. Calls after the first,
// and after the deadline, do nothing.
func (e *Lease) Release() error {
	e.timer.Stop()
	if !e.lender.unbook(e) {
		return nil
	}
	return e.segment.Close()
}

// expire ends the lease at its deadline.
func (e *Lease) expire() {
	l := e.lender
	l.mu.Lock()
	if l.mu.closed { // Close ends it
		l.mu.Unlock()
		return
	}
	l.busy.Add(1)
	l.mu.Unlock()
	defer l.busy.Done()
	_ = e.Release() // nobody is left to hear of it
}
