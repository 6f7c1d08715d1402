package remote

import (
	"fmt"
	"sync"

	"penstock/internal/engine"
)

// The judgement of predictions: over so many requests of which they say something, which share
// of them must be off for a warning to begin, and below which share it ends.
const (
	judged     = 32
	beginsAt   = 8 // a quarter
	endsAt     = 2
	aloneAfter = 8
)

// ledger compares what an engine should have cached with what it reports.
type ledger struct {
	blockSize int

	mu struct {
		sync.Mutex
		ring              [judged]bool // off by more than a block
		n, off            int
		predicted, found  uint64
		compared, apart   uint64
		wrong             bool
		alone             int // requests in a row with cached tokens that no event had promised
		ringPred, ringHas [judged]int
	}
}

func newLedger(blockSize int) *ledger { return &ledger{blockSize: blockSize} }

// note takes what was expected of one request, and what the engine reported.
func (l *ledger) note(guess, reported int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	m.compared++
	m.predicted += uint64(max(guess, 0))
	m.found += uint64(reported)
	apart := guess-reported > l.blockSize || reported-guess > l.blockSize
	if apart {
		m.apart++
	}
	if guess == 0 && reported == 0 {
		return // says nothing
	}
	if guess == 0 {
		m.alone++
	} else {
		m.alone = 0
	}
	at := m.n % judged
	if m.ring[at] {
		m.off--
	}
	m.ring[at], m.ringPred[at], m.ringHas[at] = apart, guess, reported
	if apart {
		m.off++
	}
	m.n++
	switch {
	case m.n >= judged && m.off >= beginsAt:
		m.wrong = true
	case m.off <= endsAt:
		m.wrong = false
	}
}

func (l *ledger) stats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Predicted, s.Reported, s.Compared, s.Apart = l.mu.predicted, l.mu.found, l.mu.compared, l.mu.apart
}

// warnings judges. silent says that the engine's events never told of a stored block.
func (l *ledger) warnings(silent bool) []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case silent && l.mu.alone >= aloneAfter:
		return []engine.Warning{{
			Code:   engine.WarnEventsAlone,
			Detail: fmt.Sprintf("the engine reported cached tokens for the last %d requests that had any, and no event ever told of a block", l.mu.alone),
			Remedy: "see whether its events are on, and whether the endpoint and rank here are those of its settings",
		}}
	case l.mu.wrong:
		predicted, has := 0, 0
		for i := range l.mu.ringPred {
			predicted += l.mu.ringPred[i]
			has += l.mu.ringHas[i]
		}
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("of the last %d requests with anything cached, %d were off by more than a block: %d tokens expected, %d reported", judged, l.mu.off, predicted, has),
			Remedy: "see whether events get lost, and whether several engines share one endpoint for events",
		}}
	}
	return nil
}
