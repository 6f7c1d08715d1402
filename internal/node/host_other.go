//go:build !linux

package node

// freeBytes is not known here.
func freeBytes(string) (n uint64, known bool) { return 0, false }

// openFiles is not known here.
func openFiles() (n uint64, known bool) { return 0, false }

// holderOf is not known here.
func holderOf(string) holder { return holder{} }
