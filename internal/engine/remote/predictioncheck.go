package remote

import (
	"fmt"
	"sync"

	"penstock/core/accuracy"
	"penstock/internal/engine"
)

// predictionCheck compares the predicted cached tokens of requests with the engine's reports.
type predictionCheck struct {
	blockSize int

	mu struct {
		sync.Mutex
		record                            accuracy.Record
		predicted, found, compared, apart uint64
	}
}

func newPredictionCheck(blockSize int) *predictionCheck {
	return &predictionCheck{blockSize: blockSize}
}

// recordResult records the predicted and the reported cached tokens of one request.
func (l *predictionCheck) recordResult(guess, reported int) {
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
	m.record.AddReport(known, known, reported/l.blockSize)
}

func (l *predictionCheck) fillStats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Predicted, s.Reported, s.Compared, s.Mismatched = l.mu.predicted, l.mu.found, l.mu.compared, l.mu.apart
}

// predictionWarnings returns the verdict. silent says that no event ever stored a block.
func (l *predictionCheck) predictionWarnings(silent bool) []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	predicted, found := l.mu.record.Evidence()
	switch verdict := l.mu.record.Rating(); {
	case verdict == accuracy.Unpredicted && silent:
		return []engine.Warning{{
			Code:   engine.WarnEventsSilent,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and no event ever told of a block", found, accuracy.Window),
			Remedy: "see whether its events are on, and whether the endpoint here is that of its settings (port + rank)",
		}}
	case verdict == accuracy.Unpredicted:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and its events promised none of them", found, accuracy.Window),
			Remedy: "see whether the tokenizer, the template and the block size here are the engine's, and whether these events are its own",
		}}
	case verdict == accuracy.Overpredicted:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("of %d blocks that the engine should have had cached in %d requests, it found %d", predicted, accuracy.Window, found),
			Remedy: "see whether events get lost, whether several engines share one endpoint for events, and whether others clear its cache",
		}}
	}
	return nil
}
