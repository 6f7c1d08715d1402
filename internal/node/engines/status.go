package engines

import (
	"slices"
	"strings"

	"penstock/internal/engine"
)

// The states of a remote engine.
const (
	StateAsking      = "asking"  // not yet reached or given up
	StateWaiting     = "waiting" // it does not answer, and is retried
	StateOpening     = "opening" // it answers, and its workers are being made
	StateServing     = "serving"
	StateUnreachable = "unreachable" // it served, and now does not answer: its workers wait for it
	StateRefused     = "refused"     // it answers but cannot be used, and is retried
)

// The sources of what routers know of an engine's cache.
const (
	EventsYes     = "yes"     // the engine reports what it stores and evicts
	EventsGuessed = "guessed" // predicted from the requests sent there, corrected by the engine's reports
	EventsNo      = "no"      // nothing except the routers' predictions
)

// Status is the status of a remote engine.
type Status struct {
	Kind   string `json:"kind"` // one of config.RemoteKinds
	URL    string `json:"url"`
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"` // why it does not serve

	// While it serves.
	Model     string   `json:"model,omitempty"`
	Adapters  []string `json:"adapters,omitempty"`
	Workers   []uint64 `json:"workers,omitempty"` // one for each data-parallel rank
	Role      string   `json:"role,omitempty"`    // of the workers, if they take no requests: "encode"
	BlockSize int      `json:"block_size,omitempty"`
	Blocks    int      `json:"blocks,omitempty"` // of a rank
	Events    string   `json:"events,omitempty"` // EventsYes, EventsGuessed or EventsNo
	// Tokenizer is where texts become tokens: a directory, or "engine".
	Tokenizer string `json:"tokenizer,omitempty"`
	Chat      bool   `json:"chat,omitempty"` // whether it accepts conversations
	// Media are the kinds of media that the model accepts. MediaNamed means that the engine names media by
	// the identities with which requests are routed.
	Media      []string         `json:"media,omitempty"`
	MediaNamed bool             `json:"media_named,omitempty"`
	Notes      []string         `json:"notes,omitempty"` // possible improvements
	Warnings   []engine.Warning `json:"warnings,omitempty"`
	// MediaChecks compares media token counts with the engine's, since it started.
	MediaChecks []engine.MediaCheck `json:"media_checks,omitempty"`
}

// Name names an engine for people.
func (s *Status) Name() string { return s.Kind + "=" + s.URL }

// currentStatus returns the engine's status without its adapters' warnings.
func (e *remoteEngine) currentStatus() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.status
}

// fullStatus returns the engine's status with its adapters' warnings.
func (e *remoteEngine) fullStatus() Status {
	s := e.currentStatus()
	for _, w := range e.currentWorkers() {
		// The warnings are read last: a difference that MediaChecks reports is among them.
		if src, ok := w.engine.(engine.MediaCheckSource); ok {
			s.MediaChecks = append(s.MediaChecks, src.MediaChecks()...)
		}
		s.Warnings = append(s.Warnings, engine.WarningsOf(w.engine)...)
	}
	if i := slices.IndexFunc(s.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable }); i >= 0 && s.State == StateServing {
		s.State, s.Detail = StateUnreachable, s.Warnings[i].Detail
	}
	return s
}

// setServing records that the engine serves.
func (e *remoteEngine) setServing(card engine.Card, workers []rankWorker, o *openedEngine) {
	s := Status{
		Kind: e.spec.Kind, URL: e.spec.URL.String(), State: StateServing,
		Model: card.Name, Adapters: card.Adapters, BlockSize: card.BlockSize, Blocks: card.Blocks,
		Events: EventsOf(o.ranks[0]), Tokenizer: o.tokenizer, Chat: o.chat, Notes: o.notes,
		Role: string(card.Role), Media: card.Media, MediaNamed: !o.textRouted && (card.AcceptsObjects || card.MediaKeys != ""),
	}
	for _, w := range workers {
		s.Workers = append(s.Workers, uint64(w.id))
	}
	e.mu.Lock()
	e.mu.status, e.mu.workers = s, workers
	e.mu.Unlock()
	e.log.Info("the engine serves", "model", s.Model, "workers", len(workers), "events", s.Events, "tokenizer", s.Tokenizer, "block_size", s.BlockSize, "blocks", s.Blocks, "media", strings.Join(s.Media, ","))
	for _, note := range o.notes {
		e.log.Warn(note)
	}
}

// EventsOf returns the source of what routers know of an engine's cache.
func EventsOf(e engine.Engine) string {
	if _, ok := e.(engine.KVSource); !ok {
		return EventsNo
	}
	if e.Card().KVPredicted {
		return EventsGuessed
	}
	return EventsYes
}

// setNotServing records a state in which the engine does not serve.
func (e *remoteEngine) setNotServing(state, detail string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.workers = nil
	e.mu.status = Status{Kind: e.spec.Kind, URL: e.spec.URL.String(), State: state, Detail: detail}
}

// isUnreachable reports whether an adapter considers its engine unreachable.
func isUnreachable(e engine.Engine) bool {
	return slices.ContainsFunc(engine.WarningsOf(e), func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable })
}
