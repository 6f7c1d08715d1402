package engine

import (
	"encoding/json"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
)

// Leg is the part of a request that an attempt asks for. The numbers are part of the wire format: append only.
type Leg uint8

// The legs.
const (
	// LegWhole is prefill and decode on one worker.
	LegWhole Leg = iota
	// LegPrefill computes the prompt. Its last delta has the Handoff for the decode leg, and at most the first
	// token.
	LegPrefill
	// LegDecode continues from the Handoff of a prefill leg. An engine that cannot use the Handoff computes the
	// prompt itself.
	LegDecode
	// LegEncode encodes the media of the request. Its last delta has the Handoff; it computes no tokens.
	LegEncode
	lastLeg = LegEncode
)

// The limits of a Handoff, in bytes.
const (
	// MaxOpaque bounds Handoff.Opaque: a list of block ids for a million tokens, as JSON.
	MaxOpaque = 1 << 20
	// MaxHandle bounds a handle, and MaxDescriptor the description of a transfer.
	MaxHandle     = 4 << 10
	MaxDescriptor = 64 << 10
	maxDigest     = 64
	// maxOrder bounds KVLayout.Order.
	maxOrder = 256
)

// Handoff is what one leg of a request gives the next. One of its fields is set, or both.
type Handoff struct {
	// Opaque is the JSON that an engine gave for the engine of the next leg: vLLM's kv_transfer_params, SGLang's
	// bootstrap fields, TensorRT-LLM's disaggregated_params. Nothing between the two reads or changes it.
	Opaque []byte
	// Blocks says where the KV blocks of the prompt are; nil if an engine moves them itself.
	Blocks *BlockHandoff
}

// BlockHandoff describes KV blocks in the memory of a worker for one transfer.
type BlockHandoff struct {
	// Worker and Epoch name the incarnation of the worker whose memory has the blocks. A handoff of an earlier
	// epoch is refused.
	Worker kv.Worker
	Epoch  uint64
	// Start and End are the token positions of the prompt that the blocks hold, half open.
	Start, End int
	Layout     KVLayout
	// Descriptor describes the transfer to the bulk-transfer plane. It is good for one transfer.
	Descriptor []byte
}

// KVLayout says how the bytes of a KV block are read.
type KVLayout struct {
	BlockSize  int // tokens
	BlockBytes int // of all layers
	Type       media.ElementType
	// Order names the order of the elements in a block: one of docs/format/kv-block.md, or an engine's own. It is the
	// same for all block sizes.
	Order string
	// Numerics is Card.BlockNumerics of the worker that computed the blocks.
	Numerics string
}

// Validate checks what the next leg relies on. nil is valid. It returns a *fault.Error of code Invalid, or nil.
func (h *Handoff) Validate() error {
	if h == nil {
		return nil
	}
	switch b := h.Blocks; {
	case len(h.Opaque) == 0 && b == nil:
		return fault.InvalidParam("handoff", "the handoff is empty")
	case len(h.Opaque) > MaxOpaque:
		return fault.InvalidParam("handoff", "the engine's handoff has %d bytes; at most %d are taken", len(h.Opaque), MaxOpaque)
	case len(h.Opaque) > 0 && !json.Valid(h.Opaque):
		return fault.InvalidParam("handoff", "the engine's handoff is not valid JSON")
	case b == nil:
	case b.Worker.ID > kv.MaxWorkerID:
		return fault.InvalidParam("handoff", "worker %d is not below 2^53", b.Worker.ID)
	case b.Start < 0 || b.End <= b.Start:
		return fault.InvalidParam("handoff", "blocks of the tokens %d to %d", b.Start, b.End)
	case b.Layout.BlockSize < 1 || b.Layout.BlockBytes < 1 || b.Layout.Type.Size() == 0 || len(b.Layout.Order) > maxOrder:
		return fault.InvalidParam("handoff", "blocks of %d tokens and %d bytes with elements of type %s", b.Layout.BlockSize, b.Layout.BlockBytes, b.Layout.Type)
	case len(b.Descriptor) > MaxDescriptor:
		return fault.InvalidParam("handoff", "the description of the transfer has %d bytes; at most %d are taken", len(b.Descriptor), MaxDescriptor)
	}
	return nil
}

