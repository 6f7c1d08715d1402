package node

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// roomyGarbage is how much garbage may be made before it is collected, however little
	// lives. A process that only routes has some dozens of megabytes alive and makes tens of
	// kilobytes of garbage with each request: collected at twice what lives, a tenth of
	// its work under load would be collecting.
	roomyGarbage = 192 << 20
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
	room := uint64(roomyGarbage)
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
// collected when room was filled with garbage, or at twice what lives if that is more.
func gcPercent(live, room uint64) int {
	const least = 4 << 20 // less than the runtime collects at all
	return max(stockPercent, int(min(room, 1<<40)*100/max(live, least)))
}
