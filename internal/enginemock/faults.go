package enginemock

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
	// FaultStall sends nothing for For after After tokens of an answer; 0 is until the client disconnects.
	FaultStall FaultKind = "stall"
	// FaultError answers with Status (500) before the first byte.
	FaultError FaultKind = "error"
	// FaultStreamError ends an answer after After tokens with an error inside the stream.
	FaultStreamError FaultKind = "stream_error"
	// FaultDisconnect closes the connection after After tokens of an answer.
	FaultDisconnect FaultKind = "disconnect"
	// FaultDropEvents drops a batch of events on the wire; it can be replayed.
	FaultDropEvents FaultKind = "drop_events"
	// FaultGarbleEvents publishes a batch with corrupted bytes.
	FaultGarbleEvents FaultKind = "garble_events"
	// FaultGap skips After (1) batch numbers, which cannot be replayed.
	FaultGap FaultKind = "gap"
	// FaultLimit answers 429 with Retry-After.
	FaultLimit FaultKind = "limit"
	// FaultDrip delays each part of an answer by For (100ms).
	FaultDrip FaultKind = "drip"
	// FaultSlowMetrics delays /metrics by For (10s).
	FaultSlowMetrics FaultKind = "slow_metrics"
	// FaultBlockSize reports twice the block size in metrics and server information.
	FaultBlockSize FaultKind = "block_size"
	// FaultNoCached omits the cached tokens from answers.
	FaultNoCached FaultKind = "no_cached_tokens"
	// FaultReset resets a kept-alive connection when a request arrives on it.
	FaultReset FaultKind = "reset"
	// FaultLoading answers 503 as during model loading.
	FaultLoading FaultKind = "loading"
	// FaultNoReplay does not answer requests for replay.
	FaultNoReplay FaultKind = "no_replay"
	// FaultFeatures answers tokens with processed media with Status (500), as a vLLM that cannot read them.
	FaultFeatures FaultKind = "features"
	// FaultEncodings answers requests that name encoder outputs with status 500 before the first token, as a vLLM
	// which cannot get them. FaultLostEncoding loses the output which a producer has just announced.
	FaultEncodings    FaultKind = "encodings"
	FaultLostEncoding FaultKind = "lost_encoding"
	// FaultSalts reuses blocks across cache salts: it ignores the salts of requests, and llama.cpp's
	// cache_prompt.
	FaultSalts FaultKind = "ignore_salts"
)

// FaultKinds returns the kinds.
func FaultKinds() []FaultKind {
	return []FaultKind{
		FaultStall, FaultError, FaultStreamError, FaultDisconnect, FaultDropEvents, FaultGarbleEvents, FaultGap, FaultLimit,
		FaultDrip, FaultSlowMetrics, FaultBlockSize, FaultNoCached, FaultReset, FaultLoading, FaultNoReplay, FaultFeatures, FaultEncodings, FaultLostEncoding, FaultSalts,
	}
}

// Fault is one switch: what goes wrong, how often and how.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Count is how many times it triggers; 0 is until it is removed. Skip ignores the first Skip
	// opportunities.
	Count int `json:"count,omitempty"`
	Skip  int `json:"skip,omitempty"`
	// Probability is that of each opportunity; 0 means 1.
	Probability float64 `json:"probability,omitempty"`
	After       int     `json:"after,omitempty"`
	// MinTokens spares answers whose request allows fewer tokens, such as a health check's. It is for stall,
	// stream_error, disconnect and drip.
	MinTokens int  `json:"min_tokens,omitempty"`
	Status    int  `json:"status,omitempty"`
	For       Wait `json:"for,omitempty"`

	setNumber int // of the set from which it was taken
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

// Validate reports the first invalid field of f.
func (f *Fault) Validate() error {
	switch {
	case !slices.Contains(FaultKinds(), f.Kind):
		return fmt.Errorf("kind %.40q is not one of %v", f.Kind, FaultKinds())
	case min(f.Count, f.Skip, f.After, f.MinTokens) < 0 || f.For < 0:
		return errors.New("count, skip, after, min_tokens and for must not be negative")
	case !(f.Probability >= 0 && f.Probability <= 1):
		return fmt.Errorf("probability must be between 0 and 1, not %v", f.Probability)
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status must be an error, 400 to 599, not %d", f.Status)
	}
	return nil
}

// maxFaults bounds the switches which are set at once.
const maxFaults = 64

// Faults are the switches of a server. They may be changed at any time.
type Faults struct {
	mu struct {
		sync.Mutex
		set      []Fault
		replaced int // how often set was replaced
		struck   map[FaultKind]int
		seed     uint64
	}
}

func newFaults(seed uint64, set []Fault) *Faults {
	f := &Faults{}
	f.mu.seed = splitmix.Mix(seed ^ 0xfa017)
	f.mu.set = slices.Clone(set)
	f.mu.struck = map[FaultKind]int{}
	return f
}

// Set replaces all switches with the given ones.
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
	f.mu.replaced++
	return nil
}

// TriggerCount returns how often faults of a kind triggered.
func (f *Faults) TriggerCount(kind FaultKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.struck[kind]
}

// takeDue reports whether a fault of the kind is due, and which. It counts it as triggered.
func (f *Faults) takeDue(kind FaultKind) (Fault, bool) {
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
		hit.setNumber = f.mu.replaced
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

// giveBack undoes takeDue for a fault which did not strike, because the answer ended before.
func (f *Faults) giveBack(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.struck[x.Kind]--
	if x.Count == 0 || x.setNumber != f.mu.replaced {
		return
	}
	x.setNumber = 0
	for i := range f.mu.set {
		same := f.mu.set[i]
		if same.Count, x.Count = 1, 1; same == x {
			f.mu.set[i].Count++
			return
		}
	}
	f.mu.set = append(f.mu.set, x)
}

// MarshalJSON encodes the switches and how often each kind triggered.
func (f *Faults) MarshalJSON() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return json.Marshal(struct {
		Faults []Fault           `json:"faults"`
		Struck map[FaultKind]int `json:"struck"`
	}{append([]Fault{}, f.mu.set...), f.mu.struck})
}
