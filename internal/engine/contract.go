package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// ContractError is the error for a worker that violates the contract: a defect, which a retry at another
// worker would only hide. The cause is for the log; it may be nil.
func ContractError(what string, cause error) error {
	return &fault.Error{
		Code:    fault.Internal,
		Message: "the worker sent " + what + ": this is a defect of the server",
		Err:     cause,
	}
}

// unreadable describes a frame that cannot be decoded.
const unreadable = "a frame that cannot be read"

// TrimDelivered checks that d continues a choice after the have tokens that this attempt or earlier ones
// delivered, and removes the delivered tokens from d. logprobs is the request's Logprobs: if negative, d
// keeps none.
func (d *Delta) TrimDelivered(have, logprobs int) error {
	switch {
	case d.Pos < 0 || d.Pos > have:
		return ContractError("tokens with a gap before them", nil)
	case logprobs >= 0 && len(d.Logprobs) != len(d.Tokens):
		return ContractError("tokens without log-probabilities", nil)
	}
	old := min(have-d.Pos, len(d.Tokens))
	d.Pos, d.Tokens = d.Pos+old, d.Tokens[old:]
	if logprobs < 0 {
		d.Logprobs = nil
		return nil
	}
	d.Logprobs = d.Logprobs[old:]
	return nil
}

// TakeFrame reads a frame of the answer to an attempt. It ignores a frame of another attempt, which is late;
// a second answer is an error and clears Vector. Vector is nil before the answer.
func (e *Embedding) TakeFrame(frame []byte, attempt uint32) error {
	var got Embedding
	if err := DecodeEmbedding(frame, &got); err != nil {
		return ContractError(unreadable, err)
	}
	switch {
	case got.Attempt != attempt:
		return nil
	case e.Vector != nil:
		e.Vector = nil
		return ContractError("a second embedding", nil)
	case len(got.Vector) == 0 || slices.ContainsFunc(got.Vector, isNotFinite):
		return ContractError("an embedding that is no vector", nil)
	}
	*e = got
	return nil
}

func isNotFinite(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }

// TakeFrame reads a frame of the answer to an attempt, for a model with vocabulary entries. It ignores a
// frame of another attempt, which is late; a second answer is an error and clears p. Before the last frame of
// the answer p.Attempt is 0.
func (p *Preprocessed) TakeFrame(frame []byte, attempt uint32, vocabulary int) error {
	var got Preprocessed
	more, err := decodePreprocessed(frame, &got)
	if err != nil {
		return ContractError(unreadable, err)
	}
	if got.Attempt != attempt {
		return nil
	}
	if p.Attempt != 0 {
		*p = Preprocessed{}
		return ContractError("a second prompt", nil)
	}
	if len(p.Features)+len(got.Features) > MaxFeatures {
		return ContractError("more of media than a prompt may show", nil)
	}
	got.Features = append(p.Features, got.Features...)
	if more {
		p.Features = got.Features
		return nil
	}
	if err := got.Validate(vocabulary); err != nil {
		return ContractError("a prompt that is none", err)
	}
	*p = got
	return nil
}

// Embedder is an engine that turns a text into a vector.
type Embedder interface {
	// Embed returns the embedding of one prompt: the mean of the model's last hidden states over all of its
	// tokens, scaled to length 1. It is a function of the prompt and of the card's Numerics alone, and
	// belongs to the caller. It may be called before Run and waits for it. It returns ctx's error when ctx
	// ends, or a *fault.Error; in each case it releases the request's blocks before it returns.
	Embed(ctx context.Context, req *EmbedRequest) ([]float32, error)
}

// EmbedRequest is one attempt at the embedding of one prompt.
type EmbedRequest struct {
	ID      string // client request id, the same for all attempts
	Attempt uint32 // from 1; identifies late answers of an old attempt, which are dropped
	Model   string
	Prompt  []kv.Token
}

// Validate checks what every engine may rely on. It returns a *fault.Error of
// code Invalid that names the field, or nil.
func (r *EmbedRequest) Validate() error {
	switch {
	case r.Attempt == 0:
		return fault.InvalidParam("attempt", "attempts are numbered from 1")
	case len(r.Prompt) == 0:
		return fault.InvalidParam("input", "the input is empty")
	}
	return nil
}

