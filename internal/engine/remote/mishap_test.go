package remote

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMishap checks that continuing incidents are new once, and new again after a pause.
func TestMishap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m mishap
		if m.lately() {
			t.Error("nothing has happened")
		}
		news := 0
		for range 100 {
			if m.happened() {
				news++
			}
			time.Sleep(recent / 2) // of virtual time
		}
		if news != 1 || m.n != 100 || !m.lately() {
			t.Errorf("%d times news of %d, lately %v", news, m.n, m.lately())
		}
		time.Sleep(recent) // of virtual time
		if m.lately() || !m.happened() {
			t.Error("what was long ago still counts")
		}
	})
}
