package mimic

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/splitmix"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds.
const (
	// FaultStall says nothing for For after After tokens of an answer; 0 is until the client leaves.
	FaultStall FaultKind = "stall"
	// FaultError answers with Status (500) before the first byte.
	FaultError FaultKind = "error"
	// FaultStreamError ends an answer after After tokens with an error inside the stream.
	FaultStreamError FaultKind = "stream_error"
	// FaultDisconnect closes the connection after After tokens of an answer.
	FaultDisconnect FaultKind = "disconnect"
	// FaultDropEvents loses a batch of events on its way; it can be replayed.
	FaultDropEvents FaultKind = "drop_events"
	// FaultGarbleEvents publishes a batch whose bytes are not what they were.
	FaultGarbleEvents FaultKind = "garble_events"
	// FaultGap skips After (1) numbers of batches: nobody can replay them.
	FaultGap FaultKind = "gap"
	// FaultLimit answers 429 with Retry-After.
	FaultLimit FaultKind = "limit"
	// FaultDrip holds each piece of an answer back for For (100ms).
	FaultDrip FaultKind = "drip"
	// FaultSlowMetrics holds /metrics back for For (10s).
	FaultSlowMetrics FaultKind = "slow_metrics"
	// FaultBlockSize says twice the block size in metrics and server information.
	FaultBlockSize FaultKind = "block_size"
	// FaultNoCached leaves the cached tokens out of answers.
	FaultNoCached FaultKind = "no_cached_tokens"
	// FaultReset closes a kept-alive connection with a reset as a request comes in on it.
	FaultReset FaultKind = "reset"
	// FaultLoading answers 503 as while the model is loaded.
	FaultLoading FaultKind = "loading"
	// FaultNoReplay leaves requests for replay without an answer.
	FaultNoReplay FaultKind = "no_replay"
	// FaultFeatures answers tokens with processed media with Status (500), as a vLLM does that cannot read them.
	FaultFeatures FaultKind = "features"
	// FaultSalts reuses across cache salts: those of requests are ignored, and llama.cpp's cache_prompt likewise.
	FaultSalts FaultKind = "ignore_salts"
)

// FaultKinds returns the kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{
		FaultStall, FaultError, FaultStreamError, FaultDisconnect, FaultDropEvents, FaultGarbleEvents, FaultGap, FaultLimit,
		FaultDrip, FaultSlowMetrics, FaultBlockSize, FaultNoCached, FaultReset, FaultLoading, FaultNoReplay, FaultFeatures, FaultSalts,
	}
}

// Fault is one switch: what goes wrong, how often and how.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Count is how many times it strikes; 0 is until it is taken away. Skip leaves the
	// first so many chances out.
	Count int `json:"count,omitempty"`
	Skip  int `json:"skip,omitempty"`
	// Probability is that of each chance; 0 reads as 1.
	Probability float64 `json:"probability,omitempty"`
	After       int     `json:"after,omitempty"`
	Status      int     `json:"status,omitempty"`
	For         Wait    `json:"for,omitempty"`
}

// Wait is a duration, in JSON as "1.5s".
type Wait time.Duration

// MarshalText implements encoding.TextMarshaler.
func (w Wait) MarshalText() ([]byte, error) { return []byte(time.Duration(w).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Wait) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*w = Wait(d)
	return err
}

// Validate says what is wrong with f.
func (f *Fault) Validate() error {
	switch {
	case !slices.Contains(FaultKinds(), f.Kind):
		return fmt.Errorf("kind %.40q is not one of %v", f.Kind, FaultKinds())
	case f.Count < 0 || f.Skip < 0 || f.After < 0 || f.For < 0:
		return errors.New("count, skip, after and for must not be negative")
	case !(f.Probability >= 0 && f.Probability <= 1):
		return fmt.Errorf("probability must be between 0 and 1, not %v", f.Probability)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status must be an error, 400 to 599, not %d", f.Status)
	}
	return nil
}

// maxFaults bounds the switches that are set at once.
const maxFaults = 64

// Faults are the switches of a server. They may be changed at any time.
type Faults struct {
	mu struct {
		sync.Mutex
		set    []Fault
		struck map[FaultKind]int
		seed   uint64
	}
}

func newFaults(seed uint64, set []Fault) *Faults {
	f := &Faults{}
	f.mu.seed = splitmix.Mix(seed ^ 0xfa017)
	f.mu.set = slices.Clone(set)
	f.mu.struck = map[FaultKind]int{}
	return f
}

// Set puts the given switches in the place of all there were.
func (f *Faults) Set(set ...Fault) error {
	if len(set) > maxFaults {
		return fmt.Errorf("%d faults; at most %d can be set at once", len(set), maxFaults)
	}
	for i := range set {
		if err := set[i].Validate(); err != nil {
			return fmt.Errorf("fault %d: %w", i, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.set = slices.Clone(set)
	return nil
}

// Struck returns how often each kind struck.
func (f *Faults) Struck(kind FaultKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.struck[kind]
}

// strikes reports whether a fault of the kind is due, and which.
func (f *Faults) strikes(kind FaultKind) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.mu.set {
		x := &f.mu.set[i]
		if x.Kind != kind {
			continue
		}
		if x.Skip > 0 {
			x.Skip--
			continue
		}
		if p := x.Probability; p > 0 && p < 1 {
			f.mu.seed += splitmix.Step
			if float64(splitmix.Mix(f.mu.seed)>>11)/(1<<53) >= p {
				continue
			}
		}
		hit := *x
		if x.Count > 0 {
			if x.Count--; x.Count == 0 {
				f.mu.set = slices.Delete(f.mu.set, i, i+1)
			}
		}
		f.mu.struck[kind]++
		return hit, true
	}
	return Fault{}, false
}

// MarshalJSON shows the switches that are set and how often each kind struck.
func (f *Faults) MarshalJSON() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return json.Marshal(struct {
		Faults []Fault           `json:"faults"`
		Struck map[FaultKind]int `json:"struck"`
	}{append([]Fault{}, f.mu.set...), f.mu.struck})
}
