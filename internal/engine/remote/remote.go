// Package remote is the common shell of engines that are servers: the adapters of vLLM, SGLang, TensorRT-LLM
// and llama.cpp share it. It speaks HTTP with the engine, reads its streams and metrics, follows its cache
// events, tracks the requests in progress, and reports what makes the engine serve worse than it could. An
// adapter adds the dialect: paths, fields and metric names.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/zmtp"
)

// Mode is the form in which requests are sent to an engine.
type Mode string

// The modes.
const (
	ModeAuto        Mode = "auto"   // tokens if the engine takes and returns them, else passthrough
	ModeTokens      Mode = "tokens" // tokens in and out; opening fails if the engine does not support them
	ModePassthrough Mode = "pass"   // the client's body unchanged
)

// ECRole is an engine's part in the transfer of encoded media.
type ECRole string

// The roles.
const (
	NoECRole   ECRole = ""
	ECProducer ECRole = "producer" // it encodes for others, and generates nothing
	ECConsumer ECRole = "consumer" // it takes what others encoded
)

// AnyRank is the Rank of an adapter that uses the engine as a whole: the engine has one data-parallel rank,
// or chooses among its ranks.
const AnyRank = -1

// Spec names the engine of an adapter, and what is known of it in advance.
type Spec struct {
	Kind string   // "vllm", "sglang", "trtllm", "llamacpp" or "python"
	URL  *url.URL // API root: http://host:8000
	// Events is the endpoint where the engine publishes its cache events, Replay where it replays them,
	// Snapshot where it describes its cache; each zero if there is none. They belong to Rank, not to rank 0.
	Events, Replay, Snapshot zmtp.Endpoint
	// Rank is the data-parallel rank that requests are pinned to, of Ranks that the engine has; AnyRank pins
	// none.
	Rank, Ranks int
	APIKey      string // "" sends none
	Mode        Mode   // "" is ModeAuto
	BlockSize   int    // in tokens; 0 means the engine's own
	Name        string // of the model that is served; "" means the engine's own
	ECRole      ECRole
	// KVConnector is how the engine moves KV blocks itself, according to the settings.
	KVConnector engine.KVConnector
	// LoadTimeout is how long Open waits for an engine that is still loading; 0 means DefaultLoadTimeout.
	LoadTimeout time.Duration
	// SaltWait is how long a request with a cache salt waits for the proof that the engine isolates salts; 0 means 5 s.
	SaltWait time.Duration
}

// DefaultLoadTimeout is how long an engine may take to load: large models take many minutes.
const DefaultLoadTimeout = 30 * time.Minute

// EnsureDefaults sets the defaults of zero fields.
func (s *Spec) EnsureDefaults() {
	s.Mode = cmp.Or(s.Mode, ModeAuto)
	s.Ranks = cmp.Or(s.Ranks, 1)
	s.LoadTimeout = cmp.Or(s.LoadTimeout, DefaultLoadTimeout)
}

// Validate reports every problem of s.
func (s *Spec) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("engine: "+format, args...))
		}
	}
	if s.URL == nil {
		check(false, "the URL is missing; write http://host:port")
	} else {
		check(s.URL.Scheme == "http" || s.URL.Scheme == "https", "the URL has scheme %q; http and https are spoken", s.URL.Scheme)
		check(s.URL.Host != "", "the URL has no host; write http://host:port")
		check(s.URL.User == nil, "the URL has credentials in it; put the key into a file and name that")
		check(s.URL.RawQuery == "" && s.URL.Fragment == "", "the URL has a query or a fragment; only scheme, host and path are meant")
	}
	switch s.Mode {
	case ModeAuto, ModeTokens, ModePassthrough:
	default:
		check(false, "mode %q is not one of %s, %s and %s", s.Mode, ModeAuto, ModeTokens, ModePassthrough)
	}
	check(s.Ranks >= 1 && s.Ranks <= 1024, "ranks must be between 1 and 1024, not %d", s.Ranks)
	check(s.Rank >= AnyRank && s.Rank < max(s.Ranks, 1), "rank %d is not one of %d", s.Rank, s.Ranks)
	check(s.BlockSize == 0 || s.BlockSize >= 2 && s.BlockSize <= 65536, "block-size must be between 2 and 65536 tokens, not %d", s.BlockSize)
	check(s.Replay.IsZero() || !s.Events.IsZero() || s.Kind == "sglang", "there is an endpoint for replay of events and none for events; set events too")
	check(s.LoadTimeout >= 0, "patience must not be negative")
	check(!strings.ContainsAny(s.APIKey, "\r\n\x00"), "the API key has a line break in it")
	return errors.Join(errs...)
}

// lifecycle makes calls wait until the engine's adapter runs, and ends them when it stops. It goes from
// waiting (before run) to running (until run's ctx ends) to stopped.
type lifecycle struct {
	running chan struct{} // closed when it starts, after ctx was set
	ctx     context.Context
}

func stoppedError() error {
	return fault.New(fault.Unavailable, "the engine's adapter has stopped; another worker can serve the request")
}

// enterCall waits until the adapter runs. The context that it returns ends with ctx and when the adapter
// stops; leave must be called.
func (l *lifecycle) enterCall(ctx context.Context) (inside context.Context, leave func(), err error) {
	select {
	case <-l.running:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case l.ctx.Err() != nil:
		return nil, nil, stoppedError()
	}
	inside, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(stoppedError()) })
	return inside, func() { stop(); cancel(nil) }, nil
}

// run admits calls and runs tasks until ctx ends, then ends the calls, and returns after the tasks. It is
// called once.
func (l *lifecycle) run(ctx context.Context, tasks ...func(context.Context)) {
	l.ctx = ctx
	close(l.running)
	var wg sync.WaitGroup
	for _, task := range tasks {
		wg.Go(func() { task(ctx) })
	}
	wg.Wait()
	<-ctx.Done()
}

// callError returns the error of a call: that of the stopped adapter if this is the cause.
func callError(inside context.Context, err error) error {
	if f := (*fault.Error)(nil); inside.Err() != nil && errors.As(context.Cause(inside), &f) {
		return f
	}
	return err
}
