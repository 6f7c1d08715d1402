package engine

import (
	"context"
	"encoding/json"
	"fmt"

	"penstock/core/fault"
	"penstock/core/kv"
)

// The calls of an [Inspection], with the names of the router API.
const (
	InspectWorkers    = "workers"
	InspectExplain    = "explain"
	InspectBestWorker = "best_worker"
	InspectLoads      = "potential_loads"
	InspectDecisions  = "decisions"
)

// Inspection is a query to a router process about its workers: a call of the router API.
type Inspection struct {
	// Call is one of the constants above.
	Call string `json:"call"`
	// Model is the model that the query is about.
	Model string `json:"model"`
	// Request is the request that InspectExplain, InspectBestWorker and InspectLoads are about, as
	// AppendRequest encodes it, hints included. Nothing is sent to a worker.
	Request []byte `json:"request,omitempty"`
	// RequestID is the request that InspectDecisions is about.
	RequestID string `json:"request_id,omitempty"`
	// Depth is how many further routers the query may pass through.
	Depth int `json:"depth,omitempty"`
}

// Inspector is an engine that is a router with workers of its own.
type Inspector interface {
	// Inspect answers a query with the JSON of the router API. It reserves nothing. The error is a
	// *fault.Error.
	Inspect(ctx context.Context, q *Inspection) ([]byte, error)
}

// maxInspection bounds the answer to an inspection, in bytes; inspectionFrame is the size of its frames.
const (
	maxInspection   = 32 << 20
	inspectionFrame = 1 << 20
)

// EncodeInspection returns the JSON of q.
func EncodeInspection(q *Inspection) ([]byte, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode inspection: %w", err)
	}
	return b, nil
}

// DecodeInspection reads a query and ignores fields of later versions. The error is a *fault.Error.
func DecodeInspection(b []byte) (*Inspection, error) {
	q := new(Inspection)
	if err := json.Unmarshal(b, q); err != nil {
		return nil, fault.New(fault.Invalid, "the inspection is not valid JSON: %w", err)
	}
	return q, nil
}

// SendInspectionFrames sends the answer to an inspection in frames.
func SendInspectionFrames(answer []byte, send func(frame []byte) error) error {
	if len(answer) > maxInspection {
		return fault.New(fault.TooLarge, "the answer to the inspection has %d bytes, at most %d are sent", len(answer), maxInspection)
	}
	for len(answer) > 0 {
		n := min(len(answer), inspectionFrame)
		if err := send(answer[:n]); err != nil {
			return err
		}
		answer = answer[n:]
	}
	return nil
}

// AppendInspectionFrame appends a frame of the answer to an inspection to the frames before it.
func AppendInspectionFrame(answer, frame []byte) ([]byte, error) {
	if len(answer)+len(frame) > maxInspection {
		return nil, fault.New(fault.TooLarge, "the answer to the inspection has more than %d bytes", maxInspection)
	}
	return append(answer, frame...), nil
}

// maxDescription bounds a description in bytes: a card and some names.
const maxDescription = MaxCardBytes + 4<<10

// Description identifies a worker and what it serves: the content of its registration, for clients which know
// its address and ask it directly.
type Description struct {
	ID        kv.WorkerID `json:"id"`
	Epoch     uint64      `json:"epoch"`
	Namespace string      `json:"namespace"`
	Component string      `json:"component"`
	Endpoint  string      `json:"endpoint"`
	Host      string      `json:"host"`
	PID       int         `json:"pid"`
	Name      string      `json:"name,omitempty"` // for display; "" means Host
	// Card is the JSON of the model card, as EncodeCard makes it.
	Card json.RawMessage `json:"card"`
}

// EncodeDescription returns the JSON of d, which must be valid.
func EncodeDescription(d Description) ([]byte, error) {
	if err := d.validate(); err != nil {
		return nil, fmt.Errorf("encode description: %w", err)
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode description: %w", err)
	}
	if len(b) > maxDescription {
		return nil, fmt.Errorf("encode description: %d bytes, at most %d fit", len(b), maxDescription)
	}
	return b, nil
}

// DecodeDescription reads a description and ignores fields of later versions. The card of the result can be
// decoded.
func DecodeDescription(b []byte) (Description, error) {
	if len(b) > maxDescription {
		return Description{}, fmt.Errorf("decode description: %d bytes, at most %d are read", len(b), maxDescription)
	}
	var d Description
	if err := json.Unmarshal(b, &d); err != nil {
		return Description{}, fmt.Errorf("decode description: %w", err)
	}
	if err := d.validate(); err != nil {
		return Description{}, fmt.Errorf("decode description: %w", err)
	}
	return d, nil
}

func (d *Description) validate() error {
	if d.ID == 0 || d.ID > kv.MaxWorkerID {
		return fmt.Errorf("the id %d is not between 1 and %d", d.ID, kv.MaxWorkerID)
	}
	_, err := DecodeCard(d.Card)
	return err
}
