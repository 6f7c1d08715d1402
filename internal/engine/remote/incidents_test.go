package remote

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMishap checks that continuing incidents are new once, and new again after a pause.
func TestMishap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m incidents
		if m.isRecent() {
			t.Error("nothing has happened")
		}
		news := 0
		for range 100 {
			if m.record() {
				news++
			}
			time.Sleep(recentWindow / 2) // virtual time (synctest): the next incident is still recent
		}
		if news != 1 || m.n != 100 || !m.isRecent() {
			t.Errorf("%d times news of %d, lately %v", news, m.n, m.isRecent())
		}
		time.Sleep(recentWindow) // virtual time (synctest): the last incident is no longer recent
		if m.isRecent() || !m.record() {
			t.Error("what was long ago still counts")
		}
	})
}
