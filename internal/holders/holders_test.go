package holders

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

func newIndex(t *testing.T) *Directory {
	t.Helper()
	x, err := New(Config{}, bus.NewMemBus(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func key(n byte) kv.Digest { return kv.Digest{n} }

func record(id kv.WorkerID, epoch, first uint64, events ...embfeed.Event) *embfeed.EventRecord {
	return &embfeed.EventRecord{Worker: kv.Worker{ID: id}, Epoch: epoch, First: first, Events: events}
}

func (x *Directory) holdersOf(n byte) (ids []kv.WorkerID) {
	k := key(n)
	for _, w := range x.AppendHolders(nil, &k) {
		ids = append(ids, w.ID)
	}
	return ids
}

var (
	cleared = embfeed.Event{Kind: embfeed.Cleared}
	added   = func(n byte) embfeed.Event { return embfeed.Event{Kind: embfeed.Added, Key: key(n)} }
)

// TestWorkersComeAndGo: what a worker holds is known from its records, before and after it is listed, and forgotten
// when it goes, starts again, or is not listed in time.
func TestWorkersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIndex(t)
		x.markCaughtUp()
		expect := func(what string, want ...kv.WorkerID) {
			t.Helper()
			if got := x.holdersOf(1); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			if err := x.Check(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		one, two := Worker{kv.Worker{ID: 1}, 5}, Worker{kv.Worker{ID: 2}, 5}
		x.acceptRecord(record(1, 5, 1, cleared, added(1)))
		expect("before it is listed", 1)
		x.SetWorkers([]Worker{one, two})
		expect("listed", 1)
		x.acceptRecord(record(2, 5, 1, cleared, added(1), added(2)))
		x.acceptRecord(record(2, 4, 9, cleared))
		expect("another one", 1, 2)
		x.acceptRecord(record(1, 5, 4, added(3)))
		expect("one missed an event", 2)
		x.acceptRecord(record(1, 5, 3, added(9), added(3)))
		expect("and has it", 1, 2)
		x.SetWorkers([]Worker{one, {kv.Worker{ID: 2}, 6}})
		expect("the other one started again", 1)
		x.acceptRecord(record(2, 5, 1, cleared, added(1)))
		expect("a late record of its life before", 1)
		x.acceptRecord(record(2, 5, 4, added(1)))
		expect("another one", 1)
		x.SetWorkers([]Worker{two})
		expect("one has gone")
		x.acceptRecord(record(3, 1, 1, cleared, added(1)))
		expect("one which is not listed", 3)
		time.Sleep(29 * time.Second) // virtual time (synctest): just before the 30 s of grace end
		x.checkFeeds()
		expect("nor after 29 s", 3)
		time.Sleep(time.Second) // virtual time (synctest): they end
		x.checkFeeds()
		expect("nor after 30 s")
	})
}

// TestUnlistedWorkersAreBounded: a process which can publish cannot fill the memory.
func TestUnlistedWorkersAreBounded(t *testing.T) {
	x := newIndex(t)
	for id := range kv.WorkerID(2 * maxUnlisted) {
		x.acceptRecord(record(id+1, 1, 1, cleared, added(1)))
	}
	if s := x.Stats(); s.Workers != maxUnlisted {
		t.Errorf("%+v", s)
	}
	x.SetWorkers([]Worker{{kv.Worker{ID: 2 * maxUnlisted}, 1}})
	x.acceptRecord(record(2*maxUnlisted, 1, 1, cleared, added(1)))
	if s := x.Stats(); s.Workers != maxUnlisted+1 {
		t.Errorf("a listed worker: %+v", s)
	}
}

// TestLostTail: the last events of a worker are lost, and no other follows: its load report shows it.
func TestLostTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIndex(t)
		x.markCaughtUp()
		x.SetWorkers([]Worker{{kv.Worker{ID: 1}, 5}})
		x.acceptRecord(record(1, 5, 1, cleared, added(1)))
		var asked []kvfeed.ResyncRequest
		for range 10 {
			time.Sleep(time.Second) // virtual time (synctest): load reports come each second
			x.RecordReport(&engine.LoadReport{WorkerID: 1, Epoch: 5, EmbeddingNext: 4})
			x.checkFeeds()
			asked, _ = x.dueRequests(asked)
		}
		if len(asked) == 0 || asked[0] != (kvfeed.ResyncRequest{Worker: kv.Worker{ID: 1}, Epoch: 5, From: 3}) {
			t.Errorf("asked for %+v", asked)
		}
		if got := x.holdersOf(1); len(got) > 0 {
			t.Errorf("meanwhile %v are shown", got)
		}
	})
}

// TestUnreadableRecords: they are counted and skipped; the next record shows the gap.
func TestUnreadableRecords(t *testing.T) {
	x := newIndex(t)
	s := &subscription{index: x}
	data := embfeed.AppendRecord(nil, record(1, 5, 1, cleared, added(1)))
	for _, m := range []bus.Message{
		{Key: "1/0", Data: data[:10], Seq: 1, Incarnation: 1}, {Key: "2/0", Data: data, Seq: 2, Incarnation: 1}, {Key: "1/0", Data: data, Seq: 3, Incarnation: 1},
	} {
		s.applyMessage(t.Context(), &m)
	}
	if got := x.Stats(); got.Malformed != 2 || got.Records != 1 || got.Holdings != 1 {
		t.Errorf("%+v", got)
	}
	row := embcache.RowKey{Salt: "s", Kind: 1, Digest: key(7), Encoder: "e"}
	x.acceptRecord(record(1, 5, 3, embfeed.Event{Kind: embfeed.Added, Key: row.EventKey()}))
	if ids := x.Holders(&row); !slices.Equal(ids, []kv.WorkerID{1}) {
		t.Errorf("holders of the rows: %v", ids)
	}
	// The stream lost messages, and it is not known whose.
	s.applyMessage(t.Context(), &bus.Message{Key: "2/0", Data: embfeed.AppendRecord(nil, record(2, 5, 1, cleared)), Seq: 9, Incarnation: 1})
	if got := x.holdersOf(1); len(got) > 0 {
		t.Errorf("after a loss: %v", got)
	}
}
