package node

import (
	"errors"

	"golang.org/x/sys/windows"
)

// fileLimit is none here.
func fileLimit() (n uint64, known bool) { return 0, false }

// inUse reports whether listening failed because somebody else listens.
func inUse(err error) bool { return errors.Is(err, windows.WSAEADDRINUSE) }
