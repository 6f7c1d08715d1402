// Package engine is the contract between Penstock and whatever produces tokens:
// the built-in engines and the adapters of real ones.
//
// Resumption is part of it from the start. A request carries the tokens that an
// earlier attempt already delivered; random draws are a function of seed, choice
// and absolute position; penalties and limits count what was generated before.
// So a stream that moves between engines of equal numerics is, token for token,
// the stream that did not move.
package engine

import (
	"context"

	"penstock/core/kv"
	"penstock/core/media"
)

// Engine produces tokens. Implementations are safe for concurrent use.
type Engine interface {
	// Card describes the model served. It does not change, but for the adapters of an
	// AdapterWatcher, which are in it as they were at some time.
	Card() Card
	// Run does the engine's work until ctx ends; it returns nil then. Generate
	// may be called before Run and waits for it.
	Run(ctx context.Context) error
	// Generate serves one request and calls sink with each delta in order. The
	// first delta has Accepted set and no tokens; nothing before it commits the
	// engine. A choice's last delta has its Finish set, and Generate returns nil
	// after the last one of the last choice. It returns ctx's error when ctx
	// ends, sink's error if sink fails, or a *fault.Error; in each case the
	// request's blocks are released before it returns. sink must not keep the
	// delta or its slices.
	Generate(ctx context.Context, req *Request, sink func(*Delta) error) error
}

// KVSource is an engine that reports its cache.
type KVSource interface {
	// WatchKV calls sink with a Cleared event and Stored events that describe
	// all that is cached now, then with every change in order, until ctx ends or
	// sink fails. Several watchers may run; a slow one never holds up the
	// engine: it is started over with Cleared when its bounded queue overflows.
	// A block of which a tier has several copies is stored with the first and removed
	// with the last one. sink must not keep the slice.
	WatchKV(ctx context.Context, sink func([]kv.Event) error) error
}

// LoadSource is an engine that reports its load.
type LoadSource interface {
	Load() Load
}

// Load is an engine's load at one moment.
type Load struct {
	Running       int    `json:"running"`        // sequences in the batch
	Waiting       int    `json:"waiting"`        // sequences queued or preempted
	UsedBlocks    int    `json:"used_blocks"`    // blocks referenced by sequences
	CachedBlocks  int    `json:"cached_blocks"`  // blocks kept for reuse only
	TotalBlocks   int    `json:"total_blocks"`   // capacity
	PrefillTokens int    `json:"prefill_tokens"` // prompt tokens not computed yet
	Preemptions   uint64 `json:"preemptions"`    // since the engine started
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
}

// AdapterSource is an engine that says which LoRA adapters it has at hand.
type AdapterSource interface {
	// Adapters returns those of the card's that are in the engine's memory now,
	// ascending. The slice belongs to the caller.
	Adapters() []string
}

// AdapterWatcher is an engine whose set of adapters changes while it runs.
type AdapterWatcher interface {
	// WatchAdapters calls sink with what Card.Adapters is to be, now and whenever it
	// changes, until ctx ends; it returns nil then. sink keeps the slice. Requests for an adapter
	// that is no longer listed may still come for a while.
	WatchAdapters(ctx context.Context, sink func(adapters []string)) error
}

