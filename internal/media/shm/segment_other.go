//go:build !linux

package shm

import "fmt"

// segment is shared memory that this process has made: there is none on this system.
type segment struct{}

func createIn(string, string, int) (*segment, error) {
	return nil, fmt.Errorf("shm create: %w", ErrUnavailable)
}

// Name returns what Open finds s by.
func (s *segment) Name() string { return "" }

// Bytes returns the memory, until Close. It may be written to until Seal.
func (s *segment) Bytes() []byte { return nil }

// Seal makes s read-only, here and for whoever opens it: it may be told to others.
func (s *segment) Seal() error { return ErrUnavailable }

// Close takes away s's name and its memory from this process.
func (s *segment) Close() error { return nil }

// Mapping is a segment that somebody else has made: there is none on this system.
type Mapping struct{}

func openIn(string, string, int) (*Mapping, error) {
	return nil, fmt.Errorf("shm open: %w", ErrUnavailable)
}

// Bytes returns the memory, until Close.
func (m *Mapping) Bytes() []byte { return nil }

// Close gives the memory back.
func (m *Mapping) Close() error { return nil }

func sweep(string) (int, error) { return 0, fmt.Errorf("shm sweep: %w", ErrUnavailable) }
