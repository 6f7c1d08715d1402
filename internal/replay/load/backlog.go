package load

import (
	"sync"
	"time"

	"penstock/internal/replay"
)

// backlog passes jobs from workers to the dispatcher without blocking the workers. The sessions bound its
// size.
type backlog struct {
	mu struct {
		sync.Mutex
		jobs, taken []*job
	}
	signal chan struct{}
}

func (b *backlog) addJob(j *job) {
	b.mu.Lock()
	b.mu.jobs = append(b.mu.jobs, j)
	b.mu.Unlock()
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// takeJobs returns the added jobs, valid until the next call.
func (b *backlog) takeJobs() []*job {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.mu.taken)
	b.mu.jobs, b.mu.taken = b.mu.taken[:0], b.mu.jobs
	return b.mu.taken
}

// aheadLimit bounds the requests which are built and not sent, by number and by bytes.
type aheadLimit struct {
	maxJobs int
	mu      struct {
		sync.Mutex
		jobs, bytes int
	}
	freed chan struct{} // signals that one was sent
}

func newAheadLimit(limit int) aheadLimit {
	return aheadLimit{maxJobs: limit, freed: make(chan struct{}, 1)}
}

// waitForRoom waits until another request may be built; false at the end of the run. It calls blocked before
// it waits.
func (a *aheadLimit) waitForRoom(stop <-chan struct{}, blocked func()) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		a.mu.Lock()
		ok := a.mu.jobs < a.maxJobs && (a.mu.bytes < maxAheadBytes || a.mu.jobs == 0)
		a.mu.Unlock()
		if ok {
			return true
		}
		blocked()
		select {
		case <-a.freed:
		case <-stop:
			return false
		}
	}
}

func (a *aheadLimit) addBody(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.jobs++
	a.mu.bytes += n
}

func (a *aheadLimit) removeBody(n int) {
	a.mu.Lock()
	a.mu.jobs--
	a.mu.bytes -= n
	a.mu.Unlock()
	select {
	case a.freed <- struct{}{}:
	default:
	}
}

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
