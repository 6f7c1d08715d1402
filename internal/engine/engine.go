// Package engine is the contract between Penstock and anything that produces tokens: the built-in engines and
// the adapters of real ones.
//
// Resumption is part of the contract. A request carries the tokens that earlier attempts already delivered;
// random draws are a function of seed, choice and absolute position; penalties and limits count the earlier
// output. So a stream that moves between engines of equal numerics is, token for token, the stream that did
// not move.
package engine

import (
	"context"

	"penstock/core/disagg"
	"penstock/core/encode"
	"penstock/core/kv"
	"penstock/core/kvfeed/embfeed"
	"penstock/core/media"
)

// Engine produces tokens. Implementations are safe for concurrent use.
type Engine interface {
	// Card describes the model served. It does not change, except for the adapters of an AdapterWatcher: the
	// card has them as they were at one time.
	Card() Card
	// Run does the engine's work until ctx ends and then returns nil. Generate may be called before Run and
	// waits for it.
	Run(ctx context.Context) error
	// Generate serves one request and calls sink with each delta in order. The first delta has Accepted set
	// and no tokens; nothing before it commits the engine. A request with media is accepted when all of them
	// are encoded; until then the engine may refuse it with a [MediaFailure] of each object at fault, and silence
	// means that it encodes. A choice's last delta has its Finish set, and
	// Generate returns nil after the last delta of the last choice. It returns ctx's error when ctx ends,
	// sink's error if sink fails, or a *fault.Error; in each case it releases the request's blocks before it
	// returns. sink must not keep the delta or its slices.
	Generate(ctx context.Context, req *Request, sink func(*Delta) error) error
}

// KVSource is an engine that reports the content of its KV cache.
type KVSource interface {
	// WatchKV calls sink with a Cleared event and Stored events that describe everything cached now, then
	// with every change in order, until ctx ends or sink fails. Several watchers may run. A slow watcher
	// never holds up the engine: when its bounded queue overflows it is restarted with Cleared. A block with
	// several copies in one tier is stored with the first copy and removed with the last. sink must not keep
	// the slice.
	WatchKV(ctx context.Context, sink func([]kv.Event) error) error
}

// EmbeddingSource is an embedding cache that reports its content.
type EmbeddingSource interface {
	// WatchEmbeddings calls sink with a Cleared event and Added events that describe what can be read now, then with
	// every change in order, as KVSource.WatchKV does for blocks. An entry is reported as added after its rows can
	// be read, and as ended before its memory is used again. sink must not keep the slice.
	WatchEmbeddings(ctx context.Context, sink func([]embfeed.Event) error) error
}

// LoadSource is an engine that reports its load.
type LoadSource interface {
	Load() Load
}

// Load is an engine's load at one moment.
type Load struct {
	Running       int    `json:"running"`        // sequences in the batch
	Waiting       int    `json:"waiting"`        // sequences queued or preempted, or paused until their media are encoded
	UsedBlocks    int    `json:"used_blocks"`    // blocks referenced by sequences
	CachedBlocks  int    `json:"cached_blocks"`  // blocks kept for reuse only
	TotalBlocks   int    `json:"total_blocks"`   // capacity
	PrefillTokens int    `json:"prefill_tokens"` // prompt tokens not computed yet
	Preemptions   uint64 `json:"preemptions"`    // since the engine started
	// The same sequences by state: Encoding need media which are being encoded, of the others Ready wait and Active are
	// in the batch. They add up to Running and Waiting; all are 0 if the engine does not report states.
	Encoding int `json:"encoding,omitempty"`
	Ready    int `json:"ready,omitempty"`
	Active   int `json:"active,omitempty"`
}

// Add adds the load of another engine.
func (l *Load) Add(o Load) {
	l.Running += o.Running
	l.Waiting += o.Waiting
	l.UsedBlocks += o.UsedBlocks
	l.CachedBlocks += o.CachedBlocks
	l.TotalBlocks += o.TotalBlocks
	l.PrefillTokens += o.PrefillTokens
	l.Preemptions += o.Preemptions
	l.Encoding += o.Encoding
	l.Ready += o.Ready
	l.Active += o.Active
}

// AdapterSource is an engine that reports which LoRA adapters are loaded.
type AdapterSource interface {
	// LoadedAdapters returns the adapters of the card that are in the engine's memory now, ascending. The slice
	// belongs to the caller.
	LoadedAdapters() []string
}

// AdapterWatcher is an engine whose set of adapters changes while it runs.
type AdapterWatcher interface {
	// WatchAdapters calls sink with the new value of Card.Adapters, now and whenever it changes, until ctx
	// ends, and then returns nil. sink keeps the slice. Requests for an adapter that is no longer listed may
	// still arrive for a while.
	WatchAdapters(ctx context.Context, sink func(adapters []string)) error
}

