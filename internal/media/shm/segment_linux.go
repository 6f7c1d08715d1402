package shm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// segment is shared memory created by this process. Its methods, except Close, are not safe for
// concurrent use.
type segment struct {
	dir, name string
	fd        int // holds the lock which marks the segment as alive
	b         []byte
	once      sync.Once
	err       error
}

// maxNameTries bounds the tried names: a sweeper may remove a file between its creation and its
// locking, but hardly twice.
const maxNameTries = 8

func createIn(dir, prefix string, size int) (*segment, error) {
	if size <= 0 {
		return nil, fmt.Errorf("shm create: a segment of %d bytes", size)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("shm create: %w: %w", ErrUnavailable, err)
	}
	for range maxNameTries {
		name, err := newSegmentName(prefix)
		if err != nil {
			return nil, err
		}
		fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("shm create: %w: %w", ErrUnavailable, err)
		}
		s := &segment{dir: dir, name: name, fd: fd}
		if !s.lockFile() {
			_ = s.Close() // a sweeper removed it: try another name
			continue
		}
		if err := s.allocate(size); err != nil {
			_ = s.Close() // the first error is returned
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("shm create: %w: new files are taken away", ErrUnavailable)
}

// lockFile takes the lock which marks s as alive, and reports whether s still has its name then.
func (s *segment) lockFile() bool {
	if unix.Flock(s.fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(s.fd, &st) == nil && st.Nlink == 1
}

// allocate allocates the memory of s in advance: a write to a page that the system cannot provide
// would kill the process.
func (s *segment) allocate(size int) error {
	err := retryInterrupted(func() error { return unix.Fallocate(s.fd, 0, 0, int64(size)) })
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("shm create: %w: %w", ErrFull, err)
	}
	if err == nil {
		s.b, err = unix.Mmap(s.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return fmt.Errorf("shm create: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// retryInterrupted calls f until it is not interrupted by a signal.
func retryInterrupted(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Name returns the name for Open.
func (s *segment) Name() string { return s.name }

// Bytes returns the memory, valid until Close. It is writable until Seal.
func (s *segment) Bytes() []byte { return s.b }

// Seal makes s read-only for all processes. Its name may then be published.
func (s *segment) Seal() error {
	if err := unix.Mprotect(s.b, unix.PROT_READ); err != nil {
		return fmt.Errorf("shm seal: %w", err)
	}
	if err := unix.Fchmod(s.fd, 0o400); err != nil {
		return fmt.Errorf("shm seal: %w", err)
	}
	return nil
}

// Close removes s's name and unmaps its memory in this process; others keep what they have opened.
// Calls after the first return the same error.
func (s *segment) Close() error {
	s.once.Do(func() {
		err := unix.Unlink(filepath.Join(s.dir, s.name))
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		if s.b != nil {
			err = errors.Join(err, unix.Munmap(s.b))
		}
		if err = errors.Join(err, unix.Close(s.fd)); err != nil {
			s.err = fmt.Errorf("shm close: %w", err)
		}
	})
	return s.err
}

// Mapping is a segment of another process.
type Mapping struct {
	b    []byte
	once sync.Once
	err  error
}

func openIn(dir, name string, size int) (*Mapping, error) {
	// O_NONBLOCK: the name may be that of a pipe.
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("shm open: %w", ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("shm open: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // the mapping stays valid
	st, err := statOwnFile(fd)
	switch {
	case err != nil:
		return nil, fmt.Errorf("shm open: %w", err)
	case st.Mode&0o277 != 0:
		return nil, errors.New("shm open: the segment is not lent yet, or not to us alone")
	case st.Size != int64(size):
		return nil, fmt.Errorf("shm open: the segment has %d bytes, not %d", st.Size, size)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm open: %w", err)
	}
	return &Mapping{b: b}, nil
}

// statOwnFile returns the status of an open file, which must be a regular file of this user.
func statOwnFile(fd int) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return st, errors.New("it is no regular file")
	}
	if int(st.Uid) != os.Geteuid() {
		return st, errors.New("it is another user's")
	}
	return st, nil
}

// Bytes returns the memory, valid until Close. It is read-only: a write crashes the process.
func (m *Mapping) Bytes() []byte { return m.b }

// Close unmaps the memory. Calls after the first return the same error.
func (m *Mapping) Close() error {
	m.once.Do(func() {
		if err := unix.Munmap(m.b); err != nil {
			m.err = fmt.Errorf("shm close: %w", err)
		}
		m.b = nil
	})
	return m.err
}

func sweep(dir string) (int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return 0, fmt.Errorf("shm sweep: %w: %w", ErrUnavailable, err)
	}
	defer func() { _ = d.Close() }() // only read
	swept := 0
	for {
		entries, err := d.ReadDir(256)
		for _, e := range entries {
			if e.Type() == fs.FileMode(0) && strings.HasPrefix(e.Name(), namePrefix) && removeOrphan(filepath.Join(dir, e.Name())) {
				swept++
			}
		}
		if err == io.EOF {
			return swept, nil
		}
		if err != nil {
			return swept, fmt.Errorf("shm sweep: %w", err)
		}
	}
}

// removeOrphan removes a segment if its lock is free, and reports whether it did.
func removeOrphan(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // also releases the lock
	if _, err := statOwnFile(fd); err != nil || unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	return unix.Unlink(path) == nil
}
