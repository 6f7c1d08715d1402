package dispatch

import (
	"sync"
	"time"
)

// RenewInterval is how often the reservation of a running attempt is renewed. Routers must keep one for
// several times as long.
const RenewInterval = 10 * time.Second

// Reservations are the router's reservations of running attempts.
type Reservations interface {
	// RenewReservation says that an attempt still runs: its reservation does not expire.
	RenewReservation(id string, attempt uint32)
	// FreeReservation ends the attempt's reservation. If the attempt ended well, answer is the number of tokens
	// of its answer, otherwise 0.
	FreeReservation(id string, attempt uint32, answer int)
}

// HoldReservation renews the reservation of an attempt until Free, which may be called once.
func HoldReservation(r Reservations, id string, attempt uint32) *HeldReservation {
	h := &HeldReservation{reservations: r, id: id, attempt: attempt}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.timer = time.AfterFunc(RenewInterval, h.renewReservation)
	return h
}

// HeldReservation is the reservation of a running attempt. One goroutine uses it.
type HeldReservation struct {
	reservations Reservations
	id           string
	attempt      uint32
	answer       int
	mu           struct {
		sync.Mutex
		timer *time.Timer // nil once the reservation is freed
	}
}

// renewReservation runs in the timer's goroutine, which free may overtake: renewing a freed reservation has no
// effect.
func (h *HeldReservation) renewReservation() {
	h.reservations.RenewReservation(h.id, h.attempt)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.timer != nil {
		h.mu.timer.Reset(RenewInterval)
	}
}

// FinishAnswer says that the attempt ended well, with an answer of so many tokens.
func (h *HeldReservation) FinishAnswer(tokens int) { h.answer = tokens }

// Free ends the reservation.
func (h *HeldReservation) Free() {
	h.mu.Lock()
	h.mu.timer.Stop()
	h.mu.timer = nil
	h.mu.Unlock()
	h.reservations.FreeReservation(h.id, h.attempt, h.answer)
}
