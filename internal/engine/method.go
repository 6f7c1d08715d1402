package engine

import (
	"encoding/json"
	"fmt"

	"penstock/core/kv"
)

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
	// MethodPrefill takes a PrefillRequest and answers with Prefilled frames.
	MethodPrefill = "prefill"
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
