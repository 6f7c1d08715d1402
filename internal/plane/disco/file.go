package disco

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// FileConfig configures a registry in a directory.
type FileConfig struct {
	// Dir is the directory; all processes which discover each other use the same, on one machine or
	// on a network file system. It is created if it is missing.
	Dir string
	// TTL is how long an instance which has stopped refreshing stays. All processes should use the
	// same. 0 means 10 s.
	TTL time.Duration
	// Interval is the time between two reads of the directory by a watch. 0 means a twentieth of
	// the TTL.
	Interval time.Duration
	// Log receives lost registrations, interruptions and unreadable files. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *FileConfig) EnsureDefaults() {
	c.TTL = cmp.Or(c.TTL, 10*time.Second)
	c.Interval = cmp.Or(c.Interval, c.TTL/20)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *FileConfig) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, fault.New(fault.Invalid, "file discovery: no directory is given"))
	}
	if c.TTL < 100*time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "file discovery ttl: have %v, use at least 100ms", c.TTL))
	}
	if c.Interval <= 0 || c.Interval > c.TTL/4 {
		errs = append(errs, fault.New(fault.Invalid, "file discovery interval: have %v, it must be positive and at most a quarter of the ttl %v", c.Interval, c.TTL))
	}
	return errors.Join(errs...)
}

// FileRegistry is the discovery plane in a directory. Every registration has its own file, which
// its process replaces periodically with a higher counter. So no two processes write the same file,
// and no clocks are compared across processes. docs/format/disco.md documents the bytes.
type FileRegistry struct {
	cfg       FileConfig
	malformed atomic.Uint64
	leases    leaseSet
	mu        struct {
		sync.Mutex
		// watches are woken when another watch has seen a change, or a registration of this object
		// has made one.
		watches []chan struct{}
	}
}

var _ Registry = (*FileRegistry)(nil)

// NewFileRegistry returns a registry in cfg.Dir. An unreadable directory is no error, because it
// may become readable later.
func NewFileRegistry(cfg FileConfig) (*FileRegistry, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &FileRegistry{cfg: cfg}, nil
}

// Close stops refreshing the registrations that were not released, and waits until that has
// stopped. They disappear when their leases expire, as after a crash. It is idempotent.
func (f *FileRegistry) Close() { f.leases.closeLeases() }

// Malformed returns how many files could not be decoded.
func (f *FileRegistry) Malformed() uint64 { return f.malformed.Load() }

