// Package feed keeps one ordered feed of KV events per worker and rank honest.
//
// A worker numbers its events from 1, consecutively, within an epoch: one life of
// the worker. It publishes them in [Record]s. A [Tracker] looks at each record
// that arrives and says what may be applied to the index: nothing twice, nothing
// of an earlier life, and nothing at all after a loss, until the worker has
// described its whole cache again. Such a description begins with a Cleared
// event and continues in the same numbering, so it needs no place of its own in
// the protocol: any record with a Cleared event heals what came before it.
//
// The byte layout of a record is in docs/format/kvevent.md.
package feed

import "penstock/core/kv"

// Record is a run of consecutive events of one worker, as published.
type Record struct {
	Worker kv.Worker
	// Epoch numbers the worker's lives; a restarted worker has a larger one.
	Epoch uint64
	// First is the sequence number of Events[0], at least 1. A record without
	// events says that First is the number that the next event will have: an
	// idle worker may send one so that the loss of its last record is noticed.
	First uint64
	// BlockSize is the number of tokens in a block of this worker.
	BlockSize uint32
	Events    []kv.Event

	// The others are what the events of a decoded record point into.
	blocks []kv.BlockHash
	seqs   []kv.SeqHash
	labels []kv.MoELabel
	moved  []kv.SeqHash
	access []kv.Worker
}

// next returns the sequence number after the last event.
func (r *Record) next() uint64 { return r.First + uint64(len(r.Events)) }
