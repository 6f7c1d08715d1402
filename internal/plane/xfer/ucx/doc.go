// Package ucx makes connections over UCX, a library which moves bytes by RDMA, shared memory or TCP,
// whatever both hosts have. A connection is a stream of bytes, as one of TCP is.
//
// It is there only in builds with cgo and the tag ucx. They need the headers of UCX (Debian's libucx-dev); the
// library is loaded when the first worker opens, so that such a binary also starts without it. In other builds
// every function fails with [ErrNotBuilt].
//
// Bytes go in active messages, each sent at once ("eager"): UCX copies them into memory of its own, and no
// process learns an address in another one. So a process which is paused and resumes cannot write to memory
// of a peer which has given up. The price is one copy more than with rendezvous.
//
// UCX has neither encryption nor authentication. A client which reaches its ports can do to the process
// what UCX lets peers do; it belongs on networks whose hosts trust each other.
//
// docs/format/xfer.md documents the messages.
package ucx

import "errors"

// ErrNotBuilt says that this binary has no UCX.
var ErrNotBuilt = errors.New("this binary was built without UCX: build it with CGO_ENABLED=1 and -tags ucx, where libucx-dev is installed")
