package batch

import (
	"testing"

	"penstock/internal/engine/enginetest"
)

// TestLoadDuringBatch: a batch that takes long is load while it is computed.
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
