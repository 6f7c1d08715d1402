package doctor

import (
	"errors"

	"golang.org/x/sys/windows"
)

// fileLimit does not exist on this system.
func fileLimit() (n uint64, known bool) { return 0, false }

// isAddrInUse reports whether listening failed because another socket listens there.
func isAddrInUse(err error) bool { return errors.Is(err, windows.WSAEADDRINUSE) }
