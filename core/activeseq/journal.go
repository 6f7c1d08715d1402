package activeseq

import (
	"time"

	"penstock/core/kv"
)

// Journal receives each change to the reservations which were made in a table, at the moment of the change
// and in order. It may call the table only through the ReservationRef, and only to read.
type Journal interface {
	// OnReserved reports a new reservation. The returned number, above 0, identifies it in later calls.
	OnReserved(r ReservationRef) (number uint64)
	// OnPrefilled reports that the prompt has been computed. It is called at most once, and not for a prompt
	// with no tokens left to compute.
	OnPrefilled(number uint64)
	// OnGrown reports how many tokens have been generated in total.
	OnGrown(number uint64, output int)
	// OnFreed reports the end of the reservation, for any reason.
	OnFreed(number uint64)
}

// Reservation is the load for which a reservation counts.
type Reservation struct {
	Worker kv.Worker
	// Chain are SeqHashes of the leading full blocks of the prompt. Later blocks count as shared with no
	// other request.
	Chain        []kv.SeqHash
	PromptTokens int
	// PrefillTokens are the prompt tokens still to be computed.
	PrefillTokens int
	// OutputTokens were generated so far; ExpectedOutput are expected in total, 0 if unknown.
	OutputTokens, ExpectedOutput int
	// ExpectedPrefill is as in [Demand].
	ExpectedPrefill time.Duration
}

// ReservationRef refers to a reservation. Once the reservation has ended its methods do nothing and report
// false. The zero value refers to none.
type ReservationRef struct {
	table      *ReservationTable
	index      int32
	generation uint32
}

// Reservation returns the reservation's present state; ok is false once it has ended. The chain belongs to
// the table, and is valid until the next call which changes the table.
func (r ReservationRef) Reservation() (v Reservation, ok bool) {
	q := r.lookupRecord()
	if q == nil {
		return v, false
	}
	return Reservation{
		Worker: q.worker.id, Chain: q.chain, PromptTokens: q.promptTokens, PrefillTokens: q.prefillTokens,
		OutputTokens: q.outputTokens, ExpectedOutput: q.expectedOutput, ExpectedPrefill: q.expectedPrefill,
	}, true
}

// BlockSize returns the number of tokens in a block of the reservation's table; 0 for the zero value.
func (r ReservationRef) BlockSize() int {
	if r.table == nil {
		return 0
	}
	return r.table.cfg.BlockSize
}

// MarkPrefilled is [ReservationTable.MarkPrefilled] for the reservation.
func (r ReservationRef) MarkPrefilled() bool {
	if r.lookupRecord() == nil {
		return false
	}
	r.table.noteAdoptedPrefill(r.index)
	r.table.finishPrefill(r.index)
	return true
}

// SetOutput sets how many tokens were generated in total. A smaller number than before changes nothing.
func (r ReservationRef) SetOutput(tokens int) bool {
	q := r.lookupRecord()
	if q == nil {
		return false
	}
	r.table.growOutput(r.index, tokens-q.outputTokens)
	return true
}

// Free is [ReservationTable.Free] for the reservation.
func (r ReservationRef) Free() bool {
	if r.lookupRecord() == nil {
		return false
	}
	r.table.freeAt(r.index)
	return true
}

// lookupRecord returns the record; nil once the reservation has ended.
func (r ReservationRef) lookupRecord() *reservationRecord {
	if r.table == nil {
		return nil
	}
	q := &r.table.records[r.index]
	if q.worker == nil || q.generation != r.generation {
		return nil
	}
	return q
}
