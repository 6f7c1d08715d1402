package bus

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// NATSObjects is a bucket of a JetStream object store which many processes fill, read, empty and follow. In contrast to
// an archive it may have many objects, whose names must not be listed for each operation, and has a size.
// docs/format/bus.md documents names and bytes.
type NATSObjects struct {
	archive  *NATSArchive // of the bucket
	maxBytes int64
	// opened says that this process has made the bucket, or found it, since its connection was opened.
	opened atomic.Bool
}

// tombstoneTTL is how long followers can learn that an object was deleted. One which was away for longer reads all
// objects again.
const tombstoneTTL = time.Minute

// NewNATSObjects returns the bucket of a name, which may have maxBytes bytes with all overhead; a full one refuses
// objects. It uses the server only when it is used itself. All processes should give the same maxBytes: the bucket gets
// that of the last one which opened it.
func NewNATSObjects(nc *nats.Conn, cfg ArchiveConfig, bucket string, maxBytes int64) (*NATSObjects, error) {
	a, err := NewNATSArchive(nc, cfg)
	if err != nil {
		return nil, err
	}
	if err := checkName(bucket); err != nil {
		return nil, err
	}
	a.bucket = cleanPrefix(a.cfg.Prefix) + "_" + bucket
	return &NATSObjects{archive: a, maxBytes: maxBytes}, nil
}