// Embedding is the answer to an EmbedRequest.
type Embedding struct {
	Attempt uint32
	Vector  []float32
}

// The methods that a worker serves on the request plane.
const (
	// MethodGenerate takes a Request and answers with Delta frames.
	MethodGenerate = "generate"
	// MethodEmbed takes an EmbedRequest and answers with one frame, an Embedding, if the model card says
	// Embeddings.
	MethodEmbed = "embed"
	// MethodPreprocess takes a PreprocessRequest and answers with the frames of [Preprocessed.SendFrames], if
	// the model card says Preprocess.
	MethodPreprocess = "preprocess"
	// MethodPassthrough takes a PassthroughRequest and answers with PassthroughChunk frames, if the model
	// card lists the path.
	MethodPassthrough = "pass"
	// MethodEncode takes an EncodeRequest and answers with Encoded frames, one for each object.
	MethodEncode = "encode"
	// MethodPrefill takes a PrefillRequest. It has no frames, and ends when the worker is done with the job.
	MethodPrefill = "prefill"
	// MethodPull takes a PullRequest and answers with Pulled frames. It lasts as long as the work on the prompt: a caller
	// which goes away has given it up, and the end of the call says that it is not wanted any more.
	MethodPull = "pull"
	// MethodProgress takes a Prefilled. It has no frames: it is Conflict if the work is not wanted any more.
	MethodProgress = "progress"
	// MethodFetch takes a FetchRequest and answers with Fetched frames.
	MethodFetch = "fetch"
	// MethodPing takes nothing and answers with one frame, a Pong as JSON.
	MethodPing = "ping"
	// MethodDescribe takes nothing and answers with one frame, a Description as JSON; a draining worker
	// refuses it with Draining.
	MethodDescribe = "describe"
	// MethodInspect takes an Inspection as JSON and answers with frames that together are JSON, if the model
	// card says Router.
	MethodInspect = "inspect"
)

// Pong is a worker's answer to a ping: its state and load.
type Pong struct {
	LoadReport
	InFlight int `json:"in_flight"` // calls being served
}

// DecodePong reads an answer to a ping and ignores fields of later versions.
func DecodePong(b []byte) (Pong, error) {
	if len(b) > maxLoadReport {
		return Pong{}, fmt.Errorf("decode pong: %d bytes, at most %d are read", len(b), maxLoadReport)
	}
	var p Pong
	if err := json.Unmarshal(b, &p); err != nil {
		return Pong{}, fmt.Errorf("decode pong: %w", err)
	}
	if p.WorkerID > kv.MaxWorkerID {
		return Pong{}, fmt.Errorf("decode pong: worker_id %d is not below 2^53", p.WorkerID)
	}
	return p, nil
}

// HealthSource is an engine that reports its own health. The requests of its callers are no evidence: a
// request that starts or finishes does not by itself change the report.
type HealthSource interface {
	HealthReport() HealthReport
}

// HealthWatcher is a HealthSource that reports changes of HealthReport.Live.
type HealthWatcher interface {
	HealthSource
	// WatchHealth calls changed after each change of HealthReport().Live, until ctx ends. changed must not
	// block.
	WatchHealth(ctx context.Context, changed func())
}

// Liveness says whether an engine can be reached.
type Liveness uint8

// The values of Liveness.
const (
	Up      Liveness = iota
	Suspect          // an answer broke off, and the engine has not been probed since
	Down             // it does not answer
)

// HealthReport is an engine's account of its health.
type HealthReport struct {
	Live Liveness
	// Progress changes whenever the engine itself reports progress: it computed something, or its queue
	// moved.
	Progress uint64
	// Remote says that the engine is another process, reached over a network. Then LastHeard is when anything
	// was last received from it, and ProbedSince since when a probe that it should answer at once is
	// unanswered, zero if none is out.
	Remote                 bool
	LastHeard, ProbedSince time.Time
	// HasCounts says that the engine reports how many requests are Running and Waiting, and how many it
	// Preempted so far. CountsPartial says that a request whose prompt is computed may be in neither.
	HasCounts, CountsPartial bool
	Running, Waiting         int
	Preempted                uint64
}
