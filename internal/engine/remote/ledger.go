package remote

import (
	"fmt"
	"sync"

	"penstock/core/forecast"
	"penstock/internal/engine"
)

// predictionCheck compares the predicted cached tokens of requests with the engine's reports.
type ledger struct {
	blockSize int

	mu struct {
		sync.Mutex
		record                            forecast.Record
		predicted, found, compared, apart uint64
	}
}

func newLedger(blockSize int) *ledger { return &ledger{blockSize: blockSize} }

// recordResult records the predicted and the reported cached tokens of one request.
func (l *ledger) note(guess, reported int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	m.compared++
	m.predicted += uint64(guess)
	m.found += uint64(reported)
	if guess-reported > l.blockSize || reported-guess > l.blockSize {
		m.apart++
	}
	known := guess / l.blockSize
	m.record.Add(known, known, reported/l.blockSize)
}

func (l *ledger) stats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Predicted, s.Reported, s.Compared, s.Apart = l.mu.predicted, l.mu.found, l.mu.compared, l.mu.apart
}

// predictionWarnings returns the verdict. silent says that no event ever stored a block.
func (l *ledger) warnings(silent bool) []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	predicted, found := l.mu.record.Evidence()
	switch verdict := l.mu.record.Verdict(); {
	case verdict == forecast.Blind && silent:
		return []engine.Warning{{
			Code:   engine.WarnEventsAlone,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and no event ever told of a block", found, forecast.Window),
			Remedy: "see whether its events are on, and whether the endpoint here is that of its settings (port + rank)",
		}}
	case verdict == forecast.Blind:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and its events promised none of them", found, forecast.Window),
			Remedy: "see whether the tokenizer, the template and the block size here are the engine's, and whether these events are its own",
		}}
	case verdict == forecast.Over:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("of %d blocks that the engine should have had cached in %d requests, it found %d", predicted, forecast.Window, found),
			Remedy: "see whether events get lost, whether several engines share one endpoint for events, and whether others clear its cache",
		}}
	}
	return nil
}
