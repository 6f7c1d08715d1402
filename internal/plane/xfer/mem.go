package xfer

import (
	"context"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"penstock/core/fault"
)

// MemPlane moves bulk data within a process: one copy.
type MemPlane struct {
	*registry
	addr string // of this plane alone: a descriptor of another process does not lead here
}

var _ Plane = (*MemPlane)(nil)

// NewMemPlane returns a plane for the owners and writers of this process, which must share it.
func NewMemPlane(cfg Config) (*MemPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	id := newTransferID()
	return &MemPlane{registry: newRegistry(cfg.Transfers, cfg.Observer), addr: hex.EncodeToString(id[:])}, nil
}

// Run implements Plane.
func (p *MemPlane) Run(ctx context.Context, ready func()) error {
	e := OwnerAddress{Mem, p.addr}
	p.addEndpoint(e)
	if ready != nil {
		ready()
	}
	<-ctx.Done()
	p.removeEndpoint(e)
	return nil
}

// errOtherMemory is the outcome of a descriptor of another process.
var errOtherMemory = lastingError{fault.New(fault.Unavailable, "open transfer: it is another process's memory")}

// Open implements Plane.
func (p *MemPlane) Open(ctx context.Context, d Descriptor) (TransferWriter, error) {
	switch addr, ok := d.endpoint(Mem); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !ok:
		return nil, errNoWay(d)
	case addr != p.addr:
		return nil, errOtherMemory
	}
	w := &memWriter{observer: p.observer, began: time.Now()}
	w.mu.Lock() // interrupt waits until w is complete
	defer w.mu.Unlock()
	t, err := p.claimTransfer(beginHeader{epoch: d.epoch, id: d.id, size: uint64(d.Size)}, Mem, w.interrupt)
	if err != nil {
		return nil, err
	}
	w.transfer = t
	w.sink.start(t)
	w.stop = context.AfterFunc(ctx, func() { w.endWith(ctx.Err()) })
	return w, nil
}

// memWriter copies into the memory of the owner.
type memWriter struct {
	observer Observer
	began    time.Time
	mu       sync.Mutex // guards all that follows, and the owner's memory while it is written
	transfer *Transfer
	stop     func() bool // detaches the context of Open
	sink     sink
	fill     int // bytes of the current chunk which were copied
	pieces   [][]byte
	over     bool
	err      error
}

var _ TransferWriter = (*memWriter)(nil)

// interrupt makes the writer let go of the owner's memory.
func (w *memWriter) interrupt() { w.endWith(newFailure(Aborted, "transfer: it was aborted")) }

// endWith ends the transfer with err, unless it is over. The owner's reason, if it was first, wins.
func (w *memWriter) endWith(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(err)
}

func (w *memWriter) endLocked(err error) {
	if w.over {
		return
	}
	reason := err
	if isContextError(err) { // the owner's context has not ended
		reason = newFailure(Aborted, "transfer: the writer has aborted it: %v", err)
	}
	w.over, w.err = true, w.transfer.release(reason)
	if w.err == reason {
		w.err = err
	}
	w.stop()
	w.reportLocked()
}

func (w *memWriter) reportLocked() {
	w.observer.ObserveTransfer(Report{
		Side: WriterSide, Transport: Mem, Outcome: OutcomeOf(w.err), Bytes: int64(w.sink.offset), Took: time.Since(w.began),
	})
}

// Write implements Writer.
func (w *memWriter) Write(p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkOpenLocked(); err != nil {
		return err
	}
	size := uint64(w.transfer.desc.Size)
	if uint64(len(p)) > size-w.sink.offset-uint64(w.fill) {
		w.endLocked(newFailure(Invalid, "write: more than the %d bytes of the transfer", size))
		return w.err
	}
	for len(p) > 0 {
		n, err := w.copyPieceLocked(p)
		if err != nil {
			w.endLocked(err)
			return w.err
		}
		p = p[n:]
	}
	return nil
}

func (w *memWriter) checkOpenLocked() error {
	if w.over && w.err == nil {
		return newFailure(Invalid, "write: the transfer is over")
	}
	return w.err
}

// copyPieceLocked copies the beginning of p into the current chunk, and returns its length.
func (w *memWriter) copyPieceLocked(p []byte) (int, error) {
	h := chunkHeader{offset: w.sink.offset, size: uint32(chunkLength(w.sink.offset, uint64(w.transfer.desc.Size)))}
	if w.fill == 0 {
		pieces, err := w.sink.reserve(h)
		if err != nil {
			return 0, err
		}
		w.pieces = append(w.pieces[:0], pieces...)
	}
	n := copy(w.pieces[0], p)
	if w.pieces[0] = w.pieces[0][n:]; len(w.pieces[0]) == 0 {
		w.pieces = w.pieces[1:]
	}
	if w.fill += n; w.fill < int(h.size) {
		return n, nil
	}
	w.fill = 0
	h.digest = digestSlices(w.sink.pieces) // within a process there is nothing to compare it with
	return n, w.sink.acceptChunk(h)
}

// Commit implements Writer.
func (w *memWriter) Commit(note []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.checkOpenLocked(); err != nil {
		return err
	}
	var err error
	if len(note) > MaxNote {
		err = newFailure(Invalid, "commit: a note of %d bytes, at most %d are allowed", len(note), MaxNote)
	} else {
		total := w.sink.total // summing ends it
		err = w.sink.complete(total.sum(), note)
	}
	if err != nil {
		w.endLocked(err)
		return w.err
	}
	w.over = true
	w.stop()
	w.reportLocked()
	return nil
}

// Abort implements Writer.
func (w *memWriter) Abort(reason error) {
	if reason == nil {
		reason = errors.New("no reason was given")
	}
	w.endWith(newFailure(Aborted, "transfer: the writer has aborted it: %w", reason))
}
