// Package kvfeed keeps one ordered feed of KV events per worker and rank consistent.
//
// A worker numbers its events from 1, consecutively, within an epoch: one incarnation of the worker. It
// publishes them in [Record]s. A [Tracker] checks each record which arrives and decides what may be applied
// to the index: nothing twice, nothing from an earlier epoch, and nothing at all after a loss, until the
// missing events have arrived or the worker has described its whole cache again. Such a description begins
// with a Cleared event and continues the same numbering, so it needs no separate message: any record with a
// Cleared event repairs what came before it.
//
// The byte layout of a record is in docs/format/kvevent.md.
package kvfeed

import "penstock/core/kv"

// Record is a sequence of consecutive events of one worker, as published.
type Record struct {
	Worker kv.Worker
	// Epoch identifies the worker's incarnation; a restarted worker has a larger one.
	Epoch uint64
	// First is the sequence number of Events[0], at least 1. In a record without events First is the number
	// of the next event: an idle worker may send one so that the loss of its last record is detected.
	First uint64
	// BlockSize is the number of tokens in a block of this worker.
	BlockSize uint32
	Events    []kv.Event

	// The other fields hold the memory of a decoded record's events.
	blocks []kv.BlockHash
	seqs   []kv.SeqHash
	labels []kv.MoELabel
	moved  []kv.SeqHash
	access []kv.Worker
}

// nextSeq returns the sequence number after the last event.
func (r *Record) nextSeq() uint64 { return r.First + uint64(len(r.Events)) }
