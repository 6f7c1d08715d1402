package enginefeed

import (
	"errors"

	"penstock/core/kv"
)

// Snapshot is what SGLang answers who asks for the hashes in its cache. It has no tokens, so it
// confirms or trims what is known, and adds nothing. The zero value takes the first message.
type Snapshot struct {
	Header SnapshotHeader
}

// SnapshotHeader says at which point of the feed a snapshot was taken.
type SnapshotHeader struct {
	Epoch       string // of the publisher
	Rank        int64
	Resume      uint64 // the number of the first batch after the snapshot
	Barrier     uint64 // the number of the message that marks it in the feed
	BarrierID   string // what that message is marked with
	RecordCount int
}

// SnapshotRequest are the frames that ask for a snapshot.
func SnapshotRequest() [][]byte { return [][]byte{nil, []byte("snapshot-v1")} }

// Add takes the frames of the next message. done says that the snapshot is whole.
func (s *Snapshot) Add(frames [][]byte) (done bool, err error) {
	return false, errors.New("enginefeed: not built yet")
}

// Has reports whether the snapshot has a block. It may be asked once the snapshot is whole.
func (s *Snapshot) Has(h kv.EngineHash) bool { return false }