// MediaCountWatcher is an engine that compares, while it runs, its token counts of media with Penstock's.
type MediaCountWatcher interface {
	// WatchMediaCounts calls sink with the new value of Card.MiscountedMedia, now and whenever it changes,
	// until ctx ends, and then returns nil. sink keeps the slice.
	WatchMediaCounts(ctx context.Context, sink func(kinds []string)) error
}

// Card describes a served model for frontends and routers. It is JSON in discovery: fields are only ever
// added.
type Card struct {
	// Name is the "model" of client requests; Aliases are further names.
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Engine  string   `json:"engine"` // "tiny", "sim", "vllm", …
	// Role is the part of requests that the worker is for. The worker sets it.
	Role Role `json:"role,omitempty"`
	// BlockSize is in tokens, Blocks the capacity of one rank, Ranks the number of data-parallel ranks (at
	// least 1).
	BlockSize int `json:"block_size"`
	Blocks    int `json:"blocks"`
	Ranks     int `json:"ranks"`
	// ContextLength bounds prompt plus output tokens.
	ContextLength int `json:"context_length"`
	VocabSize     int `json:"vocab_size"`
	// DefaultMaxTokens bounds the output of a request that sets no limit; 0 means the rest of the context
	// length.
	DefaultMaxTokens int        `json:"default_max_tokens,omitempty"`
	EOS              []kv.Token `json:"eos,omitempty"`
	// Defaults are the checkpoint's recommended sampling parameters.
	Defaults Sampling `json:"defaults"`
	// Numerics names what must be equal for two engines to continue each other's streams bit for bit:
	// weights, kernel and CPU architecture.
	Numerics string `json:"numerics"`
	// Encoder names what must be equal for two media encoders to make the same rows, see media.EncoderRows: weights,
	// numerics and processor settings. "" is unknown.
	Encoder string `json:"encoder,omitempty"`
	// KVEvents says that the worker publishes the content of its cache. The worker sets it; without it
	// routers expect no event feed.
	KVEvents bool `json:"kv_events,omitempty"`
	// EmbeddingEvents says that the worker publishes the content of its embedding cache. The worker sets it.
	EmbeddingEvents bool `json:"embedding_events,omitempty"`
	// EmbeddingRegion is where other processes of the worker's host read its embedding cache (embregion.Owner); "" is
	// nowhere. The worker sets it.
	EmbeddingRegion string `json:"embedding_region,omitempty"`
	// Exchange says how workers of role prefill and decode exchange KV blocks; nil for other workers, and where none is
	// exchanged. The worker sets it. Its Epoch is that of the registration.
	Exchange *disagg.Metadata `json:"exchange,omitempty"`
	// KVConnector says how the engine moves KV blocks between engines of the same make itself; "" if it does not.
	KVConnector KVConnector `json:"kv_connector,omitempty"`
	// KVPredicted says that those events are a prediction: the worker derives them from the requests that it
	// sent and the cached tokens that the engine reported, since the engine reports no KV events.
	KVPredicted bool `json:"kv_guessed,omitempty"`
	// NoPrefixCache says that the engine's prefix cache is off: routers predict no hits for it.
	NoPrefixCache bool `json:"no_reuse,omitempty"`
	// Adapters are the LoRA adapters that the engine serves, ascending. Each is a model name of its own, with
	// Name as its parent. A request for one has it as Model and in its Salt.
	Adapters []string `json:"adapters,omitempty"`
	// PassthroughPaths are the paths of the HTTP API whose requests the engine takes unchanged
	// ("/v1/chat/completions"), ascending: it is a PassthroughEngine. The worker sets them.
	PassthroughPaths []string `json:"passes,omitempty"`
	// Media are the kinds of media that the model accepts ("audio", "image", "video"), ascending; nil is text
	// only. AcceptsObjects says that the engine takes media with a Request's tokens, as its Objects; other
	// engines take them in passthrough requests.
	Media          []string `json:"media,omitempty"`
	AcceptsObjects bool     `json:"attaches,omitempty"`
	// MediaKeys names how an engine that takes media in passthrough conversations is sent the keys of a
	// PassthroughRequest's Objects: MediaKeysUUID. Without it the engine's cache has media names of its own,
	// and the part of a prompt after its media cannot be found in that cache.
	MediaKeys string `json:"media_keys,omitempty"`
	// ProcessorArgs are the arguments with which the engine calls its media processor, where its settings
	// name them: a JSON object, as in vLLM's --mm-processor-kwargs. They change the token counts of media.
	ProcessorArgs string `json:"mm_processor_kwargs,omitempty"`
	// MiscountedMedia are the kinds of media for which the engine's token counts were found to differ from
	// Penstock's, ascending; see MediaCountWatcher. Requests that show one are routed by their text.
	MiscountedMedia []string `json:"media_miscounted,omitempty"`
	// Features says that the engine returns the output of its media processor with the prompt that it makes
	// of a conversation (Preprocessed.Features), and that it takes such features in a Request's Features from
	// any engine of the model, so that it need not process the media again.
	Features bool `json:"features,omitempty"`
	// Fetches says that the worker takes the Features of a request also by FeaturesAt.
	Fetches bool `json:"fetches,omitempty"`
	// MediaDecoder says that frontends fetch and decode media for the engine and identify them by their
	// pixels; nil leaves both to the engine.
	MediaDecoder *MediaDecoder `json:"media_decoder,omitempty"`
	// ResolvesMedia says that the engine, which is a router process, resolves the media of conversations for
	// frontends: it is a Preprocessor and takes a PreprocessRequest with ResolveMedia.
	ResolvesMedia bool `json:"sights,omitempty"`
	// Embeddings says that the engine is an Embedder. The worker sets it; workers without it get no embedding
	// requests.
	Embeddings bool `json:"embeddings,omitempty"`
	// Preprocess says that the engine is a Preprocessor. The worker sets it; workers without it get no
	// preprocess requests.
	Preprocess bool `json:"preprocess,omitempty"`
	// StructuredOutput says that the engine takes requests with an OutputSchema.
	StructuredOutput bool `json:"guided,omitempty"`
	// ToolParser and ReasoningParser name the format in which the model writes tool calls and reasoning: ""
	// means the format is derived from its chat template, vocabulary or name, "none" means neither.
	ToolParser      string `json:"tool_parser,omitempty"`
	ReasoningParser string `json:"reasoning_parser,omitempty"`
	// Pool is the pool of KV blocks which the worker shares with others; nil without one.
	Pool *CardPool `json:"pool,omitempty"`
	// Router says that the worker is a router process, which forwards requests to workers of its own.
	Router bool `json:"router,omitempty"`
	// MaxBatchedTokens is how many tokens the engine computes in one step; 0 if unknown. Routers use it to
	// measure the queue of waiting prompts.
	MaxBatchedTokens int `json:"max_num_batched_tokens,omitempty"`
	// Experts are the experts of a mixture-of-experts model that the worker hosts, if it does not host all;
	// nil if unknown.
	Experts []HostedExperts `json:"experts,omitempty"`
	// Tokenizer says where the tokenizer and chat template come from.
	Tokenizer TokenizerRef `json:"tokenizer"`
}

