package natsd

import (
	"os"

	"golang.org/x/sys/windows"
)

// lockFile takes an exclusive lock on f, or fails at once. It locks a byte far beyond the content,
// so other processes can still read the holder.
func lockFile(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{Offset: 1 << 30})
}
