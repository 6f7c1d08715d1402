package shm

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Config bounds what a Lender lends.
type Config struct {
	Dir       string // default Dir
	Prefix    string // of names; default "media"
	MaxBytes  int64  // lent at the same time; default 256 MiB
	MaxLeases int    // at the same time; default 1024
}

// EnsureDefaults replaces zero values by their defaults.
func (c *Config) EnsureDefaults() {
	c.Dir = cmp.Or(c.Dir, Dir)
	c.Prefix = cmp.Or(c.Prefix, "media")
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxLeases = cmp.Or(c.MaxLeases, 1024)
}

// Validate reports all problems of c. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxBytes < 0 || c.MaxLeases < 0 {
		errs = append(errs, errors.New("shm config: max bytes and max leases must be above 0"))
	}
	if _, err := newSegmentName(c.Prefix); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Lender lends segments until a deadline. It is safe for concurrent use.
type Lender struct {
	cfg  Config
	busy sync.WaitGroup // leases being created or expired; incremented under mu
	mu   struct {
		sync.Mutex
		leases map[*Lease]struct{}
		bytes  int64
		closed bool
	}
}

// Lease is a lent segment.
type Lease struct {
	lender  *Lender
	segment *segment
	size    int64
	timer   *time.Timer
}

// NewLender returns a Lender, after sweeping the segments of dead ones. The caller must close it.
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

// Lend copies data into a segment which others can open until the lease is released or d has
// passed. It returns ErrFull, wrapped, if the limits are reached.
func (l *Lender) Lend(data []byte, d time.Duration) (*Lease, error) {
	e := &Lease{lender: l, size: int64(len(data))}
	if err := l.bookLease(e); err != nil {
		return nil, err
	}
	defer l.busy.Done()
	segment, err := l.createSegment(data)
	if err != nil {
		l.unbookLease(e)
		return nil, err
	}
	l.mu.Lock()
	if l.mu.closed { // closed in the meantime
		l.mu.Unlock()
		l.unbookLease(e)
		return nil, errors.Join(errClosed, segment.Close())
	}
	e.segment = segment
	e.timer = time.AfterFunc(d, e.expireLease)
	l.mu.Unlock()
	return e, nil
}

var errClosed = errors.New("shm lend: the lender is closed")

// bookLease reserves memory for e, which is about to be created.
func (l *Lender) bookLease(e *Lease) error {
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

// unbookLease releases the memory of e, and reports whether it was reserved.
func (l *Lender) unbookLease(e *Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.mu.leases[e]; !ok {
		return false
	}
	delete(l.mu.leases, e)
	l.mu.bytes -= e.size
	return true
}

// createSegment returns a sealed segment with data.
func (l *Lender) createSegment(data []byte) (*segment, error) {
	s, err := createIn(l.cfg.Dir, l.cfg.Prefix, len(data))
	if errors.Is(err, ErrFull) { // a sweep may free space of crashed processes
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

// Usage returns how much is lent.
func (l *Lender) Usage() (leases int, bytes int64) {
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
		if e.segment != nil { // otherwise Lend, in progress, will see that l is closed
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

// Name returns the name for Open.
func (e *Lease) Name() string { return e.segment.Name() }

// Release ends the lease. Processes which have opened the segment keep it. Calls after the first,
// and after the deadline, do nothing.
func (e *Lease) Release() error {
	e.timer.Stop()
	if !e.lender.unbookLease(e) {
		return nil
	}
	return e.segment.Close()
}

// expireLease ends the lease at its deadline.
func (e *Lease) expireLease() {
	l := e.lender
	l.mu.Lock()
	if l.mu.closed { // Close ends it
		l.mu.Unlock()
		return
	}
	l.busy.Add(1)
	l.mu.Unlock()
	defer l.busy.Done()
	_ = e.Release() // no caller is left to handle the error
}
