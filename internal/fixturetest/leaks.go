package fixturetest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// RunTests runs the tests of a package and ends the process. They fail if they leave goroutines which do not end within
// a minute: on a busy machine what was closed needs some of it.
func RunTests(m *testing.M) {
	code := m.Run()
	if code == 0 {
		left := goleak.Find()
		for end := time.Now().Add(time.Minute); left != nil && time.Now().Before(end); {
			left = goleak.Find() // which waits
		}
		if left != nil {
			fmt.Fprintln(os.Stderr, "the tests leave goroutines:", left)
			code = 1
		}
	}
	os.Exit(code)
}
