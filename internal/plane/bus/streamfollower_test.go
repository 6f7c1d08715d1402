package bus

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestPosition(t *testing.T) {
	then, later := time.Unix(1, 0), time.Unix(2, 0)
	for name, c := range map[string]struct {
		next    uint64
		life    time.Time
		created time.Time
		last    uint64
		want    uint64
	}{
		"first time":                   {next: 5, created: then, last: 9, want: 5},
		"first time, from the future":  {next: 50, created: then, last: 9, want: 50},
		"after an interruption":        {next: 5, life: then, created: then, last: 9, want: 5},
		"nothing new":                  {next: 10, life: then, created: then, last: 9, want: 10},
		"a power cut took the end":     {next: 10, life: then, created: then, last: 7, want: 8},
		"a power cut took everything":  {next: 10, life: then, created: then, last: 0, want: 1},
		"created anew":                 {next: 5, life: then, created: later, last: 9, want: 1},
		"created anew and still empty": {next: 5, life: then, created: later, last: 0, want: 1},
	} {
		f := &streamFollower{next: c.next, created: c.life}
		f.adjustPosition(&jetstream.StreamInfo{Created: c.created, State: jetstream.StreamState{LastSeq: c.last}})
		if f.next != c.want || f.created != c.created {
			t.Errorf("%s: next is %d of %v, want %d of %v", name, f.next, f.created, c.want, c.created)
		}
	}
}
