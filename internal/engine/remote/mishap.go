package remote

import "time"

// mishap counts what should not happen and may without end: it is logged when it begins, and
// warned of as long as it goes on. The zero value is ready.
type mishap struct {
	n  uint64
	at time.Time // of the last
}

// happened counts one more, and reports whether it is news.
func (m *mishap) happened() (news bool) {
	news = !m.lately()
	m.n++
	m.at = time.Now()
	return news
}

// lately reports whether the last one is recent.
func (m *mishap) lately() bool { return m.n > 0 && time.Since(m.at) < recent }
