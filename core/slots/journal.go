package slots

import (
	"time"

	"penstock/core/kv"
)

// Journal is told of each change to the reservations of a table that were made there,
// at the moment of the change and in order. It must not call the table but through the
// Ref, and that only to look.
type Journal interface {
	// Reserved tells of a new reservation. The number that it returns, above 0, names
	// it from then on.
	Reserved(r Ref) (number uint64)
	// Prefilled says that the prompt has been computed. It is called once at most, and
	// not for a prompt of which nothing was left to compute.
	Prefilled(number uint64)
	// Grown says how many tokens have been generated in all.
	Grown(number uint64, output int)
	// Freed says that the reservation has ended, however it did.
	Freed(number uint64)
}

// Reservation is what a reservation counts for.
type Reservation struct {
	Worker kv.Worker
	// Chain are SeqHashes of the leading full blocks of the prompt. Blocks behind
	// them count as shared with no other request.
	Chain        []kv.SeqHash
	PromptTokens int
	// PrefillTokens are those still to be computed.
	PrefillTokens int
	// OutputTokens were generated so far, ExpectedOutput are expected in all; 0 if
	// that is not known.
	OutputTokens, ExpectedOutput int
	// ExpectedPrefill is as in [Demand].
	ExpectedPrefill time.Duration
}

// Ref is a reservation, for as long as it lasts: of one that has ended it knows
// nothing, and does nothing. The zero value is of none.
type Ref struct {
	table *Table
	at    int32
	life  uint32
}

// View returns what the reservation counts for now, if it lasts. The chain belongs to
// the table, and is valid until the next call that changes it.
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

// BlockSize returns the number of tokens in a block of the reservation's table; 0 of the
// zero value.
func (r Ref) BlockSize() int {
	if r.table == nil {
		return 0
	}
	return r.table.cfg.BlockSize
}

// Prefilled is [Table.Prefilled] of the reservation.
func (r Ref) Prefilled() bool {
	if r.request() == nil {
		return false
	}
	r.table.computed(r.at)
	return true
}

// Output says how many tokens were generated in all. Fewer than before change
// nothing.
func (r Ref) Output(tokens int) bool {
	q := r.request()
	if q == nil {
		return false
	}
	r.table.grow(r.at, tokens-q.output)
	return true
}

// Free is [Table.Free] of the reservation.
func (r Ref) Free() bool {
	if r.request() == nil {
		return false
	}
	r.table.free(r.at)
	return true
}

// request returns the record; nil once it has ended.
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
