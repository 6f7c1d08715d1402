// Package xfer is the plane for bulk data: KV blocks, embeddings, tensors. A process which wants
// bytes, the owner, opens a transfer and hands its descriptor to another process, the writer, by
// any other plane. The writer sends the bytes and a note; the owner has them when
// [Transfer.Wait] returns nil.
//
// The memory of the owner is never mapped by another process. In shared memory each transfer has
// a region of its own, from which the owner copies: a writer which is paused, and resumes after
// the owner gave up, writes to a region which has no reader any more. Over TCP the owner reads
// from a connection of the transfer alone. Every chunk carries a digest, and the owner computes
// it over its own copy.
//
// Small transfers, of one chunk and one call of [Write], share a connection, and so system calls and
// wake-ups. Each has a piece of its region to itself. After a failure the region is never used again.
//
// Digests guard against torn, lost and mixed-up bytes. Writer and owner trust each other: an XXH3
// digest is no protection against forgery.
package xfer

import (
	"context"
	"time"
)

// Limits of every plane, whatever its transport.
const (
	// MaxSize bounds the bytes of one transfer.
	MaxSize = 1 << 40
	// MaxNote bounds the note which a writer sends with its bytes, in bytes.
	MaxNote = 64 << 10
	// ChunkSize is the unit in which bytes are sent, digested and acknowledged. A chunk fits the L2
	// cache of a core, so that digesting it after copying reads no memory.
	ChunkSize = 256 << 10
)

// Plane moves bulk data between processes. Implementations are safe for concurrent use.
type Plane interface {
	// Run serves writers until ctx ends; then it aborts the open transfers, closes all connections,
	// waits for its goroutines and returns nil. It calls ready, if not nil, once writers can reach
	// this process.
	Run(ctx context.Context, ready func()) error
	// Expect opens a transfer, which one writer can fulfil once. It is Unavailable unless Run is
	// ready, and Overloaded while as many transfers are open as the plane allows.
	Expect(in Incoming) (*Transfer, error)
	// Addresses returns where writers reach this process, the fastest way first. It is empty unless Run is ready. The
	// caller must not change it.
	Addresses() []OwnerAddress
	// Open claims the transfer which the descriptor names. It waits, until ctx ends, while the
	// writers of this process already use as many connections to the owner as the plane allows.
	// ctx governs the whole transfer: if it ends first, the transfer is aborted.
	//
	// Open is Unavailable if the owner cannot be reached. A descriptor which was used before, or
	// whose transfer is over, is NotFound; that of an owner's earlier life is Conflict. Either may
	// become known only at Write or Commit.
	Open(ctx context.Context, d Descriptor) (TransferWriter, error)
}

// TransferWriter sends the bytes of one transfer, in order. It is not safe for concurrent use. A TransferWriter ends
// with Commit, with Abort, and with the first error of Write. Bytes may be changed once Write
// returned.
type TransferWriter interface {
	// Write sends the next bytes. It blocks while the owner has not taken what was sent before, up
	// to the plane's window.
	Write(p []byte) error
	// Commit sends note after the last byte, and returns nil when the owner has all bytes, has
	// verified them, and announced them. After an Unavailable or a context's error it is unknown
	// whether the owner has them; after any other it has not.
	Commit(note []byte) error
	// Abort gives up; the owner learns the reason. It does nothing after Commit or Abort.
	Abort(reason error)
}

// Incoming describes a transfer to its owner.
type Incoming struct {
	// Into receives the bytes, one slice after the other. Slices which adjoin in memory count as
	// one. The plane writes to them until the transfer is over, and reads them to verify digests.
	// Their contents are undefined unless Wait returned nil.
	Into [][]byte
	// Lease is how long the writer may be silent: before its first byte, between chunks and before
	// its note. Each chunk renews it. 0 means DefaultLease.
	Lease time.Duration
	// OnProgress, if not nil, is called with the verified bytes so far after every chunk, by a
	// goroutine of the plane, which waits for it. It must not call Wait or Abort.
	OnProgress func(verified int64)
}

// DefaultLease is the lease of a transfer which states none.
const DefaultLease = 30 * time.Second

// Receipt describes a transfer which ended well.
type Receipt struct {
	Bytes  int64
	Digest Digest // of all bytes
	Note   []byte // of the writer
	// Transport is the transport which the writer chose.
	Transport Transport
	// Took is the time from the writer's claim to the end.
	Took time.Duration
}

// Write sends all of src over p, with a note, as the transfer which d names.
func Write(ctx context.Context, p Plane, d Descriptor, note []byte, src ...[]byte) error {
	runs := src
	if len(src) > 1 {
		runs = mergeAdjoining(src)
	}
	if o, ok := p.(wholeOpener); ok && fitsWhole(d, note, runs) {
		for {
			l, err := o.openWhole(ctx, d)
			if err != nil {
				return err
			}
			if l == nil {
				break
			}
			if err := l.writeWhole(ctx, d, note, runs); err != errLaneClosing {
				return err
			}
		}
	}
	w, err := p.Open(ctx, d)
	if err != nil {
		return err
	}
	last, joins := w.(lastWriter)
	for i, run := range runs {
		if joins && i == len(runs)-1 {
			return last.writeLast(run, note)
		}
		if err := w.Write(run); err != nil {
			return err
		}
	}
	return w.Commit(note)
}

// wholeOpener is a Plane which has shared connections for small transfers.
type wholeOpener interface {
	// openWhole returns a connection to the owner, whose writeWhole must be called once. It is nil if Open is
	// to be used instead.
	openWhole(ctx context.Context, d Descriptor) (*sharedLane, error)
}

// fitsWhole reports whether a transfer with these bytes can be a WHOLE.
func fitsWhole(d Descriptor, note []byte, src [][]byte) bool {
	size := int64(0)
	for _, s := range src {
		size += int64(len(s))
	}
	return size == d.Size && size > 0 && size <= ChunkSize && len(note) <= maxWholeNote
}
