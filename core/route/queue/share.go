package queue

import "fmt"

// share is what a client has had, for start-time fair queueing.
type share struct {
	// start is the virtual time at which the client's next request starts. Of a client which waits for nothing it
	// counts only if it is later than the table's.
	start   float64
	waiting int // entries
}

// maxShares bounds the clients which are told apart. Clients beyond it share the share of client 0.
const maxShares = 4096

// shareTable has the shares of the clients which wait, or had more than others lately.
type shareTable struct {
	byClient map[uint64]*share
	now      float64 // virtual time, in predicted ms: the start of the latest request placed
}

func newShareTable() shareTable { return shareTable{byClient: map[uint64]*share{0: {}}} }

// find returns the share of a client.
func (t *shareTable) find(client uint64) *share {
	if s := t.byClient[client]; s != nil {
		return s
	}
	if len(t.byClient) >= maxShares {
		t.forgetIdle()
	}
	if len(t.byClient) >= maxShares {
		return t.byClient[0]
	}
	s := &share{}
	t.byClient[client] = s
	return s
}

// forgetIdle forgets the clients which would start at the present time.
func (t *shareTable) forgetIdle() {
	for client, s := range t.byClient { // in any order: all of them are forgotten
		if client != 0 && s.waiting == 0 && s.start <= t.now {
			delete(t.byClient, client)
		}
	}
}

// startWait counts an entry of a client, and returns its share.
func (t *shareTable) startWait(client uint64) *share {
	s := t.find(client)
	if s.waiting == 0 {
		s.start = max(s.start, t.now)
	}
	s.waiting++
	return s
}

// chargeShare counts the predicted ms of a request which is placed.
func (t *shareTable) chargeShare(s *share, ms float64) {
	if s.waiting == 0 {
		s.start = max(s.start, t.now)
	}
	t.now = max(t.now, s.start)
	if ms > 0 {
		s.start += ms
	}
}

func (t *shareTable) check(waiting map[*share]int) error {
	if len(t.byClient) > maxShares {
		return fmt.Errorf("queue: %d clients are told apart", len(t.byClient))
	}
	for client, s := range t.byClient {
		if s.waiting != waiting[s] {
			return fmt.Errorf("queue: %d entries of client %d are counted, there are %d", s.waiting, client, waiting[s])
		}
	}
	return nil
}
