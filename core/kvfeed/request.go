package kvfeed

import (
	"encoding/binary"
	"fmt"

	"penstock/core/kv"
)

// ResyncRequest asks a worker to publish its events from a number on again, under the same numbers, or to
// describe its cache if it no longer has them. The worker is the key of the message and not in its body.
type ResyncRequest struct {
	Worker kv.Worker
	// Epoch is the epoch whose events are requested, From the number of the first one; 0 requests a
	// description of the whole cache.
	Epoch, From uint64
}

const (
	requestMagic   = 0xEC
	requestVersion = 1
	requestSize    = 4 + 8 + 8 // magic, version, zeros; epoch; from
)

// AppendRequest appends the body of the message for q. The body of a request for the whole cache is empty, as
// in the first version of the format; older workers describe their cache for any body.
func AppendRequest(dst []byte, q ResyncRequest) []byte {
	if q.From == 0 {
		return dst
	}
	le := binary.LittleEndian
	dst = append(dst, requestMagic, requestVersion, 0, 0)
	dst = le.AppendUint64(dst, q.Epoch)
	return le.AppendUint64(dst, q.From)
}

// DecodeRequest decodes the body of a request to w. If it fails it also returns a request for the whole
// cache, which answers whatever was requested.
func DecodeRequest(w kv.Worker, data []byte) (ResyncRequest, error) {
	q := ResyncRequest{Worker: w}
	var err error
	switch {
	case len(data) == 0:
		return q, nil
	case len(data) < requestSize:
		err = errTruncated
	case data[0] != requestMagic:
		err = fmt.Errorf("first byte is %#x, not %#x", data[0], requestMagic)
	case data[1] != requestVersion:
		err = fmt.Errorf("%w %d", ErrVersion, data[1])
	}
	if err != nil {
		return q, fmt.Errorf("kvfeed: decode request of %d bytes: %w", len(data), err)
	}
	le := binary.LittleEndian
	q.Epoch, q.From = le.Uint64(data[4:]), le.Uint64(data[12:])
	return q, nil
}
