package engine

// The numbers of fields, as docs/format/engine.md lists them: the tests write malformed messages with them.
const (
	reqID        = 1
	reqAttempt   = 2
	reqPrompt    = 6
	reqMedia     = 7
	reqGenerated = 8
	reqDone      = 9
	reqBias      = 19
	reqMaxTokens = 20
	reqIgnoreEOS = 23
	reqSchema    = 25
	reqHints     = 26
	reqDigests   = 27
	reqObject    = 28
	reqFeatures  = 29
	reqPlace     = 32
	reqPin       = 36
	reqHolders   = 37

	embedID         = 1
	embedAttempt    = 2
	embedPrompt     = 4
	embeddingVector = 2

	prepModel      = 3
	prepChat       = 4
	prepText       = 5
	prepAddSpecial = 7

	preppedTokens   = 2
	preppedMedia    = 3
	preppedFeatures = 4
	preppedMore     = 5
	preppedDigests  = 6
	preppedReason   = 8
	preppedWhy      = 9

	objectKind   = 1
	objectHash   = 2
	objectDigest = 3
	objectShape  = 12
	objectData   = 13
)
