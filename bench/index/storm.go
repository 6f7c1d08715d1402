package main

import (
	"slices"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

const (
	eventBlocks  = 128 // blocks per event of a storm
	stormSteps   = 2048
	stormLive    = 256 // stored prompts of a storm at a time
	stormReaders = 3   // goroutines which query meanwhile
)

// stormStep is one prompt of a storm: it is stored on a worker which permanently holds its first base blocks,
// and later removed down to them, leaf first. So the blocks of the workload's requests stay on their workers
// throughout, and every answer can be checked.
type stormStep struct {
	worker int
	base   int
	request
}

// stormScript is the repeated steps of a storm. Half of them store a prompt of the workload on another
// worker, on the pages which readers read; the other half diverge from such a prompt in the middle into new
// blocks.
type stormScript []stormStep

// newStormScript draws the steps.
func newStormScript(w *requestSet, workers int) (stormScript, error) {
	rng := splitmix.Source(7)
	var ids [][]uint64
	var on []int
	for i := range stormSteps {
		at := rng.Below(len(w.requests))
		prompt := slices.Clone(w.requests[at].ids)
		if i%2 == 0 {
			for j := 1 + rng.Below(len(prompt)); j < len(prompt); j++ {
				prompt[j] = freshID + uint64(i)<<16 + uint64(j)
			}
		}
		ids = append(ids, prompt)
		on = append(on, (at+1+rng.Below(max(workers-1, 1)))%workers)
	}
	made, err := newRequestSet("storm", ids)
	if err != nil {
		return nil, err
	}
	var out stormScript
	for i := range made.requests {
		out = append(out, stormStep{worker: on[i], request: made.requests[i]})
	}
	return out, nil
}

// resolveBases looks up what each step's worker permanently holds of it.
func (s stormScript) resolveBases(holds func(w int, seq kv.SeqHash) bool) {
	for i := range s {
		st := &s[i]
		for st.base = 0; st.base < len(st.chain) && holds(st.worker, st.chain[st.base]); st.base++ {
		}
	}
}

// countPrefixes returns how many distinct prefixes the steps have.
func (s stormScript) countPrefixes() int {
	seen := map[kv.SeqHash]bool{}
	for i := range s {
		for _, seq := range s[i].chain {
			seen[seq] = true
		}
	}
	return len(seen)
}

// stormWriter is a writer which executes steps.
type stormWriter struct {
	steps  stormScript
	to     indexSubject
	stored int // steps so far; the last stormLive of them are stored
	gone   int // steps removed again

	begin  time.Time
	pace   float64 // blocks per second since begin, 0 for full speed
	events int     // since begin
	blocks int
	seqs   []kv.SeqHash // scratch
}

// newStormWriter returns a storm on to, with the full number of live prompts.
func (s stormScript) newStormWriter(to indexSubject) *stormWriter {
	out := &stormWriter{steps: s, to: to}
	for range stormLive {
		out.storeNext()
	}
	return out
}

// storeNext stores the next prompt, and removes the oldest one if enough are live.
func (s *stormWriter) storeNext() {
	st := &s.steps[s.stored%len(s.steps)]
	for from := 0; from < len(st.chain); from += eventBlocks {
		until := min(from+eventBlocks, len(st.chain))
		s.to.storeRange(st.worker, &st.request, from, until)
		s.countAndWait(until - from)
	}
	s.stored++
	if s.stored-s.gone > stormLive {
		s.removeOldest()
	}
}

// removeOldest removes the oldest live prompt.
func (s *stormWriter) removeOldest() {
	st := &s.steps[s.gone%len(s.steps)]
	for end := len(st.chain); end > st.base; end -= eventBlocks {
		s.seqs = append(s.seqs[:0], st.chain[max(end-eventBlocks, st.base):end]...)
		slices.Reverse(s.seqs)
		s.to.removeSeqs(st.worker, s.seqs)
		s.countAndWait(len(s.seqs))
	}
	s.gone++
}

// countAndWait counts an event, and waits until it is due.
func (s *stormWriter) countAndWait(blocks int) {
	s.events++
	s.blocks += blocks
	if s.pace > 0 {
		due := s.begin.Add(time.Duration(float64(s.blocks) / s.pace * float64(time.Second)))
		time.Sleep(time.Until(due)) // paces the load: an engine publishes a block when it has computed it
	}
}

// resetCounts restarts the counts.
func (s *stormWriter) resetCounts(pace float64) {
	s.events, s.blocks, s.begin, s.pace = 0, 0, time.Now(), pace
}

// eventRates returns events and blocks per second since resetCounts.
func (s *stormWriter) eventRates() (events, blocks float64) {
	took := time.Since(s.begin).Seconds()
	return float64(s.events) / took, float64(s.blocks) / took
}

// removeAll removes all live prompts.
func (s *stormWriter) removeAll() {
	for s.pace = 0; s.gone < s.stored; {
		s.removeOldest()
	}
}

// stormResult is the result of a storm and of its readers.
type stormResult struct {
	latency        latencyHistogram
	short          int     // answers shallower than their request
	events, blocks float64 // applied per second
}

// runWithReaders runs the storm beside readers. pace is how many blocks a second are applied, 0 for full
// speed.
func (s *stormWriter) runWithReaders(w *requestSet, window time.Duration, pace float64) stormResult {
	var out stormResult
	stop := make(chan struct{})
	var wait sync.WaitGroup
	s.resetCounts(pace)
	wait.Go(func() {
		for {
			select {
			case <-stop:
				out.events, out.blocks = s.eventRates()
				return
			default:
				s.storeNext()
			}
		}
	})
	latency, short := measureLatency(s.to, w, stormReaders, window)
	close(stop)
	wait.Wait()
	out.latency, out.short = latency, short
	return out
}

// runAlone runs the storm without readers and returns the rates.
func (s *stormWriter) runAlone(window time.Duration) (events, blocks float64) {
	s.resetCounts(0)
	for time.Since(s.begin) < window {
		s.storeNext()
	}
	return s.eventRates()
}
