package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/internal/reload"
)

const (
	epochFile = "penstock.epoch"
	// maxEpoch is far above any clock in milliseconds, and far below overflow.
	maxEpoch = 1 << 62
)

// nextEpoch returns the epoch of this process's workers: the time in milliseconds, or one more than the last
// epoch of the data directory if the clock was set back since. Events of the last epoch may still be in the
// directory's streams, and a lower epoch would count as older than they are. The caller holds the directory's
// lock; dir is "" for a temporary directory.
func nextEpoch(dir string, now time.Time) (uint64, error) {
	epoch := uint64(now.UnixMilli())
	if dir == "" {
		return epoch, nil
	}
	path := filepath.Join(dir, epochFile)
	last, err := readNumber(path, maxEpoch, "last epoch, in milliseconds")
	if err != nil {
		return 0, err
	}
	epoch = max(epoch, last+1)
	if err := reload.ReplaceFile(path, fmt.Appendf(nil, "%d\n", epoch)); err != nil {
		return 0, fmt.Errorf("data directory %s: %w; check its space and permissions", dir, err)
	}
	return epoch, nil
}

// epochCounter gives every incarnation of a worker or a model in this process a higher epoch than any before.
type epochCounter struct {
	mu   sync.Mutex
	last uint64
}

// newEpochCounter returns a counter which starts at the epoch of a data directory.
func newEpochCounter(dir string) (*epochCounter, error) {
	first, err := nextEpoch(dir, time.Now())
	return &epochCounter{last: first - 1}, err
}

func (c *epochCounter) next() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, uint64(time.Now().UnixMilli()))
	return c.last
}

// readNumber returns the number in a file, 0 if there is no file. what names the number in errors.
func readNumber(path string, most uint64, what string) (uint64, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n > most {
		return 0, fmt.Errorf("%s: %s holds none; remove it", what, path)
	}
	return n, nil
}
