package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// account records when a reservation was renewed and freed.
type account struct {
	began time.Time
	log   []string
}

func (a *account) note(what string)                { a.log = append(a.log, time.Since(a.began).String()+" "+what) }
func (a *account) RenewReservation(string, uint32) { a.note("renewed") }
func (a *account) FreeReservation(_ string, _ uint32, answer int) {
	a.note(fmt.Sprint("freed after ", answer))
}

// TestHold: the reservation of a running attempt is renewed while it runs, and not after.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &account{began: time.Now()}
		held := HoldReservation(a, "r", 1)
		time.Sleep(25 * time.Second) // virtual time (synctest): two renewals of 10 s
		held.FinishAnswer(7)
		held.Free()
		time.Sleep(time.Minute) // virtual time (synctest): no renewal may follow
		if want := []string{"10s renewed", "20s renewed", "25s freed after 7"}; !slices.Equal(a.log, want) {
			t.Errorf("have %q, want %q", a.log, want)
		}
	})
}