// CardPool is a pool of KV blocks as a worker has attached it.
type CardPool struct {
	ID kv.PoolID `json:"id"`
	// Generation is random, and of the memory (pool.View.Generation): workers whose pools have one ID and two generations
	// share nothing.
	Generation string `json:"generation"`
}

// MediaKeysUUID is the MediaKeys of engines that take a key as the "uuid" of the part that shows the object
// (media.Key.UUID).
const MediaKeysUUID = "uuid"

// MediaDecoder says how media are decoded for an engine.
type MediaDecoder struct {
	// Transfer is how decoded media reach the worker: "shm", "network" or "off". With "off" only the keys are
	// sent, and the engine fetches the media itself.
	Transfer string `json:"transfer,omitempty"`
}

// HostedExperts are the experts of one layer that a worker hosts.
type HostedExperts struct {
	Layer uint32 `json:"layer_id"`
	// Experts are ascending. Shares is nil or has one entry for each expert: the share of the expert's tokens
	// that the worker computes itself, from 0 to 1, where other workers have replicas of it. nil means 1 for
	// all.
	Experts []uint32  `json:"expert_ids"`
	Shares  []float64 `json:"shares,omitempty"`
}

// TokenizerOfEngine is the kind of a tokenizer that only the engine has.
const TokenizerOfEngine = "engine"

// TokenizerRef locates a tokenizer: the one built into the binary, the files of a checkpoint directory with
// the digest that they must have, or one that only the engine has. In the last case texts become tokens in
// the engine, if it is a Preprocessor, and tokens never become text here.
type TokenizerRef struct {
	Kind   string `json:"kind"`             // "builtin", "dir" or TokenizerOfEngine
	Dir    string `json:"dir,omitempty"`    // for "dir"
	Digest string `json:"digest,omitempty"` // hex SHA-256 over the files read
}

