package engine

import (
	"context"

	"penstock/core/embcache"
	"penstock/core/encode"
	"penstock/core/media"
)

// MediaEncoder is an engine which encodes media for other workers: that of a worker of role encode.
type MediaEncoder interface {
	// EncodeObject returns the rows of one object for requests of a cache namespace. An engine with an equal
	// Card.Encoder and the same EncoderRows.Encoder computes the same, bit for bit. Requests for an object
	// which is being encoded wait for it and share its rows. An object which cannot be decoded or encoded is an
	// Invalid error about its Part.
	//
	// EncodeObject is Conflict if rows of the fingerprint that the request wants are not made here, and NotFound if
	// it wants cached ones only and there are none. It returns ctx's error when ctx ends.
	EncodeObject(ctx context.Context, req *EncodeRequest, object *media.Object) (*EncodedObject, error)
	// EncodeLoad is how many objects are being encoded or wait for it.
	EncodeLoad() int
}

// RowHolder is an engine which gives other workers' engines the rows that its embedding cache has: that of a worker which
// serves requests. It encodes nothing for them.
type RowHolder interface {
	// HeldRows returns the rows of an object for requests of a cache namespace, if they are in memory or a tier below it.
	// Otherwise it is NotFound, and Conflict if rows of the fingerprint that the request wants are not made here. It
	// waits for nothing but the tier.
	HeldRows(ctx context.Context, req *EncodeRequest, object *media.Object) (*EncodedObject, error)
}

// EncodedObject are the rows of an object in the memory of the engine, or where another engine finds them.
type EncodedObject struct {
	// Rows has Data, which must not be changed.
	Rows media.EncoderRows
	// Handoff is instead of Rows, see [Encoded].
	Handoff []byte
	// Cached says that no encoder ran for the rows: the cache had them.
	Cached bool
	// Release gives the rows back, after which Data must not be read. It is called once.
	Release func()
}

// EncodeJob is an object whose rows a worker wants of encode workers.
type EncodeJob struct {
	ID string // of the request which shows it
	// Key is the embedding cache's: it has the namespace and the fingerprint which the rows must have.
	Key    embcache.RowKey
	Object *media.Object
	// Rows and Width are the shape which the rows must have, and Into the memory for them: little-endian elements,
	// row by row. Its content is undefined after an error.
	Rows, Width int
	Into        []byte
	// HandOff asks for a handoff, see [Encoded]: the fields above are then without meaning.
	HandOff bool
}

// EncoderStats are figures of media encoders and of their embedding cache.
type EncoderStats struct {
	Encoded, Failed, Cancelled uint64 // runs of an encoder
	Cache                      embcache.Stats
}

// EncodeStats are figures of the encoders of media in a process, and of the rows in its memory.
type EncodeStats struct {
	encode.Stats
	// Encoders has the load of each encoder. The one with id 0 are other workers, which are asked for rows.
	Encoders []encode.EncoderLoad
}

// Add adds the figures of other encoders.
func (s *EncoderStats) Add(o EncoderStats) {
	s.Encoded, s.Failed, s.Cancelled = s.Encoded+o.Encoded, s.Failed+o.Failed, s.Cancelled+o.Cancelled
	s.Cache.Add(o.Cache)
}
