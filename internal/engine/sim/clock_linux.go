package sim

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timerfdSleeper is a sleeper with a timer of the kernel, for which the runtime waits as for a socket: it
// wakes on time, without a thread of its own.
type timerfdSleeper struct {
	file       *os.File
	fd         int // of file, which keeps it open
	stopCancel func() bool
	expiry     [8]byte
}

// newPreciseSleeper returns a timerfdSleeper that also ends with ctx; nil if not available.
func newPreciseSleeper(ctx context.Context) sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil
	}
	a := &timerfdSleeper{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}
	if a.file.SetReadDeadline(time.Time{}) != nil { // the runtime cannot poll it
		a.file.Close()
		return nil
	}
	a.stopCancel = context.AfterFunc(ctx, func() {
		_ = a.file.SetReadDeadline(time.Unix(1, 0)) // fails only when closed
	})
	return a
}

func (a *timerfdSleeper) sleep(ctx context.Context, d time.Duration) error {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(a.fd, 0, &at, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	if _, err := a.file.Read(a.expiry[:]); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

func (a *timerfdSleeper) close() {
	a.stopCancel()
	a.file.Close()
}
