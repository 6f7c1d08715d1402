package disco

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestView runs the scripts of what the store tells and what a watcher shows,
// with a TTL of 10 s. One line is one event:
//
//	record ID ADDR [REVISION] | unreadable ID | removed ID
//	lease ID [REVISION] | expired ID
//	begin | synced | lost | at SECONDS
//
// After each the shown set is printed if it changed, and garbage and overdue leases
// when they are due.
func TestView(t *testing.T) {
	datadriven.Walk(t, "testdata/view", func(t *testing.T, path string) {
		v, now, shown := newInstanceView(10*time.Second), time.Unix(0, 0), ""
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				line = strings.TrimSpace(line)
				if err := runView(v, &now, strings.Fields(line)); err != nil {
					t.Fatalf("%s: %q: %v", d.Pos, line, err)
				}
				if err := v.Check(); err != nil {
					t.Fatalf("%s: after %q: %v", d.Pos, line, err)
				}
				if s := viewText(v); s != shown {
					shown = s
					fmt.Fprintf(&out, "%s: [%s]\n", line, s)
				}
				if dead := v.takeGarbage(now); len(dead) > 0 {
					fmt.Fprintf(&out, "%s: garbage %v\n", line, dead)
				}
				if dead := v.takeOverdue(now); len(dead) > 0 {
					fmt.Fprintf(&out, "%s: overdue %v\n", line, dead)
				}
			}
			if next := v.nextDeadline(); !next.IsZero() {
				fmt.Fprintf(&out, "next at %d\n", next.Unix())
			}
			return out.String()
		})
	})
}

func runView(v *instanceView, now *time.Time, f []string) error {
	arg := func(i int) uint64 {
		if i >= len(f) {
			return 0
		}
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	switch f[0] {
	case "record":
		id := kv.WorkerID(arg(1))
		v.putRecord(*now, Instance{Kind: KindWorker, ID: id, Addr: f[2]}, arg(3))
	case "unreadable":
		v.keepRecord(*now, kv.WorkerID(arg(1)))
	case "removed":
		v.removeRecord(kv.WorkerID(arg(1)))
	case "lease":
		v.refreshLease(*now, kv.WorkerID(arg(1)), arg(2))
	case "expired":
		v.expireLease(*now, kv.WorkerID(arg(1)))
	case "begin":
		v.startReading()
	case "synced":
		v.finishReading(*now)
	case "lost":
		v.markDisconnected()
	case "at":
		*now = time.Unix(int64(arg(1)), 0)
		v.dropUnconfirmed(*now)
	default:
		return fmt.Errorf("unknown event")
	}
	return nil
}

func viewText(v *instanceView) string {
	var parts []string
	for _, in := range v.shownInstances() {
		s := fmt.Sprintf("%d@%s", in.ID, in.Addr)
		if in.Unconfirmed {
			s += "?"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// TestViewRandom lets a store with keys that come, go and are lost, and whose
// connection breaks, tell a view what it has. Whatever happens, the invariants
// hold; and once the store has been in reach and at rest for two TTLs, the view
// shows, without doubt, exactly what has a record and a liveness key.
func TestViewRandom(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		v, now := newInstanceView(10*time.Second), time.Unix(0, 0)
		records, leases := map[kv.WorkerID]string{}, map[kv.WorkerID]uint64{}
		connected, revision := false, uint64(0)
		fail := func(what string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s", seed, fmt.Sprintf(what, args...))
		}
		connect := func() {
			v.startReading()
			for id := range kv.WorkerID(5) {
				if leases[id] != 0 {
					v.refreshLease(now, id, leases[id])
				} else if rng.IntN(2) == 0 {
					v.expireLease(now, id) // its mark is still there
				}
				if addr, ok := records[id]; ok {
					v.putRecord(now, Instance{Kind: KindWorker, ID: id, Addr: addr}, 1)
				} else if rng.IntN(2) == 0 {
					v.removeRecord(id)
				}
			}
			v.finishReading(now)
			connected = true
		}
		for step := range 300 {
			id := kv.WorkerID(rng.IntN(5))
			switch rng.IntN(9) {
			case 0:
				records[id] = strconv.Itoa(step)
				if connected {
					v.putRecord(now, Instance{Kind: KindWorker, ID: id, Addr: records[id]}, 1)
				}
			case 1:
				delete(records, id)
				if connected {
					v.removeRecord(id)
				}
			case 2, 3, 4:
				revision++
				leases[id] = revision
				if connected {
					v.refreshLease(now, id, leases[id])
				}
			case 5:
				delete(leases, id)
				if connected {
					v.expireLease(now, id)
				}
			case 6:
				connected = false
				v.markDisconnected()
			case 7:
				connect()
			case 8:
				now = now.Add(time.Duration(rng.IntN(8)) * time.Second)
				v.dropUnconfirmed(now)
			}
			if err := v.Check(); err != nil {
				fail("step %d: %v", step, err)
			}
			// An instance which is alive by all signs is always shown.
			if connected {
				set := v.shownInstances()
				for id, addr := range records {
					i := slices.IndexFunc(set, func(in Instance) bool { return in.ID == id && in.Addr == addr && !in.Unconfirmed })
					if leases[id] != 0 && i < 0 {
						fail("step %d: instance %d is alive and not shown", step, id)
					}
				}
			}
		}
		connect()
		now = now.Add(20 * time.Second)
		v.dropUnconfirmed(now)
		var want []string
		for id := range kv.WorkerID(5) {
			if addr, ok := records[id]; ok && leases[id] != 0 {
				want = append(want, fmt.Sprintf("%d@%s", id, addr))
			}
		}
		if got := viewText(v); got != strings.Join(want, " ") {
			fail("at rest it shows [%s], want %v", got, want)
		}
		// What has a record alone is garbage by now, and only that.
		var dead []kv.WorkerID
		for id := range records {
			if leases[id] == 0 {
				dead = append(dead, id)
			}
		}
		slices.Sort(dead)
		got := []kv.WorkerID{}
		for _, d := range v.takeGarbage(now) {
			got = append(got, d.id)
		}
		if !slices.Equal(got, dead) {
			fail("garbage %v, want %v", got, dead)
		}
		if again := v.takeGarbage(now); len(again) > 0 {
			fail("garbage twice: %v", again)
		}
		// None has been refreshed since contact returned, so all are overdue.
		overdue := map[kv.WorkerID]uint64{}
		for _, d := range v.takeOverdue(now) {
			overdue[d.id] = d.revision
		}
		if !maps.Equal(overdue, leases) {
			fail("overdue %v, want %v", overdue, leases)
		}
	}
}

// A refresh of what is confirmed costs nothing and asks for nothing.
func TestViewRefreshIsIdle(t *testing.T) {
	v, now := newInstanceView(10*time.Second), time.Unix(0, 0)
	v.startReading()
	v.refreshLease(now, 1, 2)
	v.putRecord(now, Instance{Kind: KindWorker, ID: 1}, 1)
	v.finishReading(now)
	v.changed = false
	if n := testing.AllocsPerRun(100, func() { v.refreshLease(now, 1, 3) }); n != 0 || v.changed {
		t.Errorf("%v allocations, touched %v; want neither", n, v.changed)
	}
}