// Request is one attempt at a generation.
type Request struct {
	ID      string // client request id, the same for all attempts
	Attempt uint32 // from 1; identifies late answers of an old attempt, which are dropped
	Model   string
	Salt    kv.Salt
	Prompt  []kv.Token
	// Media are the ranges of placeholder tokens where the prompt shows media, with one token for each row of
	// encoder output. Objects are the media shown, in the same order, or nil if there are none or the engine
	// does not take them (Card.AcceptsObjects).
	Media   []kv.Media
	Objects []media.Object
	// Features is the output of the media processor of one of the model's engines, as that engine encoded it
	// (Preprocessed.Features); nil if there is none. Only engines whose card says Features take it; others
	// refuse it with [RefuseFeatures], since they would answer without having seen the media.
	Features []byte
	// FeaturesAt is where the worker fetches Features, if they do not travel with the request. Only workers whose card
	// says Fetches take it; engines never see it.
	FeaturesAt Lent
	// Generated are, for each choice, the tokens that earlier attempts delivered; nil on a first attempt,
	// else of length Choices.
	Generated [][]kv.Token
	// Done says which choices already finished; nil or of length Choices.
	Done     []bool
	Choices  int // at least 1; all run on one engine in one attempt
	Sampling Sampling
	Stop     Stop
	// Logprobs is -1 for none, else how many alternatives to report in addition to the chosen token.
	Logprobs int
	// Hints are the client's routing hints, encoded for a router process that picks the worker; nil if none.
	// Engines ignore them.
	Hints []byte
	// OutputSchema constrains the text of every choice; nil is free text. Only engines whose card says
	// StructuredOutput take it; others refuse it with [RefuseSchema].
	OutputSchema *OutputSchema
	// Leg is the part of the request that this attempt asks for, and Handoff what the leg before gave; nil on
	// the first.
	Leg     Leg
	Handoff *Handoff
	// Split is what is asked of the decode worker about where the prompt is computed; what is unset is as the worker has
	// it. Engines ignore it.
	Split disagg.SplitSettings
	// Prefill says which prefill worker may compute the prompt for a decode worker. Engines ignore it.
	Prefill PrefillHint
}

// PrefillHint is what the one which sends a request to a decode worker knows of prefill workers. The zero value is
// nothing.
type PrefillHint struct {
	// Pin, if not 0, is the only prefill worker which may compute the prompt: the client names it.
	Pin kv.WorkerID
	// Holders are the prefill workers which hold most of the prompt, the one which holds most first: at most
	// MaxPrefillHolders.
	Holders []kv.PrefixHolder
}

// MaxPrefillHolders bounds PrefillHint.Holders.
const MaxPrefillHolders = 8

// OutputSchema constrains the text of a choice. It applies to the whole text, Generated included, when the
// choice ends with FinishStop; a choice that ends with FinishLength is a prefix of a matching text.
//
// Stop tokens may be drawn exactly where the text before them is complete; the text of a stop token itself
// does not count. Other tokens without text are never drawn. MinTokens does not delay the end of a text to
// which nothing can be added. If no stop token can be drawn, because the model has none or IgnoreEOS is set,
// the choice ends after the token that no other token may follow; a text that is complete and may continue,
// such as a number, continues. That end is a delta without tokens whose Finish is FinishStop, so that the
// last token is not mistaken for a stop token.
type OutputSchema struct {
	// Schema is a JSON Schema that the text must match: of 1 to MaxSchema bytes. {"type":"object"} asks for
	// any object. An engine refuses what it cannot enforce as Invalid, about the parameter SchemaParam.
	Schema []byte
}

// MaxSchema bounds the schema of an OutputSchema in bytes.
const MaxSchema = 256 << 10

// SchemaParam is the client's parameter from which an OutputSchema is made; errors about it carry this name.
const SchemaParam = "response_format"

// Sampling says how tokens are drawn. The zero value is greedy, where RepetitionPenalty 0 means 1. The JSON
// form is that of model cards.
type Sampling struct {
	Temperature       float64     `json:"temperature"`                  // 0 is greedy
	TopK              int         `json:"top_k,omitempty"`              // 0 is off
	TopP              float64     `json:"top_p,omitempty"`              // 0 or 1 is off
	MinP              float64     `json:"min_p,omitempty"`              // 0 is off
	RepetitionPenalty float64     `json:"repetition_penalty,omitempty"` // over prompt and output; 0 or 1 is off
	PresencePenalty   float64     `json:"presence_penalty,omitempty"`   // over output
	FrequencyPenalty  float64     `json:"frequency_penalty,omitempty"`  // over output
	Seed              uint64      `json:"seed,omitempty"`
	Bias              []TokenBias `json:"bias,omitempty"` // added to logits
}

