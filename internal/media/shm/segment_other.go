//go:build !linux

package shm

import "fmt"

// segment is shared memory created by this process: not available on this system.
type segment struct{}

func createIn(string, string, int) (*segment, error) {
	return nil, fmt.Errorf("shm create: %w", ErrUnavailable)
}

// Name returns the name for Open.
func (s *segment) Name() string { return "" }

// Bytes returns the memory, valid until Close. It is writable until Seal.
func (s *segment) Bytes() []byte { return nil }

// Seal makes s read-only for all processes. Its name may then be published.
func (s *segment) Seal() error { return ErrUnavailable }

// Close removes s's name and unmaps its memory in this process.
func (s *segment) Close() error { return nil }

// Mapping is a segment of another process: not available on this system.
type Mapping struct{}

func openIn(string, string, int) (*Mapping, error) {
	return nil, fmt.Errorf("shm open: %w", ErrUnavailable)
}

// Bytes returns the memory, valid until Close.
func (m *Mapping) Bytes() []byte { return nil }

// Close unmaps the memory.
func (m *Mapping) Close() error { return nil }

func sweep(string) (int, error) { return 0, fmt.Errorf("shm sweep: %w", ErrUnavailable) }
