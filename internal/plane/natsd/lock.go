package natsd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const lockName = "penstock.lock"

// Lock locks a data directory, which it creates if it is missing, for a process which uses the
// directory without starting a server in it. The lock is held until it is closed or the process
// ends.
func Lock(dir string) (io.Closer, error) {
	f, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// lockDir creates dir if needed and locks it. The returned file holds the lock until it is closed
// or the process ends, even by a crash.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w; make it writable or choose another", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w; make it writable or choose another", dir, err)
	}
	if err := lockFile(f); err != nil {
		holder := readHolder(f)
		f.Close()
		return nil, fmt.Errorf("data directory %s: in use by %s; stop it or choose another directory", dir, holder)
	}
	if err := writeHolder(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("data directory %s: %w; make it writable or choose another", dir, err)
	}
	return f, nil
}

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

func readHolder(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}
