package remote

import (
	"encoding/binary"
	"testing"

	"penstock/core/engineevents"
	"penstock/core/kv"
)

// TestFeedOfARestart checks that when an engine answers again, its cache is cleared before its first batch if
// its events were lost too, without replay; but not while the events are connected.
func TestFeedOfARestart(t *testing.T) {
	src, err := NewEventFeed(EventFeedConfig{Table: engineevents.Config{BlockSize: 16, EngineBlockSize: 16}})
	if err != nil {
		t.Fatal(err)
	}
	f := src.(*eventFeed)
	message := func(seq uint64) [][]byte {
		return [][]byte{nil, binary.BigEndian.AppendUint64(nil, seq), {0x92, 0x00, 0x90}} // no event, at time 0
	}
	forgets := func() int {
		n := 0
		for _, e := range f.engineRestarted(nil) {
			if e.Kind == kv.Cleared {
				n++
			}
		}
		return n
	}
	if n := forgets(); n != 0 {
		t.Errorf("%d times, and nothing was known", n)
	}
	f.machine.Connected(0, nil)
	f.machine.HandleLive(0, message(0), nil)
	f.machine.HandleLive(0, message(1), nil)
	if n := forgets(); n != 0 {
		t.Errorf("%d times, while its events come", n)
	}
	f.machine.Disconnected(1, nil)
	f.machine.Connected(2, nil)
	if n := forgets(); n != 1 {
		t.Errorf("%d times after the subscription broke, want once", n)
	}
	if n := forgets(); n != 0 {
		t.Errorf("%d times again", n)
	}
	effects := f.machine.HandleLive(3, message(0), nil)
	if h := f.machine.Health(); h.Restarts != 1 || h.Unrepaired != 0 || h.Late || len(effects) == 0 {
		t.Errorf("the new life begins with %+v, %v", h, effects)
	}
}
