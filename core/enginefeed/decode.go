package enginefeed

import "errors"

// Decoder reads batches of events. It keeps memory from one to the next, and nothing of
// what it read but the names of adapters and media. The zero value is ready. It has one user at a time.
type Decoder struct{}

// Decode reads payload, a batch in msgpack, into b.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	return errors.New("enginefeed: not built yet")
}
