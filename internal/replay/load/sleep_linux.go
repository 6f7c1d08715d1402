package load

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// sharpenSleep makes the sleeps of the calling thread end on time, instead of up to 50 µs later. If it fails,
// sleeps stay as they were.
func sharpenSleep() {
	runtime.LockOSThread()                             // never unlocked: no other goroutine may use the thread
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // it cannot fail with these arguments, and nothing depends on it
}

// sleepPrecisely uses the system's sleep: the runtime's timers have a resolution of a millisecond. A signal
// ends it early.
func sleepPrecisely(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // the caller checks the clock
}