// EncodeRequest is one attempt to encode media, of the method [MethodEncode].
type EncodeRequest struct {
	ID      string
	Attempt uint32
	Model   string
	// Namespace is the cache salt's: rows of one namespace never serve another.
	Namespace string
	// Encoder is the fingerprint that the rows must have, see [media.EncoderRows]; "" takes any.
	Encoder string
	// Objects are what is encoded, of 1 to MaxObjects.
	Objects []media.Object
	// Inline asks for rows in the answer. Otherwise it has handles, which the worker takes for [MethodFetch] as
	// long as the call lasts.
	Inline bool
	// CachedOnly asks for rows which the worker has, or is computing for another request. Otherwise the call ends
	// as NotFound: the caller then asks again, with the content of the objects.
	CachedOnly bool
}

// Validate checks the shape of the request. It returns a *fault.Error of code Invalid, or nil.
func (r *EncodeRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Objects) == 0 || len(r.Objects) > MaxObjects:
		return fault.InvalidParam("media", "%d media objects to encode; between 1 and %d are taken", len(r.Objects), MaxObjects)
	}
	return nil
}

// Encoded is one frame of the answer to an EncodeRequest: the rows of one object, or where another engine finds
// them. Objects that are ready first come first. An object that cannot be encoded ends the call with
// fault.MediaFailed about it.
type Encoded struct {
	Attempt uint32
	// Object is the index in EncodeRequest.Objects.
	Object int
	// Rows are zero if there is a Handoff.
	Rows media.EncoderRows
	// Handoff is the JSON object by which an engine of the same make gets the rows of this object from the engine
	// that encoded it: vLLM's ec_transfer_params, of at most MaxOpaque bytes. Nothing between the two changes an
	// entry of it. It is empty if there are Rows.
	Handoff []byte
	// Cached says that an embedding cache had the rows, so that the encoder did not run.
	Cached bool
	// Load is how many objects the worker is encoding, or has waiting, after this one.
	Load int
}

// PrefillRequest is a job: it asks a worker to compute a prompt for another one. It is the data of a job in the queue of
// prefill workers, and the request of the method [MethodPrefill]. It has no token and no text: the prefill worker fetches
// the prompt by Handle.
type PrefillRequest struct {
	ID string
	// Attempt and Epoch are the disagg.AttemptRef. Epoch is also that of the registration of Decode.
	Attempt uint32
	Model   string
	// Decode and Epoch name the incarnation of the worker that waits for the blocks, Addr its address on the
	// request plane.
	Decode kv.Worker
	Epoch  uint64
	Addr   string
	// Handle is what [MethodPull] at Addr takes for the prompt.
	Handle []byte
	// Tokens is the length of the prompt, Held the number of its first tokens whose blocks the decode worker
	// holds: they are not transferred.
	Tokens, Held int
	// Budget is how long the work may take from its receipt, in milliseconds; 0 is without a limit.
	Budget int
	// Into says which blocks are wanted. It has no Descriptor: that comes with the prompt.
	Into BlockHandoff
}

// Ref returns the attempt which the job belongs to.
func (r *PrefillRequest) Ref() disagg.AttemptRef {
	return disagg.AttemptRef{Epoch: r.Epoch, Attempt: r.Attempt}
}

// Validate checks the shape of the request. It returns a *fault.Error of code Invalid, or nil.
func (r *PrefillRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case r.Tokens < 1 || r.Held < 0 || r.Held >= r.Tokens:
		return fault.InvalidParam("prompt", "a prompt of %d tokens of which the decode worker holds %d", r.Tokens, r.Held)
	case r.Addr == "" || len(r.Handle) == 0 || len(r.Handle) > MaxHandle:
		return fault.InvalidParam("handle", "a prompt is fetched by an address and a handle of 1 to %d bytes", MaxHandle)
	case r.Budget < 0:
		return fault.InvalidParam("budget", "a budget of %d ms", r.Budget)
	}
	return (&Handoff{Blocks: &r.Into}).Validate()
}

// Prefilled says how far the work on a job is. The prefill worker calls [MethodProgress] with it, and ends the transfer
// of the blocks with it as the note, which has Done.
type Prefilled struct {
	// Attempt and Epoch are the job's.
	Attempt uint32
	// Computed are the tokens of the prompt computed so far, Cached the tokens which the prefill worker's cache had.
	Computed, Cached int
	// Blocks and Bytes are what has been written and may be read.
	Blocks int
	Bytes  uint64
	// Done says that all blocks have been written, and Digest is the digest of their bytes.
	Done   bool
	Digest []byte
	Epoch  uint64
	// By and ByEpoch name the incarnation of the prefill worker.
	By      kv.Worker
	ByEpoch uint64
	GaveUp  GaveUp
	// Claim is Pulled.Claim, 0 if no pull was admitted, and Handle the job's. The note, and progress of earlier builds, have
	// neither.
	Claim  uint64
	Handle []byte
	// SendDelay is the time from the end of the prefill until the first bytes were ready to be sent, in microseconds; in the
	// note only. It is 0 in the notes of earlier builds.
	SendDelay int
}

