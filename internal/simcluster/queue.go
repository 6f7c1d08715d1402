package simcluster

import "penstock/core/kv"

// eventKind is the kind of an event.
type eventKind uint8

const (
	eventRequestDue    eventKind = iota // the source's next request is due
	eventSessionDue                     // task a is due, after the previous one of its session
	eventTaskWake                       // the wait of task a is over
	eventTaskStall                      // task a may have been silent for too long
	eventCallArrived                    // call a has reached its worker
	eventBatchDone                      // worker a has computed its batch
	eventFramesArrived                  // the frames of batch a have reached their clients
	eventRecordArrived                  // record a has reached router b
	eventResyncArrived                  // resync request b of a router has reached worker a
	eventResyncAnswer                   // worker a, in epoch b, may answer resync requests
	eventResyncDue                      // router a may have resync requests to send
	eventWorkerCrash                    // worker a crashes
	eventWorkerDrain                    // worker a starts to drain
	eventWorkerStop                     // worker a stops
	eventWorkerRestart                  // worker a starts its next epoch
	eventLeaseExpired                   // the lease of worker a expires
	eventDiscovery                      // router a gets the registered workers
	eventPingDue                        // a ping of router a is due
	eventPingDone                       // ping a is complete
	eventSyncDue                        // router a may have sync messages to send
	eventSyncArrived                    // sync message a has reached router b
	eventUpkeep                         // periodic work
	eventLoadReport                     // workers check their load
	eventAdmit                          // router a may place requests which wait
	eventCopyDone                       // pool copy a is complete
	eventRowsAsked                      // fetch a has reached the worker which is asked
	eventObjectEncoded                  // encode worker a has encoded an object
	eventRowsArrived                    // the answer to fetch a has reached its worker
	eventRowsChanged                    // change a of an embedding cache is known
	eventWorkerEncoded                  // worker a, in epoch b, may have encoded an object beside its passes
	eventJobQueued                      // job a, of generation b, has reached the queue of the prefill workers
	eventJobAdmitted                    // its prompt has reached its prefill worker
	eventJobRefused                     // its prefill worker knows that it is not wanted
	eventJobFailed                      // its prefill worker does not reach the decode worker
	eventJobWritten                     // its prefill worker knows that the blocks have arrived
	eventJobTick                        // a deadline of its prefill worker may be due
	eventDecodeNote                     // note a of a prefill worker has reached its decode worker
	eventScale                          // the Scaler decides
	eventScaleSample                    // it sees a sample of the interval
	eventWorkerReady                    // worker a, of order b, has started
	eventDrainCheck                     // worker a, of order b, may have finished its requests
	eventHandoffTick                    // a deadline of the handoff of call a, of generation b, may be due
)

// simEvent is an event at a time. The meaning of a and b depends on its kind.
type simEvent struct {
	at   kv.Mono
	seq  uint64 // orders events of the same time by insertion
	a, b uint32
	kind eventKind
}

func (e *simEvent) isBefore(o *simEvent) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// eventQueue is a heap of events by time and then by insertion. It has four children per node, since the cost
// is memory accesses, and the tree gets shallower.
type eventQueue struct {
	heap []simEvent
	seq  uint64
}

func (q *eventQueue) push(at kv.Mono, kind eventKind, a, b uint32) {
	q.seq++
	q.heap = append(q.heap, simEvent{})
	i := len(q.heap) - 1
	e := simEvent{at: at, seq: q.seq, kind: kind, a: a, b: b}
	for i > 0 {
		parent := (i - 1) / 4
		if !e.isBefore(&q.heap[parent]) {
			break
		}
		q.heap[i] = q.heap[parent]
		i = parent
	}
	q.heap[i] = e
}

// pop returns the next event; there must be one.
func (q *eventQueue) pop() simEvent {
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
			if q.heap[child].isBefore(&q.heap[least]) {
				least = child
			}
		}
		if !q.heap[least].isBefore(&e) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
	return top
}
