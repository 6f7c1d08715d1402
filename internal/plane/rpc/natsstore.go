package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// natsStore keeps bodies that do not fit a message in an object store with the layout of the
// official NATS clients, so that the usual tools can show its content. It differs in two points.
// The object's name is also the token of its chunks' subject, so an object can be read or removed
// by name without a lookup, even if it was written only in part. And removing an object leaves no
// tombstone.
type natsStore struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	cfg *NATSPlaneConfig
	mu  struct {
		sync.Mutex
		stream jetstream.Stream // nil until it was found or created
	}
}

const (
	// objectTTL is how long an object lasts if its receiver has crashed.
	objectTTL = 10 * time.Minute
	// objectChunk bounds how much of an object is written at a time. Messages of other calls can be
	// sent in between.
	objectChunk = 256 << 10
	// objectTime bounds reading one object, and removing one.
	objectTime = 30 * time.Second
	// storeTime bounds storing one chunk.
	storeTime = 5 * time.Second
)

func (s *natsStore) streamName() string { return "OBJ_" + s.cfg.Bucket }

func (s *natsStore) chunkSubject(object string) string { return "$O." + s.cfg.Bucket + ".C." + object }

func (s *natsStore) metaSubject(object string) string {
	return "$O." + s.cfg.Bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(object))
}

// putBody writes the body of a call to a new object. The caller must remove what was written before
// an error.
func (s *natsStore) putBody(ctx context.Context, object string, m *natsCallMsg) error {
	cctx, stop := natsd.WhileConnected(ctx, s.nc)
	defer stop()
	err := s.writeObject(cctx, object, m.body)
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		s.forgetStream() // the bucket was deleted after it was found
		err = s.writeObject(cctx, object, m.body)
	}
	if err == nil {
		return nil
	}
	if err := contextErr(ctx); err != nil {
		return err
	}
	if cctx.Err() != nil {
		err = context.Cause(cctx)
	}
	return s.storeError(m.method, err)
}

// storeError converts an error of the store to the error which the caller gets.
func (s *natsStore) storeError(method string, err error) error {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && (api.ErrorCode == codeStoreFailed || api.ErrorCode == codeNoResources) {
		return fault.New(fault.Overloaded, "call %s: there is no room for the body in the bucket %s: %v", method, s.cfg.Bucket, err)
	}
	return fault.New(fault.Unavailable, "call %s: cannot store the body in the bucket %s: %v; bodies above %d bytes need JetStream", method, s.cfg.Bucket, err, natsChunk)
}

// Server error codes for a full stream or a full disk.
const (
	codeStoreFailed jetstream.ErrorCode = 10077
	codeNoResources jetstream.ErrorCode = 10047
)

// writeObject writes the chunks of an object and then its metadata.
func (s *natsStore) writeObject(ctx context.Context, object string, body []byte) error {
	if _, err := s.openStream(ctx); err != nil {
		return err
	}
	size := objectChunk
	if most := s.nc.MaxPayload(); most > natsOverhead {
		size = int(min(most-natsOverhead, objectChunk))
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: object, Opts: &jetstream.ObjectMetaOptions{ChunkSize: uint32(size)}},
		Bucket:     s.cfg.Bucket, NUID: object, Size: uint64(len(body)),
	}
	digest := sha256.New()
	for len(body) > 0 {
		n := min(size, len(body))
		digest.Write(body[:n])
		if err := s.publishStored(ctx, &nats.Msg{Subject: s.chunkSubject(object), Data: body[:n]}); err != nil {
			return err
		}
		body = body[n:]
		info.Chunks++
	}
	info.Digest = jetstream.GetObjectDigestValue(digest)
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	m := nats.NewMsg(s.metaSubject(object))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = b
	return s.publishStored(ctx, m)
}

// publishStored writes one message of an object and waits until it is stored.
func (s *natsStore) publishStored(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	_, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectStream(s.streamName()))
	return err
}

// errObjectComplete and errIncomplete end the reading of an object.
var (
	errObjectComplete = errors.New("whole")
	errIncomplete     = errors.New("the object is gone, or incomplete")
)

// getBody reads the body of a call.
func (s *natsStore) getBody(ctx context.Context, m *natsCallMsg) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	body := partBuffer{size: m.size}
	from := natsd.TailStart{Subjects: []string{s.chunkSubject(m.object)}, Seq: 1}
	tctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := natsd.Tail(tctx, s.nc, s.js, s.streamName(), from, func(msg natsd.Msg) error {
		switch err := body.appendPart(msg.Data); {
		case err != nil:
			return err
		case body.isComplete():
			return errObjectComplete
		}
		return nil
	}, func() {
		if !body.isComplete() {
			stop(errIncomplete)
		}
	})
	if errors.Is(err, errObjectComplete) {
		return body.buf, nil
	}
	if err == nil {
		err = context.Cause(tctx)
	}
	return nil, fault.New(fault.Unavailable, "call %s: cannot read the body from the bucket %s: %v", m.method, s.cfg.Bucket, err)
}

// removeObject removes an object, complete or not. If that fails, the object expires by its TTL.
func (s *natsStore) removeObject(object string) {
	ctx, cancel := context.WithTimeout(context.Background(), objectTime)
	defer cancel()
	ctx, stop := natsd.WhileConnected(ctx, s.nc)
	defer stop()
	stream, err := s.openStream(ctx)
	if err != nil {
		return
	}
	_ = stream.Purge(ctx, jetstream.WithPurgeSubject(s.chunkSubject(object)))
	_ = stream.Purge(ctx, jetstream.WithPurgeSubject(s.metaSubject(object)))
}

// openStream returns the stream of the bucket, which it creates if it is missing. An existing
// bucket keeps the settings that its operator gave it.
func (s *natsStore) openStream(ctx context.Context) (jetstream.Stream, error) {
	s.mu.Lock()
	stream := s.mu.stream
	s.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	stream, err := s.js.Stream(ctx, s.streamName())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.createBucket(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stream = stream
	return stream, nil
}

func (s *natsStore) createBucket(ctx context.Context) (jetstream.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.DetachedContext(ctx, s.nc)
	defer done()
	_, err := s.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket:      s.cfg.Bucket,
		Description: "Penstock request bodies",
		TTL:         objectTTL,
		MaxBytes:    s.cfg.MaxStore,
		Storage:     jetstream.FileStorage,
		Replicas:    s.cfg.Replicas,
	})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
		return nil, err
	}
	return s.js.Stream(ctx, s.streamName())
}

func (s *natsStore) forgetStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.stream = nil
}
