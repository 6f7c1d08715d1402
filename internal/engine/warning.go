package engine

// WarningSource is an engine that notices what makes it serve worse than it could, or
// than its users believe: silent degradation, said aloud.
type WarningSource interface {
	// Warnings returns what is wrong now, by code; nil if nothing is. The slice belongs to the caller.
	Warnings() []Warning
}

// Warning is one thing that is wrong with an engine. It is JSON in load reports.
type Warning struct {
	// Code names the kind, the same for all engines: one of the constants below.
	Code string `json:"code"`
	// Detail is a sentence with the values that were seen, and Remedy what to do.
	// Neither has prompts, tokens or keys; together at most 400 bytes.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// The codes of warnings.
const (
	WarnNoEvents    = "no_kv_events"     // the engine's events are off, or were not configured: routing is by guess
	WarnEventsLost  = "kv_events_lost"   // a gap that could not be repaired: what was cached before is unknown
	WarnEventsBad   = "kv_events_bad"    // batches that cannot be read
	WarnEventsAlone = "kv_events_silent" // the engine caches by its own account, and no event says so
	// The engine stores blocks behind ones that it cached before its events were followed: they wait until a request
	// shows which those are.
	WarnOrphans     = "kv_events_orphaned"
	WarnBlockSize   = "block_size"          // events, metrics and settings name different block sizes
	WarnNoCache     = "prefix_cache_off"    // the engine reuses nothing
	WarnNoReport    = "no_cached_tokens"    // the engine does not report cached tokens: predictions cannot be checked
	WarnMispredict  = "cache_mispredicted"  // the engine keeps finding less, or more, than its events promise
	WarnMedia       = "media_unknown"       // the engine caches media of which it is not known here which they are
	WarnFeatures    = "features_refused"    // the engine does not take what another one's processor made of media
	WarnNoMetrics   = "no_metrics"          // load cannot be read: only this fleet's own requests count
	WarnUnreachable = "unreachable"         // the engine does not answer
	WarnSalts       = "cache_salts_refused" // the engine is not known to keep cache salts apart: requests with one are refused
	WarnText        = "no_tokens_out"       // the engine answers with text only: streams cannot move exactly
)

// OfEvents reports whether w says that the engine's cache events do not come, or not as they
// should, so that what is known of its cache is not what it has.
func (w Warning) OfEvents() bool {
	switch w.Code {
	case WarnNoEvents, WarnEventsLost, WarnEventsBad, WarnEventsAlone, WarnOrphans, WarnBlockSize:
		return true
	}
	return false
}
