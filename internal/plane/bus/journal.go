package bus

import "time"

// journal is the retained part of a durable topic in memory.
type journal struct {
	maxBytes int64
	maxAge   time.Duration
	first    uint64 // sequence number of entries[0], or of the next message if there are none
	entries  []entry
	bytes    int64
}

type entry struct {
	key  string
	data []byte
	at   time.Time
}

func (e entry) size() int64 { return int64(len(e.key)+len(e.data)) + overhead }

// lastSeq returns the sequence number of the newest message ever appended.
func (j *journal) last() uint64 { return j.first + uint64(len(j.entries)) - 1 }

// appendEntry appends a message and drops the oldest messages which exceed the bounds.
func (j *journal) append(e entry) {
	j.entries = append(j.entries, e)
	j.bytes += e.size()
	j.trim(e.at)
}

// enforceBounds drops the oldest messages until the bounds hold.
func (j *journal) trim(now time.Time) {
	for len(j.entries) > 0 && (j.bytes > j.maxBytes || now.Sub(j.entries[0].at) > j.maxAge) {
		j.dropOldest()
	}
}

// skipNumbers leaves n numbers unused. It has no effect unless the journal is empty.
func (j *journal) skip(n uint64) {
	if len(j.entries) == 0 {
		j.first += n
	}
}

// purgeBelow drops the messages with numbers less than below.
func (j *journal) purge(below uint64) {
	for len(j.entries) > 0 && j.first < below {
		j.dropOldest()
	}
}

func (j *journal) dropOldest() {
	j.bytes -= j.entries[0].size()
	j.entries[0] = entry{} // release the references for the garbage collector
	j.entries = j.entries[1:]
	j.first++
}

// entryFrom returns the first retained message with a number of at least seq, and its number; ok is
// false if there is none yet.
func (j *journal) at(seq uint64) (e entry, n uint64, ok bool) {
	n = max(seq, j.first)
	if n > j.last() {
		return entry{}, n, false
	}
	return j.entries[n-j.first], n, true
}
