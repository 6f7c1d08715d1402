package engine

import (
	"encoding/json"
	"fmt"

	"penstock/core/kv"
)

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
