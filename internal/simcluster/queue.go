package simcluster

import "penstock/core/kv"

// eventKind is the kind of an event.
type eventKind uint8

const (
	arrive   eventKind = iota // the source's next request is due
	send                      // task a is due, after the previous one of its session
	wake                      // the wait of task a is over
	stall                     // task a may have been silent for too long
	called                    // call a has reached its worker
	passed                    // worker a has computed its batch
	framed                    // the frames of batch a have reached their clients
	recorded                  // record a has reached router b
	asked                     // resync request b of a router has reached worker a
	answered                  // worker a, in epoch b, may answer resync requests
	asking                    // router a may have resync requests to send
	crashed                   // worker a crashes
	leaving                   // worker a starts to drain
	left                      // worker a stops
	reborn                    // worker a starts its next epoch
	expired                   // the lease of worker a expires
	found                     // router a gets the registered workers
	probed                    // a ping of router a is due
	ponged                    // ping a is complete
	told                      // router a may have sync messages to send
	heard                     // sync message a has reached router b
	upkeep                    // periodic work
	reported                  // workers check their load
	copied                    // pool copy a is complete
)

// simEvent is an event at a time. The meaning of a and b depends on its kind.
type event struct {
	at   kv.Mono
	seq  uint64 // orders events of the same time by insertion
	a, b uint32
	kind eventKind
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// eventQueue is a heap of events by time and then by insertion. It has four children per node, since the cost
// is memory accesses, and the tree gets shallower.
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
