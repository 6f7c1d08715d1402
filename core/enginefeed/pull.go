package enginefeed

import "errors"

// PullDecoder reads the events that TensorRT-LLM hands out over HTTP, a JSON array of what
// happened since it was asked last. They are numbered, and who asks takes them away.
type PullDecoder struct {
	// BlockSize is how many tokens the engine's blocks have (tokens_per_block). Blocks with
	// fewer are not full yet, and left out.
	BlockSize int
}

// Decode reads data into b. lost says that events before it are missing: the table must be
// cleared before b is applied.
func (d *PullDecoder) Decode(data []byte, b *Batch) (lost bool, err error) {
	return false, errors.New("enginefeed: not built yet")
}
