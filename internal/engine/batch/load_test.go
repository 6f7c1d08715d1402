package batch

import (
	"testing"
	"testing/synctest"

	"penstock/internal/engine/enginetest"
)

// TestLoadDuringBatch checks that a long batch counts as load while it is computed.
func TestLoadDuringBatch(t *testing.T) {
	e := small(t, nil)
	g := closed(e)
	ctx := enginetest.Start(t, e)
	result := make(chan error, 1)
	go func() {
		_, err := enginetest.Generate(ctx, e, greedy(1, 40, 3))
		result <- err
	}()
	<-g.Enter
	if l := e.Load(); l.Running != 1 || l.UsedBlocks != 10 || l.PrefillTokens != 40 {
		t.Errorf("load during the first batch: %+v", l)
	}
	g.Leave <- struct{}{}
	g.Open(t)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestSignsTellTheQueue checks that a request queued after another one is in the engine's own account, so
// that its wait is not taken for a stall.
func TestSignsTellTheQueue(t *testing.T) { synctest.Test(t, testSignsTellTheQueue) }

func testSignsTellTheQueue(t *testing.T) {
	e := small(t, func(c *Config) { c.MaxSeqs = 1 })
	g := closed(e)
	ctx := enginetest.Start(t, e)
	results := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := enginetest.Generate(ctx, e, greedy(i, 10, 3))
			results <- err
		}()
	}
	synctest.Wait() // one is computed, the other is queued
	<-g.Enter
	synctest.Wait()
	g.Leave <- struct{}{}
	<-g.Enter
	if s := e.HealthReport(); !s.HasCounts || s.Running != 1 || s.Waiting != 1 || s.Progress == 0 {
		t.Errorf("signs of one request that runs and one that waits: %+v", s)
	}
	g.Leave <- struct{}{}
	g.Open(t)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
