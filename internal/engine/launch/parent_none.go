//go:build !linux

package launch

// EndsWithParent reports whether an engine also ends when this process is killed: this system cannot.
const EndsWithParent = false
