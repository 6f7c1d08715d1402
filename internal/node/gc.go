package node

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// roomyHeap is how large the heap may grow before it is collected, however little of it
	// lives. A process that only routes has a few dozen megabytes alive and makes some
	// kilobytes of garbage with each request: collected at twice what lives, a tenth of
	// its work under load would be collecting.
	roomyHeap = 192 << 20
	// roomyShare bounds it to a share of the machine's memory.
	roomyShare = 16
	// stockPercent is what the runtime does by itself.
	stockPercent = 100
	tuneEvery    = time.Second
)

// roomy gives the collector room until ctx ends. It leaves it alone where GOGC is set.
func roomy(ctx context.Context) {
	old := debug.SetGCPercent(stockPercent)
	defer debug.SetGCPercent(old)
	if old != stockPercent { // somebody's choice
		debug.SetGCPercent(old)
		<-ctx.Done()
		return
	}
	room := uint64(roomyHeap)
	if m := memory(); m > 0 {
		room = min(room, m/roomyShare)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	for {
		metrics.Read(live)
		debug.SetGCPercent(gcPercent(live[0].Value.Uint64(), room))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// gcPercent is how much the heap may grow over what lives, in percent, so that it is
// collected at room, or at twice what lives if that is more.
func gcPercent(live, room uint64) int {
	const least = 4 << 20 // less than the runtime collects at all
	live = max(live, least)
	return max(stockPercent, int(min(room, 1<<40)*100/live)-100)
}
