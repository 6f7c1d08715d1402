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
			time.Sleep(recentWindow / 2) // of virtual time
		}
		if news != 1 || m.n != 100 || !m.isRecent() {
			t.Errorf("%d times news of %d, lately %v", news, m.n, m.isRecent())
		}
		time.Sleep(recentWindow) // of virtual time
		if m.isRecent() || !m.record() {
			t.Error("what was long ago still counts")
		}
	})
}