// Card describes a served model; frontends and routers work from it. It is JSON
// in discovery: fields are only ever added.
type Card struct {
	// Name is what clients put in "model"; Aliases are further such names.
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Engine  string   `json:"engine"` // "tiny", "sim", "vllm", …
	// BlockSize is in tokens, Blocks the capacity of one rank, Ranks the number
	// of data-parallel ranks (at least 1).
	BlockSize int `json:"block_size"`
	Blocks    int `json:"blocks"`
	Ranks     int `json:"ranks"`
	// ContextLength bounds prompt plus output tokens.
	ContextLength int `json:"context_length"`
	VocabSize     int `json:"vocab_size"`
	// DefaultMaxTokens bounds the output of a request that sets no limit; 0
	// means up to the context length.
	DefaultMaxTokens int        `json:"default_max_tokens,omitempty"`
	EOS              []kv.Token `json:"eos,omitempty"`
	// Defaults are the checkpoint's recommended sampling parameters.
	Defaults Sampling `json:"defaults"`
	// Numerics names what must be equal for two engines to continue each
	// other's streams bit for bit: weights, kernel and CPU architecture.
	Numerics string `json:"numerics"`
	// KVEvents says that the worker publishes what its cache holds. The worker
	// sets it; without it routers expect no event feed.
	KVEvents bool `json:"kv_events,omitempty"`
	// KVGuessed says that those events are what the worker believes, from the requests
	// that it sent and the cached tokens that the engine reported: the engine itself says
	// nothing of its cache.
	KVGuessed bool `json:"kv_guessed,omitempty"`
	// NoReuse says that the engine computes every prompt anew, as its prefix cache is off: routers predict nothing of it.
	NoReuse bool `json:"no_reuse,omitempty"`
	// Adapters are the LoRA adapters that the engine serves, ascending: names of models of their
	// own, whose parent is Name. A request for one has it as Model and in its Salt.
	Adapters []string `json:"adapters,omitempty"`
	// Passes are the paths of the HTTP API of which the engine takes a client's request as it
	// is ("/v1/chat/completions"), ascending: it is a Passer. The worker sets it.
	Passes []string `json:"passes,omitempty"`
	// Media are the kinds of media that the model sees ("audio", "image", "video"), ascending;
	// nil is text only. Attaches says that the engine takes them with a Request's tokens, as its
	// Objects; others take them in requests that are passed on.
	Media    []string `json:"media,omitempty"`
	Attaches bool     `json:"attaches,omitempty"`
	// MediaKeys says that an engine which takes media in conversations that are passed on is told
	// the keys of a PassRequest's Objects, and how: MediaKeysUUID. Without, its cache knows media by
	// names of its own, and what follows them in a prompt cannot be found in it.
	MediaKeys string `json:"media_keys,omitempty"`
	// Features says that the engine hands over what its processor made of media, with the prompt that it
	// makes of a conversation (Preprocessed.Features), and that it takes the like in a Request's Features
	// from any engine of the model, so that it need not process them again.
	Features bool `json:"features,omitempty"`
	// MediaDecoder says that frontends fetch and decode media for the engine, which are then known
	// by their pixels; nil leaves that to the engine.
	MediaDecoder *MediaDecoder `json:"media_decoder,omitempty"`
	// Sights says that the engine, a router process's, finds out what the media of conversations are, for
	// frontends that leave it to it: it is a Preprocessor and takes a PreprocessRequest with Shows.
	Sights bool `json:"sights,omitempty"`
	// Embeddings says that the engine is an Embedder. The worker sets it; others
	// are not asked for embeddings.
	Embeddings bool `json:"embeddings,omitempty"`
	// Preprocess says that the engine is a Preprocessor. The worker sets it; others
	// are not asked for prompts.
	Preprocess bool `json:"preprocess,omitempty"`
	// Guided says that the engine takes requests with a Guide.
	Guided bool `json:"guided,omitempty"`
	// ToolParser and ReasoningParser name the form in which the model writes calls
	// and reasoning: "" for what its chat template, vocabulary or name tells,
	// "none" for neither.
	ToolParser      string `json:"tool_parser,omitempty"`
	ReasoningParser string `json:"reasoning_parser,omitempty"`
	// Router says that the worker is a router process: what requests want of workers, it
	// asks of its own.
	Router bool `json:"router,omitempty"`
	// MaxBatchedTokens is how many tokens the engine computes in one step; 0 if it does
	// not say. Routers measure the prompts that wait for it by that.
	MaxBatchedTokens int `json:"max_num_batched_tokens,omitempty"`
	// Experts are those of a mixture-of-experts model that the worker hosts, if it does
	// not host all; nil if it does not say.
	Experts []HostedExperts `json:"experts,omitempty"`
	// Tokenizer says where the tokenizer and chat template come from.
	Tokenizer TokenizerRef `json:"tokenizer"`
}

// MediaKeysUUID is the MediaKeys of engines that take a key as the "uuid" of the part that shows
// the object (media.Key.UUID).
const MediaKeysUUID = "uuid"

// MediaDecoder is how media are decoded for an engine.
type MediaDecoder struct {
	// Transfer is how what was decoded reaches the worker: "shm", "network" or "off". With off only
	// the keys do, and the engine fetches by itself.
	Transfer string `json:"transfer,omitempty"`
}

// HostedExperts are experts of one layer that a worker hosts.
type HostedExperts struct {
	Layer uint32 `json:"layer_id"`
	// Experts are ascending, Shares nil or one for each of them: how much of the tokens
	// for that expert the worker computes itself, from 0 to 1, where other workers have
	// replicas of it. Without, it is all.
	Experts []uint32  `json:"expert_ids"`
	Shares  []float64 `json:"shares,omitempty"`
}

// TokenizerOfEngine is the kind of a tokenizer that only the engine has.
const TokenizerOfEngine = "engine"

