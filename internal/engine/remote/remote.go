// Package remote is the shell of engines that are servers of their own: what the adapters of
// vLLM, SGLang, TensorRT-LLM and llama.cpp have in common. It speaks HTTP with them, reads
// their streams and metrics, follows what they say of their caches, keeps account of the
// requests in progress, and says aloud what makes an engine serve worse than it could. An
// adapter adds the dialect: which paths, which fields, which series.
package remote

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"penstock/internal/zmtp"
)

// Mode says in which form requests go to an engine.
type Mode string

// The modes.
const (
	ModeAuto   Mode = "auto"   // tokens if the engine takes and gives them, else pass
	ModeTokens Mode = "tokens" // tokens in and out; without, opening fails
	ModePass   Mode = "pass"   // the client's body as it is
)

// AnyRank is the Rank of an adapter that has the engine as a whole: the engine has one
// data-parallel rank, or chooses among its own.
const AnyRank = -1

// Spec says which engine an adapter speaks with, and what is known of it before asking.
type Spec struct {
	Kind string   // "vllm", "sglang", "trtllm" or "llamacpp"
	URL  *url.URL // of the API's root: http://host:8000
	// Events is where the engine publishes what its cache does, Replay where it repeats that,
	// Snapshot where it describes its cache; each zero if there is none. They are those of
	// Rank already, not of rank 0.
	Events, Replay, Snapshot zmtp.Endpoint
	// Rank is the data-parallel rank that requests are pinned to, of Ranks that the engine
	// has; AnyRank has none pinned.
	Rank, Ranks int
	APIKey      string // "" sends none
	Mode        Mode   // "" is ModeAuto
	BlockSize   int    // tokens; 0 is what the engine says
	Name        string // of the model that is served; "" is the engine's own
	// Patience is how long Open waits for an engine that is still loading; 0 is DefaultPatience.
	Patience time.Duration
}

// DefaultPatience is how long an engine may take to load: large models take many minutes.
const DefaultPatience = 30 * time.Minute

// EnsureDefaults fills in what is zero.
func (s *Spec) EnsureDefaults() {
	if s.Mode == "" {
		s.Mode = ModeAuto
	}
	if s.Ranks == 0 {
		s.Ranks = 1
	}
	if s.Patience == 0 {
		s.Patience = DefaultPatience
	}
}

// Validate reports everything that is wrong with s.
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
	case ModeAuto, ModeTokens, ModePass:
	default:
		check(false, "mode %q is not one of %s, %s and %s", s.Mode, ModeAuto, ModeTokens, ModePass)
	}
	check(s.Ranks >= 1 && s.Ranks <= 1024, "ranks must be between 1 and 1024, not %d", s.Ranks)
	check(s.Rank >= AnyRank && s.Rank < max(s.Ranks, 1), "rank %d is not one of %d", s.Rank, s.Ranks)
	check(s.BlockSize == 0 || s.BlockSize >= 2 && s.BlockSize <= 65536, "block-size must be between 2 and 65536 tokens, not %d", s.BlockSize)
	check(s.Replay.IsZero() || !s.Events.IsZero() || s.Kind == "sglang", "there is an endpoint for replay of events and none for events; set events too")
	check(s.Patience >= 0, "patience must not be negative")
	check(!strings.ContainsAny(s.APIKey, "\r\n\x00"), "the API key has a line break in it")
	return errors.Join(errs...)
}
