package engine

// WarningSource is an engine that detects when it serves worse than it could, or than routers assume: it
// reports silent degradation.
type WarningSource interface {
	// Warnings returns the current problems, by code; nil if there are none. The slice belongs to the caller.
	Warnings() []Warning
}

// WarningsOf returns the warnings of an engine; nil if it is no WarningSource.
func WarningsOf(e Engine) []Warning {
	if src, ok := e.(WarningSource); ok {
		return src.Warnings()
	}
	return nil
}

// Warning is one problem of an engine. It is JSON in load reports.
type Warning struct {
	// Code names the kind of problem, the same for all engines: one of the constants below.
	Code string `json:"code"`
	// Detail is a sentence with the values that were seen, and Remedy what to do. Neither contains prompts,
	// tokens or keys; together they have at most 400 bytes.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// The codes of warnings.
const (
	WarnNoEvents     = "no_kv_events"     // the engine's events are off, or were not configured: routing uses predictions
	WarnEventsLost   = "kv_events_lost"   // a gap that could not be repaired: earlier cache content is unknown
	WarnEventsBad    = "kv_events_bad"    // batches that cannot be read
	WarnEventsSilent = "kv_events_silent" // the engine's metrics show cached blocks, but no event reports them
	// The engine stores blocks whose parents it cached before its events were followed: they wait until a
	// request reveals the parents.
	WarnOrphans        = "kv_events_orphaned"
	WarnBlockSize      = "block_size"          // events, metrics and settings name different block sizes
	WarnNoCache        = "prefix_cache_off"    // the engine reuses nothing
	WarnNoCachedTokens = "no_cached_tokens"    // the engine does not report cached tokens: predictions cannot be checked
	WarnMispredict     = "cache_mispredicted"  // the engine keeps finding fewer, or more, cached tokens than its events predict
	WarnMediaUnknown   = "media_unknown"       // the engine caches media whose identity is unknown here
	WarnMediaCounts    = "media_counts_differ" // the engine's token counts of media differ from Penstock's
	WarnMediaUncounted = "media_not_counted"   // how the model's prompts show media is unknown here: requests with media are routed by their text
	WarnFeatures       = "features_refused"    // the engine does not take another engine's processed media
	WarnNoMetrics      = "no_metrics"          // load cannot be read: only this fleet's own requests count
	WarnUnreachable    = "unreachable"         // the engine does not answer
	WarnSaltsRefused   = "cache_salts_refused" // the engine may not isolate cache salts: requests with one are refused
	WarnRoleUnused     = "role_unused"         // the worker's role serves nothing, with its engine or in its fleet
	WarnTextOnly       = "no_tokens_out"       // the engine answers with text only: streams cannot move exactly
)

// ConcernsEvents reports whether w says that the engine's cache events are missing or wrong, so that the
// known content of its cache is not the actual one.
func (w Warning) ConcernsEvents() bool {
	switch w.Code {
	case WarnNoEvents, WarnEventsLost, WarnEventsBad, WarnEventsSilent, WarnOrphans, WarnBlockSize:
		return true
	}
	return false
}
