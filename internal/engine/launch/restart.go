package launch

import "time"

// settledAfter is the time of serving after which an engine has recovered from its earlier ends.
const settledAfter = time.Minute

// restartPolicy decides whether an engine which ended by itself is started again.
//
//	event                               decision
//	an end after settledAfter of serving  restart, the first one again
//	another end                         restart, unless limit restarts came before it in a row
type restartPolicy struct {
	limit int // restarts in a row; 0 is none
	count int // restarts in a row so far
}

// decideRestart decides about an engine which ended after it served for the given time, 0 if it did not serve.
func (r *restartPolicy) decideRestart(servedFor time.Duration) bool {
	if servedFor >= settledAfter {
		r.count = 0
	}
	if r.count >= r.limit {
		return false
	}
	r.count++
	return true
}
