package natsd

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
