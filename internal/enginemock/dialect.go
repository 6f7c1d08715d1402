package enginemock

import (
	"net/http"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media/family"
)

// dialect holds the differences of a mocked engine, in one of its releases, from the others. Each engine's file
// makes its own; the zero value of a field is the usual behaviour.
type dialect struct {
	release *sglangRelease // of SGLang; nil otherwise
	legacy  bool           // vLLM of 2025

	// addRoutes registers the HTTP API.
	addRoutes func(*Server, *http.ServeMux)
	// errorBody is an error in the engine's format; errorTypes are its types by status, and otherError the type
	// of the other statuses.
	errorBody  func(kind string, status int, message string) object
	errorTypes map[int]string
	otherError string
	// ownErrors answers unknown paths, missing keys and requests during startup with the engine's own errors,
	// not with those of a web framework.
	ownErrors bool
	// keyed are the prefixes of the paths which need the API key; nil is all.
	keyed []string
	// startup are the only paths which are refused during startup; nil is all.
	startup []string

	// resolve returns the adapter which a request's model name means; nil accepts the served names.
	resolve func(s *Server, name string) (adapter string, err error)
	// clientIDs makes the id of an answer from the client's. negativeIsFull lets an absent or negative limit of
	// output mean all of the context; refusesExcess refuses limits beyond the context.
	clientIDs, negativeIsFull, refusesExcess bool

	// usage, message, chunk and textChunk are fields of every usage, message of a chat, chunk of a stream and
	// chunk of a completion's stream, unless they have other values. hidesZero omits zero cached tokens.
	usage, message, chunk, textChunk object
	hidesZero                        bool
	// addChoice adds fields to a part of a choice.
	addChoice func(c *apiCall, o object, p *outputPart, first bool)
	// showsPrompt adds the prompt's tokens to answers with tokens. barelyFails ends a failed stream without [DONE].
	showsPrompt, barelyFails bool
	// addWhole adds fields to an answer which is no stream, and may correct its usage. reason is why its first
	// choice ended.
	addWhole func(s *Server, c *apiCall, out object, reason string, u *usage)
	// transfer returns the part of a call in a disaggregated prefill; nil if it has none, or none before its answer.
	transfer func(s *Server, c *apiCall) *kvTransfer

	// loader says how the engine loads videos. noUUIDs ignores the client's UUIDs of media. showMedia returns the
	// token which events show for an object in place of pad; nil shows pad.
	loader    family.Loader
	noUUIDs   bool
	showMedia func(s *Server, pad kv.Token, hash uint64) kv.Token

	// mapEvents encodes events as maps by default, replayTopics adds topics to replayed batches. signedNames
	// encodes names of blocks as signed integers, noAdapterIDs omits numbers of adapters, noOffsets offsets of
	// media. extraFields are the fields of an event after the common ones; nil is the adapter's name in maps.
	mapEvents, replayTopics, signedNames, noAdapterIDs, noOffsets bool

	extraFields func(f *eventEncoder, c *cacheChange) []eventField
	// epochTopics adds the publisher's epoch to the topics of servers with snapshots. clearsAtStart publishes an
	// empty cache first; clearsLate publishes it with the next batch. pulls keeps events in a list to be pulled.
	epochTopics, clearsAtStart, clearsLate, pulls bool
	// hostMedium and diskMedium name the tiers.
	hostMedium, diskMedium string
}

// newDialect returns the dialect which c asks for.
func (c *Config) newDialect() *dialect {
	switch c.Dialect {
	case SGLang:
		return newSGLang(c.EngineVersion)
	case TRTLLM:
		return newTRTLLM()
	case LlamaCPP:
		return newLlamaCpp()
	}
	return newVLLM(c.Dialect == VLLMLegacy)
}

// webErrors are the types of errors of the servers which are written in Python.
func webErrors() map[int]string {
	return map[int]string{
		400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 422: "UnprocessableEntityError",
		429: "RateLimitError", 503: "ServiceUnavailableError",
	}
}

// flatError is an error of SGLang and TensorRT-LLM.
func flatError(kind string, status int, message string) object {
	return object{"object": "error", "message": message, "type": kind, "param": nil, "code": status}
}

// nestedError is an error of vLLM, and of every engine inside a stream.
func nestedError(kind string, status int, message string) object {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": status}}
}

// errorType is the dialect's name for a status.
func (d *dialect) errorType(status int) string {
	if kind, ok := d.errorTypes[status]; ok {
		return kind
	}
	return d.otherError
}

// refuseUnknown is the usual resolve: it accepts the names of the model and of its adapters.
func refuseUnknown(s *Server, name string) (string, error) {
	adapter, ok := s.resolveModel(name)
	if !ok {
		return "", fault.New(fault.NotFound, "The model `%s` does not exist.", name)
	}
	return adapter, nil
}
