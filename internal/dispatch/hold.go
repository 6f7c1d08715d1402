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
	// FreeReservation ends the attempt's reservation.
	FreeReservation(id string, attempt uint32)
}

// HoldReservation renews the reservation of an attempt until the returned function frees it. That
// function may be called once.
func HoldReservation(r Reservations, id string, attempt uint32) (free func()) {
	h := &heldReservation{reservations: r, id: id, attempt: attempt}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.timer = time.AfterFunc(RenewInterval, h.renewReservation)
	return h.freeReservation
}

// heldReservation is the reservation of a running attempt.
type heldReservation struct {
	reservations Reservations
	id           string
	attempt      uint32
	mu           struct {
		sync.Mutex
		timer *time.Timer // nil once the reservation is freed
	}
}

// renewReservation runs in the timer's goroutine, which free may overtake: renewing a freed reservation has no
// effect.
func (h *heldReservation) renewReservation() {
	h.reservations.RenewReservation(h.id, h.attempt)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.timer != nil {
		h.mu.timer.Reset(RenewInterval)
	}
}

func (h *heldReservation) freeReservation() {
	h.mu.Lock()
	h.mu.timer.Stop()
	h.mu.timer = nil
	h.mu.Unlock()
	h.reservations.FreeReservation(h.id, h.attempt)
}
