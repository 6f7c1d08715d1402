package simcluster

import "penstock/core/kv"

// eventKind is what happens.
type eventKind uint8

const (
	arrive   eventKind = iota // the source's next request is due
	send                      // task a is due, after the one before it in its session
	wake                      // task a has waited
	stall                     // task a may have heard nothing for too long
	called                    // call a is at its worker
	passed                    // worker a has computed its batch
	framed                    // the frames of batch a are at their clients
	recorded                  // parcel a is at router b
	asked                     // request b of a router is at worker a
	answered                  // worker a, in epoch b, may answer requests
	asking                    // router a may have something to ask for
	crashed                   // worker a dies
	leaving                   // worker a begins to leave
	left                      // it is gone
	reborn                    // worker a begins its next life
	expired                   // the lease of worker a runs out
	found                     // router a hears of who is registered
	probed                    // a ping of router a is due
	ponged                    // ping a is over
	told                      // router a may have something to tell others
	heard                     // letter a is at router b
	upkeep                    // what time alone brings about
	reported                  // workers look at their load
	copied                    // copy a into the pool ends
)

// event is something that happens at a time. What a and b are depends on its kind.
type event struct {
	at   kv.Mono
	seq  uint64 // of those at one time, the first one pushed comes first
	a, b uint32
	kind eventKind
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// queue is a heap of events by time and then by order of arrival: four children to
// a node, since it is deep rather than wide memory accesses that cost.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(at kv.Mono, kind eventKind, a, b uint32) {
	q.seq++
	q.heap = append(q.heap, event{})
	i := len(q.heap) - 1
	e := event{at: at, seq: q.seq, kind: kind, a: a, b: b}
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = e
}

// pop returns the next event; there must be one.
func (q *queue) pop() event {
	top := q.heap[0]
	n := len(q.heap) - 1
	e := q.heap[n]
	q.heap = q.heap[:n]
	if n == 0 {
		return top
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for child := least + 1; child < min(4*i+5, n); child++ {
			if q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if !q.heap[least].before(&e) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
	return top
}
