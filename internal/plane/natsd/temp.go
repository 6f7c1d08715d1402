package natsd

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	tempPrefix = "penstock-nats-"
	// tempMark is a file which distinguishes our temporary directories, which may be deleted, from
	// a user's directory with the same name prefix.
	tempMark = "penstock.temporary"
)

// lockTemp creates and locks a temporary directory. It writes the mark after it has the lock, so a
// marked directory which is not locked belongs to a crashed process. With an error it returns what
// it has created so far.
func lockTemp() (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp("", tempPrefix)
	if err == nil {
		lock, err = lockDir(dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, tempMark), nil, 0o600)
	}
	if err != nil {
		return dir, lock, fmt.Errorf("temporary directory: %w; set TMPDIR or give a data directory", err)
	}
	return dir, lock, nil
}

// removeAbandoned removes the temporary directories of killed servers. Failures do not affect this
// server.
func removeAbandoned(log *slog.Logger) {
	temp, err := os.OpenRoot(os.TempDir())
	if err != nil {
		return // creating a directory there reports the error
	}
	defer temp.Close()
	list, err := os.ReadDir(temp.Name())
	if err != nil {
		return
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), tempPrefix) || !e.IsDir() || !isAbandoned(temp, e.Name()) {
			continue
		}
		if err := temp.RemoveAll(e.Name()); err != nil {
			log.Warn("cannot remove the directory of a server that was killed", "dir", filepath.Join(temp.Name(), e.Name()), "err", err)
			continue
		}
		log.Info("removed the directory of a server that was killed", "dir", filepath.Join(temp.Name(), e.Name()))
	}
}

// isAbandoned reports whether the directory in temp is one of ours whose server is dead: it has the
// mark, and its lock is free.
func isAbandoned(temp *os.Root, name string) bool {
	for _, file := range []string{tempMark, lockName} {
		// Opening a file that is not regular may block.
		if info, err := temp.Lstat(filepath.Join(name, file)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	f, err := temp.OpenFile(filepath.Join(name, lockName), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close() // runs before the removal; some systems refuse to remove open files
	return lockFile(f) == nil
}

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