// wakeWatches makes every watch read the directory at once, so that all watches of this process see
// a change at the same time: a router must not lag behind the frontend that it routes for.
func (f *FileRegistry) wakeWatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, wake := range f.mu.watches {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// addWatch registers a watch for wakeups; leave unregisters it.
func (f *FileRegistry) addWatch() (wake chan struct{}, leave func()) {
	wake = make(chan struct{}, 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.watches = append(f.mu.watches, wake)
	return wake, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.watches = slices.DeleteFunc(f.mu.watches, func(o chan struct{}) bool { return o == wake })
	}
}

// errDirUnavailable is the error for a failure of the directory.
func errDirUnavailable(op string, err error) error {
	return fault.New(fault.Unavailable, "%s: %v; check that the discovery directory is there and can be written", op, err)
}

// leaseFileName is the parsed name of a registration's file.
type leaseFileName struct {
	instanceKey
	epoch  uint64
	holder string
}

const (
	fileSuffix = ".json"
	tempPrefix = ".tmp-"
	maxHolder  = 64
)

func (n leaseFileName) String() string {
	return string(n.kind) + "." + strconv.FormatUint(uint64(n.id), 10) + "." + strconv.FormatUint(n.epoch, 10) + "." + n.holder + fileSuffix
}

// isNewerThan orders the registrations of one instance: the highest epoch wins, and of equal epochs
// the smallest holder.
func (n leaseFileName) isNewerThan(o leaseFileName) bool {
	return n.epoch > o.epoch || n.epoch == o.epoch && n.holder < o.holder
}

// parseFileName parses a file name. It accepts only the exact output of String.
func parseFileName(s string) (n leaseFileName, ok bool) {
	rest, ok := strings.CutSuffix(s, fileSuffix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 4 || checkKind(Kind(parts[0])) != nil {
		return leaseFileName{}, false
	}
	id, err1 := strconv.ParseUint(parts[1], 10, 64)
	epoch, err2 := strconv.ParseUint(parts[2], 10, 64)
	n = leaseFileName{instanceKey{Kind(parts[0]), kv.WorkerID(id)}, epoch, parts[3]}
	if err1 != nil || err2 != nil || n.id > kv.MaxWorkerID || !isHex(n.holder) || n.String() != s {
		return leaseFileName{}, false
	}
	return n, true
}

func isHex(s string) bool {
	return s != "" && len(s) <= maxHolder && strings.Trim(s, "0123456789abcdef") == ""
}

// fileBeat is the second line of a file.
type fileBeat struct {
	Count uint64 `json:"beat"`
}

// maxFile bounds a file, in bytes: a record, and a line with a number.
const maxFile = MaxRecord + 64

// encodeFile returns the content of a registration's file: the record and the refresh counter, one
// line each.
func encodeFile(record []byte, count uint64) []byte {
	b := append(bytes.Clone(record), "\n{\"beat\":"...)
	b = strconv.AppendUint(b, count, 10)
	return append(b, "}\n"...)
}

// decodeFile decodes the content of the file n.
func decodeFile(n leaseFileName, data []byte) (r instanceRecord, count uint64, err error) {
	if len(data) > maxFile {
		return instanceRecord{}, 0, fault.New(fault.TooLarge, "file: more than %d bytes", maxFile)
	}
	first, second, ok := bytes.Cut(data, []byte("\n"))
	if !ok {
		return instanceRecord{}, 0, fault.New(fault.Invalid, "file: it has no second line")
	}
	if r, err = decodeRecord(n.kind, n.id, first); err != nil {
		return instanceRecord{}, 0, err
	}
	if r.Epoch != n.epoch || r.Holder != n.holder {
		return instanceRecord{}, 0, fault.New(fault.Invalid, "file: it is of another registration than its name")
	}
	var b fileBeat
	if err := json.Unmarshal(second, &b); err != nil {
		return instanceRecord{}, 0, fault.New(fault.Invalid, "file: second line: %w", err)
	}
	return r, b.Count, nil
}

// listFiles returns the names of the files that match. It skips everything that is not a regular
// file, such as a pipe, on which a read would block.
func (f *FileRegistry) listFiles(match func(leaseFileName) bool) ([]leaseFileName, error) {
	entries, err := os.ReadDir(f.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var names []leaseFileName
	for _, e := range entries {
		if n, ok := parseFileName(e.Name()); ok && e.Type().IsRegular() && match(n) {
			names = append(names, n)
		}
	}
	return names, nil
}

func (f *FileRegistry) filePath(n leaseFileName) string { return filepath.Join(f.cfg.Dir, n.String()) }

// readLeaseFile reads at most one byte more than a valid file has. The file may have been replaced
// by something else since it was listed.
func (f *FileRegistry) readLeaseFile(n leaseFileName) ([]byte, error) {
	if info, err := os.Lstat(f.filePath(n)); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file but of type %s", n, info.Mode().Type())
	}
	file, err := os.Open(f.filePath(n))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFile+1))
}

// replaceFile replaces a file atomically: readers see the old or the new content. An existing file
// at the temporary name is a leftover, or was planted: a symbolic link would redirect the write,
// and a pipe would block it.
func (f *FileRegistry) replaceFile(n leaseFileName, data []byte) (err error) {
	if err := os.MkdirAll(f.cfg.Dir, 0o755); err != nil {
		return err
	}
	temp := filepath.Join(f.cfg.Dir, tempPrefix+n.holder)
	if err := writeNewFile(temp, data); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(temp)))
	}
	if err := os.Rename(temp, f.filePath(n)); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(temp)))
	}
	return nil
}

// writeNewFile creates the file at path, which it removes first if it exists.
func writeNewFile(path string, data []byte) error {
	if err := ignoreMissing(os.Remove(path)); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// removeFile removes a file; a missing file is no error.
func (f *FileRegistry) removeFile(n leaseFileName) error {
	return ignoreMissing(os.Remove(f.filePath(n)))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Register implements Registry. To find out whether a registration with an equal or higher epoch is
// alive, it must watch whether that file changes: for a TTL if the process is dead, for about a
// third of a TTL if it is alive.
func (f *FileRegistry) Register(ctx context.Context, in Instance) (Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := f.newLease(in)
	if err != nil {
		return nil, err
	}
	if err := l.claimInstance(ctx); err != nil {
		return nil, err
	}
	if err := f.leases.startLease(l.lease, l.file.holder); err != nil {
		return nil, errors.Join(err, f.removeFile(l.file))
	}
	f.wakeWatches()
	return l, nil
}
