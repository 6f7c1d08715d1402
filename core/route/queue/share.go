package queue

import "fmt"

// share is what a client has had, for start-time fair queueing.
type share struct {
	// start is the virtual time at which the client's next request starts. Of a client which waits for nothing it
	// counts only if it is later than the table's.
	start   float64
	waiting int // entries
	tokens  int // of their prompts
}

// roomShare bounds what a client may have in the queue: so many times as much as is left for others. So one client alone
// gets 8/9 of the queue, two get 8/17 each, and a later one finds room (dynamic thresholds: Choudhury and Hahne, 1998).
const roomShare = 8

// hasRoom reports whether the client may have one more entry.
func (s *share) hasRoom(cfg *Config, entries, tokens int) bool {
	return s.waiting < roomShare*(cfg.MaxEntries-entries) && (cfg.MaxTokens == 0 || s.tokens == 0 || s.tokens < roomShare*(cfg.MaxTokens-tokens))
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

// startWait counts an entry of a client.
func (t *shareTable) startWait(s *share, tokens int) {
	if s.waiting == 0 {
		s.start = max(s.start, t.now)
	}
	s.waiting++
	s.tokens += tokens
}

func (s *share) endWait(tokens int) {
	s.waiting--
	s.tokens -= tokens
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

func (t *shareTable) check(waiting map[*share]share) error {
	if len(t.byClient) > maxShares {
		return fmt.Errorf("queue: %d clients are told apart", len(t.byClient))
	}
	for client, s := range t.byClient {
		if w := waiting[s]; s.waiting != w.waiting || s.tokens != w.tokens {
			return fmt.Errorf("queue: %d entries of %d tokens of client %d are counted, there are %d of %d", s.waiting, s.tokens, client, w.waiting, w.tokens)
		}
	}
	return nil
}
