package handoff

import (
	"strings"
	"sync"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/core/rates"
	"penstock/internal/engine"
)

// Splitter decides for a decode worker where prompts are computed. It makes no call, and learns from the outcomes. It
// is safe for concurrent use.
type Splitter struct {
	cfg   disagg.SplitConfig // of requests which ask for no other
	peers func() []PrefillPeer
	// depth returns how many jobs wait for a prefill worker.
	depth func() int
	born  time.Time
	mu    struct {
		sync.Mutex
		rates *disagg.SplitRates
		// jobTokens is a decayed mean of the tokens of this worker's jobs, by which all in the queue are estimated.
		jobTokens float64
		among     disagg.Candidates // scratch
	}
}

// NewSplitter returns a Splitter which has learned nothing, for handoffs with the bounds of handoffs. peers returns the
// prefill workers. A token has tokenBytes in a block.
func NewSplitter(cfg disagg.SplitConfig, handoffs disagg.HandoffConfig, peers func() []PrefillPeer, tokenBytes int, depth func() int) (*Splitter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r, err := disagg.NewSplitRates(rates.Config{}, handoffs, tokenBytes)
	if err != nil {
		return nil, err
	}
	s := &Splitter{cfg: cfg, peers: peers, depth: depth, born: time.Now()}
	s.mu.rates = r
	return s, nil
}

func (s *Splitter) now() kv.Mono { return kv.Mono(time.Since(s.born)) }

// Decide is for DecodeWorkerConfig.Decide. What asked does not set is as this worker has it.
func (s *Splitter) Decide(asked disagg.SplitSettings, in disagg.SplitInputs, hint *engine.PrefillHint) disagg.Decision {
	cfg := asked.Apply(s.cfg)
	peers := s.peers()
	if hint.Pin == 0 { // the job of a request which names its worker does not wait in the queue
		in.QueuedJobs = s.depth()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	in.QueuedTokens = int(float64(in.QueuedJobs) * s.mu.jobTokens)
	among := &s.mu.among
	among.Workers, among.Pinned = among.Workers[:0], hint.Pin != 0
	for _, p := range peers {
		if hint.Pin != 0 && p.Worker.ID != hint.Pin {
			continue
		}
		in.QueuedTokens += p.Tokens
		in.RunningJobs += p.Jobs
		among.Workers = append(among.Workers, disagg.PrefillCandidate{
			Worker: p.Incarnation, Cached: heldTokens(hint, p.Worker.ID), QueuedTokens: p.Tokens, Jobs: p.Jobs, From: p.From,
		})
	}
	d := s.mu.rates.Decide(s.now(), &cfg, &in, among)
	if d.Remote {
		_, end := in.MovedRange()
		s.mu.jobTokens += (float64(end) - s.mu.jobTokens) / 8
	}
	return d
}

// heldTokens returns how many of the first tokens of a request a prefill worker holds.
func heldTokens(hint *engine.PrefillHint, w kv.WorkerID) int {
	for _, h := range hint.Holders {
		if h.Worker == w {
			return h.Tokens
		}
	}
	return 0
}

// ObserveLocal is for DecodeWorkerConfig.ObserveLocal.
func (s *Splitter) ObserveLocal(tokens int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rates.RecordLocal(s.now(), tokens, took)
}

// ObserveHandoff learns from an outcome: also from attempts which failed.
func (s *Splitter) ObserveHandoff(o *HandoffOutcome) {
	arrived, from := o.State == disagg.Decoding, disagg.OtherHost
	if arrived {
		for _, p := range s.peers() {
			if p.Incarnation == o.By {
				from = p.From
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rates.RecordHandoff(s.now(), &o.Decision, o.State, o.Lost)
	if !arrived {
		return
	}
	s.mu.rates.RecordRemote(s.now(), max(o.End-o.RemoteCached, 1), o.Prefill)
	s.mu.rates.RecordTransfer(from, o.End-o.Start, o.Transfer)
}

// maxReportMs bounds the costs in a report.
const maxReportMs = 1e9

// newReport returns the report of a decision.
func newReport(d *disagg.Decision) *engine.SplitReport {
	return &engine.SplitReport{
		Policy: d.Config.Policy, MaxLocalPrefillLength: d.Config.MaxLocalPrefillLength, MaxPrefillQueueSize: d.Config.MaxPrefillQueueSize,
		Remote: d.Remote, Rule: d.Reason.String(), Tokens: d.Inputs.Tokens, Cached: d.Inputs.Cached,
		PrefillWorkers: d.Inputs.PrefillWorkers, QueuedJobs: d.Inputs.QueuedJobs,
		LocalMs: clampMs(d.LocalCost.Sum()), RemoteMs: clampMs(d.RemoteCost.Sum()),
	}
}

// clampMs returns a cost as a report may have it.
func clampMs(ms float64) float64 {
	if !(ms > 0) {
		return 0
	}
	return min(ms, maxReportMs)
}

// Label returns why the prompt was computed where it was, as a label of metrics: the rule which decided, or what
// failed, in words which are joined by "_".
func (o *HandoffOutcome) Label() string {
	why := o.Reason.String()
	if o.Reason == disagg.Decided || o.State == disagg.Decoding {
		why = o.Decision.Reason.String()
	}
	return joinWords(why)
}

// FailureLabels returns why its attempts were given up, in their order, as labels of metrics. An attempt of a request
// which was cancelled has not failed.
func (o *HandoffOutcome) FailureLabels() []string {
	var all []string
	for _, why := range o.GivenUp {
		if why != disagg.Cancelled {
			all = append(all, joinWords(why.String()))
		}
	}
	return all
}

// joinWords returns words as a label of metrics.
func joinWords(words string) string { return strings.ReplaceAll(words, " ", "_") }
