package enginetest

import (
	"sync"
	"testing"
)

// Gate stands before what an engine computes, so that a test decides when it does.
type Gate struct {
	// Enter receives one value when a computation begins, which goes on when Leave
	// has one.
	Enter, Leave chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{make(chan struct{}), make(chan struct{})} }

// Pass waits until the test lets the caller through.
func (g *Gate) Pass() {
	g.Enter <- struct{}{}
	<-g.Leave
}

// Open lets everything through from now on, until the test ends.
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