// TokenizerRef locates a tokenizer: the one built into the binary or the files
// of a checkpoint directory, with the digest that they must have, or that only the engine has
// it: then texts become tokens there, if it is a Preprocessor, and tokens never become text here.
type TokenizerRef struct {
	Kind   string `json:"kind"`             // "builtin", "dir" or TokenizerOfEngine
	Dir    string `json:"dir,omitempty"`    // for "dir"
	Digest string `json:"digest,omitempty"` // hex SHA-256 over the files read
}

// Request is one attempt at a generation.
type Request struct {
	ID      string // of the client's request, the same for all attempts
	Attempt uint32 // from 1; a late answer of an old attempt is dropped by it
	Model   string
	Salt    kv.Salt
	Prompt  []kv.Token
	// Media are where the prompt shows media: each fills the tokens that hold its place, as
	// many as the encoder gives rows for. Objects are what they show, in the same order, or nil
	// if nothing does or the engine has no use for it (Card.Attaches).
	Media   []kv.Media
	Objects []media.Object
	// Features is what the processor of one of the model's engines made of the media, as that engine wrote it
	// (Preprocessed.Features); nil if there is none. Only engines whose card says Features take it, others
	// refuse it with [RefuseFeatures]: without it they would answer about what they have not seen.
	Features []byte
	// Generated are, for each choice, the tokens that earlier attempts delivered;
	// nil on a first attempt, else of length Choices.
	Generated [][]kv.Token
	// Done are the choices that already finished; nil or of length Choices.
	Done     []bool
	Choices  int // at least 1; all run on one engine in one attempt
	Sampling Sampling
	Stop     Stop
	// Logprobs is -1 for none, else how many alternatives to report beside the
	// chosen token.
	Logprobs int
	// Hints are what the client wants of the choice of a worker, as a router process
	// reads them that makes it; nil if nothing. Engines take no notice of them.
	Hints []byte
	// Guide constrains the text of every choice; nil is free text. Only engines
	// whose card says Guided take it, others refuse it with [RefuseGuide].
	Guide *Guide
}

// Guide is what the text of a choice must be. It holds of the text as a whole,
// Generated included, when the choice ends with FinishStop; one that ends with
// FinishLength is a beginning of such a text.
//
// Stop tokens may be drawn exactly where the text before them is complete; text
// that they have themselves does not count. Other tokens without text are never
// drawn. MinTokens does not hold back the end of a text to which nothing can be
// added. If no stop token can be drawn, because the model has
// none or IgnoreEOS is set, the choice ends by itself after the token that no other
// may follow; a text that is complete and may go on, such as a number, goes on.
// That end is a delta without tokens whose Finish is FinishStop, so that nobody
// takes the last token for a stop token.
type Guide struct {
	// Schema is a JSON Schema that the text must match: of 1 to MaxSchema bytes.
	// {"type":"object"} asks for any object. What an engine cannot enforce it
	// refuses as Invalid, about the parameter GuideParam.
	Schema []byte
}

// MaxSchema bounds the schema of a guide in bytes.
const MaxSchema = 256 << 10

// GuideParam is the client's name of what a guide is made from; errors about
// guides carry it.
const GuideParam = "response_format"

// Sampling says how tokens are drawn. The zero value is greedy, but
// RepetitionPenalty 0 reads as 1. The JSON form is that of model cards.
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

// Stop says when a choice ends. Stop strings are the frontend's affair.
type Stop struct {
	MaxTokens int        // output tokens, Generated included; at least 1
	MinTokens int        // no stop token is drawn before this many
	Tokens    []kv.Token // end the choice besides the card's EOS
	IgnoreEOS bool       // the card's EOS tokens do not end the choice
}

// CachedUnknown is Delta.Cached where the engine has not said yet, or does not say, what it
// had in its cache. It must never be taken for 0.
const CachedUnknown = -1

// Finish says why a choice ended.
type Finish uint8

// The reasons; the zero value means that the choice goes on.
const (
	NotFinished  Finish = iota
	FinishStop          // the last token is a stop token; it is in Tokens. Without Tokens, the guide's end
	FinishLength        // MaxTokens or the context length
)

// Delta is a piece of one choice of one attempt.
type Delta struct {
	Attempt  uint32
	Accepted bool // the engine took the request; no other field but Attempt is set
	Choice   int
	// Pos is the index of Tokens[0] in the choice's output, Generated included.
	Pos    int
	Tokens []kv.Token
	// Logprobs has one entry per token when they were asked for.
	Logprobs []Logprob
	// Cached is the number of prompt tokens served from cache; set in the first
	// delta with tokens of each choice. An engine that says it with its last word, or
	// never, sets CachedUnknown there, and in the choice's last delta the number, or
	// CachedUnknown again.
	Cached int
	Finish Finish
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
