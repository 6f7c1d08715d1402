package route

import (
	"time"

	"penstock/core/kv"
)

// turns is the order in which routers place the requests of one burst.
type turns struct {
	routers, place int    // of the same workers, and the place of this one among them
	burst          uint64 // number of the latest burst, and since when it lasts
	since          kv.Mono
	count          int           // of turns in it
	wait           time.Duration // until the turn of this router
}

// shareOfOthers returns the share of the other routers which place in the same turn as this one.
func (t *turns) shareOfOthers() float64 {
	if t.count < 2 || t.routers < 2 {
		return 1
	}
	return max(float64(t.routers)/float64(t.count)-1, 0) / float64(t.routers-1)
}

// SetRouters sets how many routers send to the same workers, and the place of this one in their order, from 0 on.
func (r *Router) SetRouters(n, place int) { r.turns.routers, r.turns.place = n, place }

// HoldUntil returns until when q, which arrived at a time, should wait in the router for what others place at this
// instant; a time which is not after now if it should not. Requests of one instant come to all routers, which would
// place them without knowing of each other. So they place in turns, each of the time after which others know of a
// reservation: the last of them then knows of all. They do not if the turns take longer than what they save: the time
// of those prefills which others would probably send to the same worker.
func (r *Router) HoldUntil(now, arrived kv.Mono, q *Query) kv.Mono {
	t := &r.turns
	if t.routers < 2 || len(r.targets) < 2 || q.Pin.ID != 0 {
		return 0
	}
	if p, err := r.applyOverride(&q.Override); err != nil || p.mode != Time {
		return 0
	}
	if arrived < now { // it waits
		if arrived < t.since {
			return 0
		}
		return t.since.Add(t.wait)
	}
	b := r.active.BurstAt(now)
	if b.Number != t.burst {
		t.burst, t.since, t.count, t.wait = b.Number, b.Since, 1, 0
		if turn := r.active.SyncDelay() * 3 / 2; turn > 0 {
			saved := b.Ratio / float64(len(r.targets)) * r.refs[0].rates.PrefillMs(int(b.Tokens))
			t.count = min(1+int(saved/toMs(turn)), t.routers)
			t.wait = time.Duration(t.place%t.count) * turn
			r.active.ExtendBurst(time.Duration(t.count) * turn)
		}
	}
	return t.since.Add(t.wait)
}
