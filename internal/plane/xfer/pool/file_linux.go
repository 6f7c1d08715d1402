package pool

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/pool"
	"penstock/internal/backoff"
)

// File is the memory of a pool, mapped into this process.
type File struct {
	file  *os.File
	bytes []byte
	start time.Time
	mu    struct {
		sync.Mutex
		pool *pool.View
		lost error // why the directory cannot be used any more
	}
}

// Open maps the pool at a path. The first process makes it; others wait for that, until ctx ends. An existing file has to
// have the same size, and to belong to this user or to root. See pool.Open for the errors of another Config.
func Open(ctx context.Context, path string, size int, cfg pool.Config) (*File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	f := &File{file: file, start: time.Now()}
	if err := f.openLocked(ctx, size, cfg); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openLocked makes, maps and opens the pool while no other process makes it. A process which is killed gives the lock back.
func (f *File) openLocked(ctx context.Context, size int, cfg pool.Config) error {
	path := f.file.Name()
	fd := int(f.file.Fd())
	var locking error
	if err := backoff.Poll(ctx, 10*time.Millisecond, func() bool {
		locking = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		return !errors.Is(locking, unix.EWOULDBLOCK) && !errors.Is(locking, unix.EINTR)
	}); err != nil {
		return fmt.Errorf("open pool %s: another process makes it: %w", path, err)
	}
	if locking != nil {
		return fmt.Errorf("open pool %s: lock: %w", path, locking)
	}
	defer unix.Flock(fd, unix.LOCK_UN)
	info, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	regular := info.Mode().IsRegular()
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fault.New(fault.Forbidden, "pool %s belongs to user %d: use a file of this user", path, owner)
	}
	switch have := info.Size(); {
	case !regular:
	case have == 0:
		// Memory which is taken now cannot run out later.
		if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
			_ = f.file.Truncate(0) // best effort: it is made anew
			return fmt.Errorf("make pool %s of %d bytes: %w", path, size, err)
		}
	case have != int64(size):
		return fault.New(fault.Conflict, "pool %s has %d bytes, not %d: give all workers its size, or remove it", path, have, size)
	}
	if f.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map pool %s of %d bytes: %w", path, size, err)
	}
	m, err := pool.MapBytes(f.bytes)
	if err != nil {
		return err
	}
	if regular {
		m.Data = fileData{f.file}
	}
	return f.guard(func() error {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		err := pool.Format(m, cfg, binary.NativeEndian.Uint64(random[:])|1)
		var fe *fault.Error
		if err == nil || errors.As(err, &fe) && fe.Code == fault.Conflict { // it is a pool already
			f.mu.pool, err = pool.Open(m, cfg)
		}
		return err
	})
}

// Use calls use with the pool and the time, while no other goroutine uses it. The error is that of use, or PoolLost if the
// directory cannot be accessed any more, now and from then on.
func (f *File) Use(use func(p *pool.View, now kv.Mono) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.lost != nil {
		return f.mu.lost
	}
	lost := true
	err := f.guard(func() error {
		err := use(f.mu.pool, kv.Mono(time.Since(f.start)))
		lost = false
		return err
	})
	if lost {
		f.mu.lost = err
	}
	return err
}

// Attach calls use with the memory of an acquired block, in place. PoolLost says that it cannot be accessed.
func (f *File) Attach(ref pool.BlockRef, use func(block []byte)) error {
	f.mu.Lock()
	at, n := f.mu.pool.BlockAt(ref), f.mu.pool.BlockBytes()
	f.mu.Unlock()
	return f.guard(func() error {
		use(f.bytes[at : at+n : at+n])
		return nil
	})
}

// guard calls use, and makes a fault of an access to the mapped memory an error.
func (f *File) guard(use func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		at, ok := r.(interface{ Addr() uintptr })
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(f.bytes)))
		if !ok || at.Addr() < begin || at.Addr()-begin >= uintptr(len(f.bytes)) {
			panic(r)
		}
		err = fault.New(fault.PoolLost, "pool %s: its memory is gone, as of a file which was truncated: remove it", f.file.Name())
	}()
	return use()
}

// errClosed is why a pool cannot be used after Close.
var errClosed = errors.New("pool: the file is closed")

// Close unmaps the pool, whose blocks may not be attached any more. A use which hangs keeps the memory until the process
// ends.
func (f *File) Close() {
	if !f.mu.TryLock() {
		return
	}
	defer f.mu.Unlock()
	f.mu.lost = errClosed
	if f.bytes != nil {
		_ = unix.Munmap(f.bytes)
		f.bytes = nil
	}
	_ = f.file.Close()
}

// fileData copies blocks by the file, so that blocks which are beyond its end are errors.
type fileData struct{ file *os.File }

// CopyOut implements pool.Data.
func (d fileData) CopyOut(dst []byte, at int) error {
	_, err := d.file.ReadAt(dst, int64(at))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// CopyIn implements pool.Data.
func (d fileData) CopyIn(at int, src []byte) error {
	_, err := d.file.WriteAt(src, int64(at))
	return err
}
