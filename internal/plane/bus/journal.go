package bus

import "time"

// journal is the retained part of a durable topic in memory.
type journal struct {
	maxBytes int64
	maxAge   time.Duration
	first    uint64 // sequence number of entries[0], or of the next message if there are none
	entries  []journalEntry
	bytes    int64
}

type journalEntry struct {
	key  string
	data []byte
	at   time.Time
}

func (e journalEntry) storedSize() int64 { return int64(len(e.key)+len(e.data)) + messageOverhead }

// lastSeq returns the sequence number of the newest message ever appended.
func (j *journal) lastSeq() uint64 { return j.first + uint64(len(j.entries)) - 1 }

// appendEntry appends a message and drops the oldest messages which exceed the bounds.
func (j *journal) appendEntry(e journalEntry) {
	j.entries = append(j.entries, e)
	j.bytes += e.storedSize()
	j.enforceBounds(e.at)
}

// enforceBounds drops the oldest messages until the bounds hold.
func (j *journal) enforceBounds(now time.Time) {
	for len(j.entries) > 0 && (j.bytes > j.maxBytes || now.Sub(j.entries[0].at) > j.maxAge) {
		j.dropOldest()
	}
}

// skipNumbers leaves n numbers unused. It has no effect unless the journal is empty.
func (j *journal) skipNumbers(n uint64) {
	if len(j.entries) == 0 {
		j.first += n
	}
}

// purgeBelow drops the messages with numbers less than below.
func (j *journal) purgeBelow(below uint64) {
	for len(j.entries) > 0 && j.first < below {
		j.dropOldest()
	}
}

func (j *journal) dropOldest() {
	j.bytes -= j.entries[0].storedSize()
	j.entries[0] = journalEntry{} // release the references for the garbage collector
	j.entries = j.entries[1:]
	j.first++
}

// entryFrom returns the first retained message with a number of at least seq, and its number; ok is
// false if there is none yet.
func (j *journal) entryFrom(seq uint64) (e journalEntry, n uint64, ok bool) {
	n = max(seq, j.first)
	if n > j.lastSeq() {
		return journalEntry{}, n, false
	}
	return j.entries[n-j.first], n, true
}