// openBucket makes the bucket, or gives it the size, once.
func (o *NATSObjects) openBucket(ctx context.Context) (jetstream.Stream, error) {
	a := o.archive
	if o.opened.Load() {
		return a.js.Stream(ctx, a.streamName())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sctx, done := natsd.DetachedContext(ctx, a.nc)
	defer done()
	s, err := a.js.CreateOrUpdateStream(sctx, jetstream.StreamConfig{ // as the library makes an object store, and lifetimes
		Name: a.streamName(), Description: "Penstock objects", Subjects: []string{a.chunkSubject(">"), a.metaSubject("") + ">"},
		MaxBytes: o.maxBytes, Storage: jetstream.FileStorage, Replicas: a.cfg.Replicas, Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, AllowMsgTTL: true,
	})
	if err == nil {
		o.opened.Store(true)
	}
	return s, err
}

// objectMeta is the description of an object, and the message which has it.
type objectMeta struct {
	info jetstream.ObjectInfo
	data []byte
	// seq is the message's number; 0 if there is none.
	seq uint64
}

// there reports whether there is an object.
func (m *objectMeta) there() bool { return m.seq != 0 && !m.info.Deleted }

func (o *NATSObjects) readMeta(ctx context.Context, s jetstream.Stream, name string) (m objectMeta, err error) {
	msg, err := s.GetLastMsgForSubject(ctx, o.archive.metaSubject(name))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	m.data, m.seq = msg.Data, msg.Sequence
	if err := json.Unmarshal(msg.Data, &m.info); err != nil || m.info.Name != name {
		m.info = jetstream.ObjectInfo{Deleted: true} // not an object's: it may be replaced
	}
	return m, nil
}

// run runs an operation on the bucket.
func (o *NATSObjects) run(ctx context.Context, op, name string, f func(ctx context.Context, s jetstream.Stream, m objectMeta) error) error {
	if err := checkName(name); err != nil {
		return err
	}
	return natsd.RunWhileConnected(ctx, o.archive.nc, op+" "+name, func(ctx context.Context) error {
		s, err := o.openBucket(ctx)
		if err != nil {
			return err
		}
		m, err := o.readMeta(ctx, s, name)
		if err != nil {
			return err
		}
		return f(ctx, s, m)
	})
}

// PutObject stores an object, which others see whole or not at all. It is Conflict if there is one of the name.
func (o *NATSObjects) PutObject(ctx context.Context, name string, data []byte) error {
	if err := checkObject(name, len(data)); err != nil {
		return err
	}
	return o.run(ctx, "put", name, func(ctx context.Context, s jetstream.Stream, m objectMeta) error {
		if m.there() {
			return errObjectThere(name)
		}
		info := o.archive.newInfo(name, data)
		err := o.archive.publishObject(ctx, info, data, jetstream.WithExpectLastSequencePerSubject(m.seq))
		if err != nil {
			o.archive.discardChunks(ctx, s, info.NUID)
		}
		if isWrongSequence(err) {
			return errObjectThere(name)
		}
		return err
	})
}

func errObjectThere(name string) error {
	return fault.New(fault.Conflict, "put %s: there is an object of that name", name)
}

// isWrongSequence reports whether another process was faster.
func isWrongSequence(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}

// GetObject returns an object of at most limit bytes, which the caller owns. It is NotFound if there is none, TooLarge if
// it has more bytes, and Conflict if it is damaged.
func (o *NATSObjects) GetObject(ctx context.Context, name string, limit int64) (data []byte, err error) {
	err = o.run(ctx, "get", name, func(ctx context.Context, _ jetstream.Stream, m objectMeta) error {
		switch {
		case !m.there():
			return errObjectNotFound(name)
		case m.info.Size > uint64(min(max(limit, 0), MaxObject)):
			return fault.New(fault.TooLarge, "get %s: the object has %d bytes, at most %d are allowed", name, m.info.Size, limit)
		}
		data, err = o.archive.readObject(ctx, &m.info)
		if errors.Is(err, errDamagedObject) {
			return fault.New(fault.Conflict, "get %s: the object is damaged, or was deleted while it was read", name)
		}
		return err
	})
	return data, err
}

// TouchObject tells followers of an object again, if there is one.
func (o *NATSObjects) TouchObject(ctx context.Context, name string) error {
	return o.run(ctx, "touch", name, func(ctx context.Context, _ jetstream.Stream, m objectMeta) error {
		if !m.there() {
			return nil
		}
		return o.replaceMeta(ctx, name, m.data, m.seq)
	})
}

// replaceMeta publishes a description in place of the one with the number seq, unless that is no longer the last.
func (o *NATSObjects) replaceMeta(ctx context.Context, name string, data []byte, seq uint64, more ...jetstream.PublishOpt) error {
	m := nats.NewMsg(o.archive.metaSubject(name))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = data
	_, err := o.archive.js.PublishMsg(ctx, m, append(more, jetstream.WithExpectLastSequencePerSubject(seq))...)
	if isWrongSequence(err) {
		return nil
	}
	return err
}

// DeleteObject removes an object, if there is one.
func (o *NATSObjects) DeleteObject(ctx context.Context, name string) error {
	return o.run(ctx, "delete", name, func(ctx context.Context, s jetstream.Stream, m objectMeta) error {
		if !m.there() {
			return nil
		}
		gone, err := json.Marshal(&jetstream.ObjectInfo{ObjectMeta: jetstream.ObjectMeta{Name: name}, Bucket: o.archive.bucket, NUID: m.info.NUID, Deleted: true})
		if err != nil {
			return err
		}
		if err := o.replaceMeta(ctx, name, gone, m.seq, jetstream.WithMsgTTL(tombstoneTTL)); err != nil {
			return err
		}
		return s.Purge(ctx, jetstream.WithPurgeSubject(o.archive.chunkSubject(m.info.NUID)))
	})
}

// FollowObjects calls sink with each object and its size, in the order in which they were put or touched last, calls
// ready when that was all, and goes on with each change until ctx ends, when it returns nil, or the server cannot be
// reached. A size of -1 says that an object is gone. It begins with the removal of what crashed writers have left.
func (o *NATSObjects) FollowObjects(ctx context.Context, sink func(name string, size int64), ready func()) error {
	a := o.archive
	err := natsd.RunWhileConnected(ctx, a.nc, "follow "+a.bucket, func(ctx context.Context) error {
		s, err := o.openBucket(ctx)
		if err != nil {
			return err
		}
		all, err := a.listObjects(ctx)
		if err != nil {
			return err
		}
		return a.sweepAbandoned(ctx, s, all)
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		o.opened.Store(false)
		return err
	}
	return natsd.Tail(ctx, a.nc, a.js, a.streamName(), natsd.TailStart{Subjects: []string{a.metaSubject("") + "*"}}, func(m natsd.Msg) error {
		var info jetstream.ObjectInfo
		switch {
		case json.Unmarshal(m.Data, &info) != nil || a.metaSubject(info.Name) != m.Subject: // not an object's
		case info.Deleted:
			sink(info.Name, -1)
		case info.Size <= MaxObject:
			sink(info.Name, int64(info.Size))
		}
		return nil
	}, ready)
}
