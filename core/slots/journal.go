package slots

import (
	"time"

	"penstock/core/kv"
)

// Journal receives each change to the reservations which were made in a table, at the moment of the change
// and in order. It may call the table only through the ReservationRef, and only to read.
type Journal interface {
	// OnReserved reports a new reservation. The returned number, above 0, identifies it in later calls.
	Reserved(r Ref) (number uint64)
	// OnPrefilled reports that the prompt has been computed. It is called at most once, and not for a prompt
	// with no tokens left to compute.
	Prefilled(number uint64)
	// OnGrown reports how many tokens have been generated in total.
	Grown(number uint64, output int)
	// OnFreed reports the end of the reservation, for any reason.
	Freed(number uint64)
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
type Ref struct {
	table *Table
	at    int32
	life  uint32
}

// Reservation returns the reservation's present state; ok is false once it has ended. The chain belongs to
// the table, and is valid until the next call which changes the table.
func (r Ref) View() (v Reservation, ok bool) {
	q := r.request()
	if q == nil {
		return v, false
	}
	return Reservation{
		Worker: q.worker.id, Chain: q.chain, PromptTokens: q.prompt, PrefillTokens: q.prefill,
		OutputTokens: q.output, ExpectedOutput: q.expect, ExpectedPrefill: q.duration,
	}, true
}

// BlockSize returns the number of tokens in a block of the reservation's table; 0 for the zero value.
func (r Ref) BlockSize() int {
	if r.table == nil {
		return 0
	}
	return r.table.cfg.BlockSize
}

// MarkPrefilled is [ReservationTable.MarkPrefilled] for the reservation.
func (r Ref) Prefilled() bool {
	if r.request() == nil {
		return false
	}
	r.table.computed(r.at)
	return true
}

// SetOutput sets how many tokens were generated in total. A smaller number than before changes nothing.
func (r Ref) Output(tokens int) bool {
	q := r.request()
	if q == nil {
		return false
	}
	r.table.grow(r.at, tokens-q.output)
	return true
}

// Free is [ReservationTable.Free] for the reservation.
func (r Ref) Free() bool {
	if r.request() == nil {
		return false
	}
	r.table.free(r.at)
	return true
}

// lookupRecord returns the record; nil once the reservation has ended.
func (r Ref) request() *request {
	if r.table == nil {
		return nil
	}
	q := &r.table.requests[r.at]
	if q.worker == nil || q.life != r.life {
		return nil
	}
	return q
}
