package load

import (
	"time"

	"penstock/internal/replay"
)

// job is a request to be sent.
type job struct {
	index     int
	input     int  // prompt tokens, by the workload's count
	want      int  // response tokens, by the workload's count
	fresh     bool // built ahead, and counted there
	session   string
	at, delay time.Duration // as in the workload
	due       time.Duration
	wire      []byte // bytes to send; nil before it is built
	// request is the source of wire, for a request which waits for another.
	request *replay.Request
}

// jobQueue is a heap of jobs by due, then by index.
type jobQueue []*job

func (q jobQueue) isBefore(i, j int) bool {
	return q[i].due < q[j].due || q[i].due == q[j].due && q[i].index < q[j].index
}

func (q *jobQueue) push(j *job) {
	h := append(*q, j)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.isBefore(i, parent) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	*q = h
}

func (q *jobQueue) pop() *job {
	h := *q
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], nil
	h = h[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.isBefore(child, least) {
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
