package bus

import (
	"context"
	"sync"
	"time"
)

// WatchedQueue is a queue whose depth is known without a question for each request.
type WatchedQueue struct {
	Queue
	every time.Duration
	mu    struct {
		sync.Mutex
		puts    uint64 // successful calls of Put
		known   bool
		last    QueueDepth // the store's last answer
		dead    int        // dead letters, by its last answer to that
		counted uint64     // puts when it was asked for
	}
}

// NewWatchedQueue returns q with a depth for which Run asks at intervals.
func NewWatchedQueue(q Queue, every time.Duration) *WatchedQueue {
	return &WatchedQueue{Queue: q, every: every}
}

// deadEvery is which of the questions for the depth are also for the dead letters: they cost more, and dead letters are
// seldom.
const deadEvery = 10

// Run asks for the depth until ctx ends; it then returns nil. While the store does not answer, the depth
// grows old.
func (w *WatchedQueue) Run(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		w.askDepth(ctx, n%deadEvery == 0)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// askDepth asks for the depth, or for the state, which has the number of dead letters too.
func (w *WatchedQueue) askDepth(ctx context.Context, state bool) {
	w.mu.Lock()
	s, counted := QueueState{Dead: w.mu.dead}, w.mu.puts
	w.mu.Unlock()
	var err error
	if state {
		s, err = w.DescribeState(ctx)
	} else {
		s.QueueDepth, err = w.DescribeDepth(ctx)
	}
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.known, w.mu.last, w.mu.dead, w.mu.counted = true, s.QueueDepth, s.Dead, counted
}

// Put implements Queue. It counts the job.
func (w *WatchedQueue) Put(ctx context.Context, j Job) error {
	err := w.Queue.Put(ctx, j)
	if err == nil {
		w.mu.Lock()
		w.mu.puts++
		w.mu.Unlock()
	}
	return err
}

// EstimateDepth returns the store's last answer, with the jobs added that this process has put since it was
// asked for. It may count a job twice which was put at that time, or with an id that the queue had. At is the
// time of the answer; ok is false before the first one.
func (w *WatchedQueue) EstimateDepth() (_ QueueDepth, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	depth := w.mu.last
	depth.Waiting += int(w.mu.puts - w.mu.counted)
	return depth, w.mu.known
}

// EstimateDead returns the number of dead letters as of one of the last ten questions; 0 before the first answer.
func (w *WatchedQueue) EstimateDead() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.dead
}
