package health

import "container/heap"

// pingQueue is a heap of workers by the time of their next ping, then by id: thousands of workers send signs
// of life several times a second each.
type pingQueue []*workerEntry

var _ heap.Interface = (*pingQueue)(nil)

// Len implements sort.Interface.
func (q pingQueue) Len() int { return len(q) }

// Less implements sort.Interface.
func (q pingQueue) Less(i, j int) bool {
	return q[i].nextPing < q[j].nextPing || q[i].nextPing == q[j].nextPing && q[i].ID < q[j].ID
}

// Swap implements sort.Interface.
func (q pingQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *pingQueue) Push(x any) {
	e := x.(*workerEntry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *pingQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}
