package node

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"penstock/internal/node/engines"
)

const (
	// gcHeadroom is how much garbage may accumulate before a collection, even with a small live heap. A
	// process which only routes has some dozens of megabytes live, and makes tens of kilobytes of garbage per
	// request: if it collected at twice the live heap, it would spend a tenth of its work under load on
	// collection.
	gcHeadroom = 192 << 20
	// gcMemoryShare limits the headroom to 1/gcMemoryShare of the machine's memory.
	gcMemoryShare = 16
	// defaultGCPercent is the runtime's default.
	defaultGCPercent = 100
	gcTuneInterval   = time.Second
)

// tuneGC adjusts the garbage collector's target until ctx ends. It changes nothing if GOGC is set.
func tuneGC(ctx context.Context) {
	old := debug.SetGCPercent(defaultGCPercent)
	defer debug.SetGCPercent(old)
	if old != defaultGCPercent { // the operator set it
		debug.SetGCPercent(old)
		<-ctx.Done()
		return
	}
	room := uint64(gcHeadroom)
	if m := engines.MemoryLimit(); m > 0 {
		room = min(room, m/gcMemoryShare)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(gcTuneInterval)
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

// gcPercent is the heap growth over the live heap, in percent, at which room bytes of garbage have
// accumulated, or twice the live heap if that is more.
func gcPercent(live, room uint64) int {
	const least = 4 << 20 // below it the runtime does not collect at all
	return max(defaultGCPercent, int(min(room, 1<<40)*100/max(live, least)))
}
