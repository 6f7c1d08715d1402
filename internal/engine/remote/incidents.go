package remote

import "time"

// incidents counts repeated failures, so that the first is logged and a warning stays while they continue.
// The zero value is ready.
type incidents struct {
	n  uint64
	at time.Time // of the last
}

// record counts one more, and reports whether it is the first for some time.
func (m *incidents) record() (news bool) {
	news = !m.isRecent()
	m.n++
	m.at = time.Now()
	return news
}

// isRecent reports whether the last one is recent.
func (m *incidents) isRecent() bool { return m.n > 0 && time.Since(m.at) < recentWindow }
