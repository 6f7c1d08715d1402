package bus

import "time"

// journal is the kept part of a durable topic in memory.
type journal struct {
	maxBytes int64
	maxAge   time.Duration
	first    uint64 // sequence number of entries[0], or of the next message
	entries  []entry
	bytes    int64
}

type entry struct {
	key  string
	data []byte
	at   time.Time
}

func (e entry) size() int64 { return int64(len(e.key)+len(e.data)) + overhead }

// last returns the sequence number of the newest message there ever was.
func (j *journal) last() uint64 { return j.first + uint64(len(j.entries)) - 1 }

// append keeps a message and drops what exceeds the bounds.
func (j *journal) append(e entry) {
	j.entries = append(j.entries, e)
	j.bytes += e.size()
	j.trim(e.at)
}

// trim drops the oldest messages until the bounds hold.
func (j *journal) trim(now time.Time) {
	for len(j.entries) > 0 && (j.bytes > j.maxBytes || now.Sub(j.entries[0].at) > j.maxAge) {
		j.dropOldest()
	}
}

// skip numbers n messages that are not kept; a journal that is not empty cannot.
func (j *journal) skip(n uint64) {
	if len(j.entries) == 0 {
		j.first += n
	}
}

// purge drops the messages with numbers less than below.
func (j *journal) purge(below uint64) {
	for len(j.entries) > 0 && j.first < below {
		j.dropOldest()
	}
}

func (j *journal) dropOldest() {
	j.bytes -= j.entries[0].size()
	j.entries[0] = entry{} // for the collector: the array lives on
	j.entries = j.entries[1:]
	j.first++
}

// at returns the first kept message from seq on, and its number; ok is false if
// there is none yet.
func (j *journal) at(seq uint64) (e entry, n uint64, ok bool) {
	n = max(seq, j.first)
	if n > j.last() {
		return entry{}, n, false
	}
	return j.entries[n-j.first], n, true
}
