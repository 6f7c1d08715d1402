package handoff

import (
	"slices"
	"time"

	"penstock/core/disagg"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// engineLoad is what the engine of a decode worker has to do for requests which have a handoff. The DecodeWorker locks
// it.
type engineLoad struct {
	prefills []*followedRequest // prompts which it computes, in the order in which they came
	decoding int                // answers which have begun
	// lastFirst is when the last answer began: the engine computed nothing for the oldest prompt alone before.
	lastFirst kv.Mono
}

// followedRequest is a request which the engine serves.
type followedRequest struct {
	d      *DecodeWorker
	tokens int // of the prompt; cached of them were not to be computed when it was decided
	cached int
	since  kv.Mono
	begun  bool // the answer has begun
}

// describeLoad sets what the engine has to do: the prompts which it computes, their tokens, and the answers which have
// begun.
func (d *DecodeWorker) describeLoad(in *disagg.SplitInputs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.mu.running.prefills {
		in.LocalTokens += f.tokens - f.cached
	}
	in.LocalPrefills, in.Decoding = len(d.mu.running.prefills), d.mu.running.decoding
}

// startPrefill says that the engine computes a request of so many tokens, of which it has some.
func (f *followedRequest) startPrefill(tokens, cached int) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if !f.begun {
		f.tokens, f.cached, f.since = tokens, cached, f.d.now()
		f.d.mu.running.prefills = append(f.d.mu.running.prefills, f)
	}
}

// observeDelta takes what the engine gives.
func (f *followedRequest) observeDelta(delta *engine.Delta) {
	if len(delta.Tokens) == 0 {
		return
	}
	if tokens, took, ok := f.begin(max(delta.Cached, 0)); ok && f.d.cfg.ObserveLocal != nil {
		f.d.cfg.ObserveLocal(tokens, took)
	}
}

// begin counts the begin of the answer, once. ok says that the engine took so long for so many tokens.
func (f *followedRequest) begin(cached int) (tokens int, took time.Duration, ok bool) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.begun {
		return 0, 0, false
	}
	now, load := f.d.now(), &f.d.mu.running
	f.begun = true
	load.decoding++
	if at := slices.Index(load.prefills, f); at >= 0 {
		tokens, took, ok = max(f.tokens-cached, 1), now.Sub(max(f.since, load.lastFirst)), at == 0
		load.prefills = slices.Delete(load.prefills, at, at+1)
	}
	load.lastFirst = now
	return tokens, took, ok
}

// end ends the request.
func (f *followedRequest) end() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	load := &f.d.mu.running
	if f.begun {
		load.decoding--
	} else if at := slices.Index(load.prefills, f); at >= 0 {
		load.prefills = slices.Delete(load.prefills, at, at+1)
	}
}
