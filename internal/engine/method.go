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
	// MethodEmbed takes an EmbedRequest and answers with one frame, an Embedding,
	// if the model card says that the engine makes them.
	MethodEmbed = "embed"
	// MethodPreprocess takes a PreprocessRequest and answers with one frame, a
	// Preprocessed, if the model card says that the engine makes prompts.
	MethodPreprocess = "preprocess"
	// MethodPass takes a PassRequest and answers with PassPiece frames, if the model card
	// lists the path.
	MethodPass = "pass"
	// MethodPing takes nothing and answers with one frame, a Pong as JSON.
	MethodPing = "ping"
	// MethodDescribe takes nothing and answers with one frame, a Description as
	// JSON; a worker that leaves refuses it with Draining.
	MethodDescribe = "describe"
	// MethodInspect takes an Inspection as JSON and answers with frames that together are JSON, if
	// the model card says that the instance is a router.
	MethodInspect = "inspect"
)

// Pong is a worker's answer to a ping: it is there, and this is its state.
type Pong struct {
	LoadReport
	InFlight int `json:"in_flight"` // calls being served
}

// DecodePong reads an answer to a ping; fields of later versions are ignored.
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