// TokenBias adds Bias to the logit of Token.
type TokenBias struct {
	Token kv.Token `json:"token"`
	Bias  float32  `json:"bias"`
}

// Stop says when a choice ends. The frontend handles stop strings.
type Stop struct {
	MaxTokens int        // output tokens, Generated included; at least 1
	MinTokens int        // no stop token is drawn before this many
	Tokens    []kv.Token // end the choice in addition to the card's EOS
	IgnoreEOS bool       // the card's EOS tokens do not end the choice
}

// CachedUnknown is the value of Delta.Cached before, or without, a report by the engine. It must never be
// taken for 0.
const CachedUnknown = -1

// Finish says why a choice ended.
type Finish uint8

// The reasons; the zero value means that the choice goes on.
const (
	NotFinished  Finish = iota
	FinishStop          // the last token is a stop token, which is in Tokens; without Tokens, the end of the OutputSchema
	FinishLength        // MaxTokens or the context length
)

// Delta is a piece of the output of one choice of one attempt.
type Delta struct {
	Attempt  uint32
	Accepted bool // the engine took the request; no other field but Attempt is set
	Choice   int
	// Pos is the index of Tokens[0] in the choice's output, Generated included.
	Pos    int
	Tokens []kv.Token
	// Logprobs has one entry per token if the request asked for them.
	Logprobs []Logprob
	// Cached is the number of prompt tokens served from cache, set in the first delta with tokens of each
	// choice. An engine that reports it at the end, or never, sets CachedUnknown there, and in the choice's
	// last delta the number or CachedUnknown again.
	Cached int
	// Computed is how many tokens of the prompt and of Generated the engine has computed for the choice, in its first
	// delta with tokens: at least the last one. It is 0 elsewhere, and of an engine which does not know. It stays in the
	// process of the engine.
	Computed int
	Finish   Finish
	// Handoff is for the next leg of the request, in the last delta of a prefill or encode leg; nil otherwise.
	Handoff *Handoff
	// Failures are the objects for which a worker refuses the request; nil otherwise. No other field but Attempt is
	// set, and the error of the call follows. Engines return a [MediaFailure] instead.
	Failures []FailedObject
	// Split says where the prompt was computed, in the first delta of a decode worker's answer which has tokens or an
	// end; nil otherwise. Engines do not set it.
	Split *SplitReport
}

// FailedObject is a [MediaFailure] on the request plane.
type FailedObject struct {
	Index  int
	Kind   encode.FailureKind
	Detail string
}

// Logprob is a token with its log-probability under the model's distribution
// before temperature and penalties, and the most likely alternatives, best
// first.
type Logprob struct {
	Token   kv.Token
	Logprob float32
	Top     []TokenLogprob
}

// TokenLogprob is one alternative.
type TokenLogprob struct {
	Token   kv.Token
	Logprob float32
}

// CachedReport finds out from the deltas of one attempt how many prompt tokens the engine had cached. The
// engine reports this with the first tokens or, if it knows late, with the end of a choice. The choices share
// a prompt, so the first report counts for all. The zero value is ready.
type CachedReport struct {
	reportedStart bool // the first tokens were reported
	known         bool
	started, late choiceSet
}

// ObserveDelta takes the next delta in arrival order. news is true when the attempt's first tokens arrive,
// with cached = CachedUnknown if the engine does not know yet, and once more if the number arrives later.
func (r *CachedReport) ObserveDelta(d *Delta) (cached int, news bool) {
	if r.known || d.Choice < 0 || d.Choice >= MaxChoices || d.Accepted {
		return CachedUnknown, false
	}
	switch {
	case !r.started.contains(d.Choice):
		if len(d.Tokens) == 0 {
			return CachedUnknown, false
		}
		r.started.add(d.Choice)
		if d.Cached == CachedUnknown {
			r.late.add(d.Choice)
			news, r.reportedStart = !r.reportedStart, true
			return CachedUnknown, news
		}
	case d.Finish == NotFinished || !r.late.contains(d.Choice) || d.Cached == CachedUnknown:
		return CachedUnknown, false
	}
	r.reportedStart, r.known = true, true
	return d.Cached, true
}

// choiceSet is a set of choice indexes of a request.
type choiceSet [MaxChoices / 64]uint64

func (s *choiceSet) contains(choice int) bool { return s[choice/64]>>(choice%64)&1 != 0 }
func (s *choiceSet) add(choice int)           { s[choice/64] |= 1 << (choice % 64) }
