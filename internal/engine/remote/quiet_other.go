//go:build !unix

package remote

// nothingToRead cannot check the socket here: a closed connection shows when it is used.
func nothingToRead(uintptr) bool { return true }
