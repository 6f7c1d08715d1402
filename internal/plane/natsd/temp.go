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
	// tempMark is the file that tells a directory of ours, which nobody misses,
	// from one that somebody chose and that only has such a name.
	tempMark = "penstock.temporary"
)

// lockTemp makes a temporary directory and takes its lock. The mark comes after
// the lock: a directory that has one and is not locked is of a process that died.
// What could be made is returned with an error too.
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

// removeAbandoned removes the temporary directories of servers that were killed.
// What cannot be removed stays: it is not in the way of this server.
func removeAbandoned(log *slog.Logger) {
	temp, err := os.OpenRoot(os.TempDir())
	if err != nil {
		return // whoever makes a directory there hears of it
	}
	defer temp.Close()
	list, err := os.ReadDir(temp.Name())
	if err != nil {
		return
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), tempPrefix) || !e.IsDir() || !abandoned(temp, e.Name()) {
			continue
		}
		if err := temp.RemoveAll(e.Name()); err != nil {
			log.Warn("cannot remove the directory of a server that was killed", "dir", filepath.Join(temp.Name(), e.Name()), "err", err)
			continue
		}
		log.Info("removed the directory of a server that was killed", "dir", filepath.Join(temp.Name(), e.Name()))
	}
}

// abandoned reports whether the directory in temp is one of ours whose server is
// dead: it has our mark, and its lock is free.
func abandoned(temp *os.Root, name string) bool {
	for _, file := range []string{tempMark, lockName} {
		// Only a regular file can be opened without waiting.
		if info, err := temp.Lstat(filepath.Join(name, file)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	f, err := temp.OpenFile(filepath.Join(name, lockName), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close() // before the removal, which some systems refuse of open files
	return lockFile(f) == nil
}
