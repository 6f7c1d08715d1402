package enginetest

import (
	"sync"
	"testing"
)

// Gate blocks an engine's computations, so that a test decides when they happen.
type Gate struct {
	// Enter receives one value when a computation starts; it continues when Leave receives one.
	Enter, Leave chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{make(chan struct{}), make(chan struct{})} }

// AwaitLeave waits until the test lets the caller continue.
func (g *Gate) AwaitLeave() {
	g.Enter <- struct{}{}
	<-g.Leave
}

// Open lets every computation through from now on, until the test ends.
func (g *Gate) Open(t testing.TB) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-g.Enter:
				g.Leave <- struct{}{}
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}