// Ref returns the attempt which the progress belongs to.
func (p *Prefilled) Ref() disagg.AttemptRef {
	return disagg.AttemptRef{Epoch: p.Epoch, Attempt: p.Attempt}
}

// Prefiller returns the incarnation of the prefill worker.
func (p *Prefilled) Prefiller() disagg.Incarnation {
	return disagg.Incarnation{Worker: p.By, Epoch: p.ByEpoch}
}

// GaveUp says whether a prefill worker has given a job up, and why. The numbers are part of the wire format: append only.
// A number which is not known is a failure.
type GaveUp uint8

// The values of GaveUp.
const (
	GoesOn GaveUp = iota
	GaveUpFailed
	// GaveUpIncompatible says that the two workers cannot exchange blocks.
	GaveUpIncompatible
)

// PullRequest claims a job and asks for its prompt, of the method [MethodPull].
type PullRequest struct {
	ID string
	// Attempt, Epoch and Handle are the job's.
	Attempt uint32
	Epoch   uint64
	Handle  []byte
	// From says which worker asks, and how its blocks are read: its Worker, Epoch and Layout. Start and End are the job's.
	From BlockHandoff
}

// Ref returns the attempt which is claimed.
func (r *PullRequest) Ref() disagg.AttemptRef {
	return disagg.AttemptRef{Epoch: r.Epoch, Attempt: r.Attempt}
}

// Prefiller returns the incarnation of the prefill worker.
func (r *PullRequest) Prefiller() disagg.Incarnation {
	return disagg.Incarnation{Worker: r.From.Worker, Epoch: r.From.Epoch}
}

// Validate checks the shape of the request. It returns a *fault.Error of code Invalid, or nil.
func (r *PullRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Handle) == 0 || len(r.Handle) > MaxHandle:
		return fault.InvalidParam("handle", "a handle has 1 to %d bytes, not %d", MaxHandle, len(r.Handle))
	}
	return (&Handoff{Blocks: &r.From}).Validate()
}

// Pulled is a frame of the answer to a PullRequest: the prompt in pieces. The call stays open after the last one, until
// the work is done or not wanted any more.
type Pulled struct {
	Attempt uint32
	// Budget is how long the work may take from now on, in milliseconds; in the first frame.
	Budget int
	// Data is the next piece of an encoded Request of leg prefill, whose Handoff has the Descriptor of the transfer; at
	// most MaxPiece bytes.
	Data []byte
	// Total is the size of the whole in bytes; in the last frame, which has Last.
	Last  bool
	Total uint64
	// Claim is a random number which names this claim of the job, in the first frame; 0 from earlier builds.
	Claim uint64
}

// FetchRequest asks the process that wrote a handle for what it names, of the method [MethodFetch].
type FetchRequest struct {
	ID      string
	Attempt uint32
	Handle  []byte
	// Into describes to the bulk-transfer plane where the bytes go; nil asks for them in the answer.
	Into []byte
}

// Validate checks the shape of the request. It returns a *fault.Error of code Invalid, or nil.
func (r *FetchRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Handle) == 0 || len(r.Handle) > MaxHandle:
		return fault.InvalidParam("handle", "a handle has 1 to %d bytes, not %d", MaxHandle, len(r.Handle))
	case len(r.Into) > MaxDescriptor:
		return fault.InvalidParam("descriptor", "the description of the transfer has %d bytes; at most %d are taken", len(r.Into), MaxDescriptor)
	}
	return nil
}

// Lent says where bytes are which a process lends while a request lasts. The zero value is nowhere.
type Lent struct {
	// Place is an address on the request plane and a handle for [MethodFetch] there, as internal/serve/bulk writes it.
	Place string
	Size  int // bytes
}

// maxPlace bounds Lent.Place, in bytes.
const maxPlace = 16 << 10

// IsZero reports whether nothing is lent.
func (l Lent) IsZero() bool { return l == Lent{} }

// Fetched is a frame of the answer to a FetchRequest.
type Fetched struct {
	Attempt uint32
	// Data is the next piece, if the request has no Into; at most MaxPiece bytes.
	Data []byte
	// Total is the size of the whole in bytes, and Digest its digest; both are in the last frame only. With an Into
	// there need not be a digest: the transfer has its own.
	Last   bool
	Total  uint64
	Digest []byte
}

// MaxPiece bounds the data of one frame of a fetch, in bytes.
const MaxPiece = 1 << 20
