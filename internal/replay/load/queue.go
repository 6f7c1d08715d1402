package load

import (
	"time"

	"penstock/internal/replay"
)

// job is a request on its way.
type job struct {
	index     int
	input     int  // prompt tokens, as the workload counts them
	want      int  // tokens of the answer, likewise
	fresh     bool // made ahead, and counted there
	session   string
	at, delay time.Duration // as the workload has them
	due       time.Duration
	wire      []byte // what is sent; nil before it is built
	// request is what wire is built from, of a request that waits for another.
	request *replay.Request
}

// queue is a heap of jobs by due, those of the same moment in order of index.
type queue []*job

func (q queue) before(i, j int) bool {
	return q[i].due < q[j].due || q[i].due == q[j].due && q[i].index < q[j].index
}

func (q *queue) push(j *job) {
	h := append(*q, j)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.before(i, parent) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	*q = h
}

func (q *queue) pop() *job {
	h := *q
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], nil
	h = h[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.before(child, least) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	*q = h
	return first
}
