package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// ArchiveConfig configures an archive over NATS.
type ArchiveConfig struct {
	// Prefix is the prefix of the bucket names, as in NATSBusConfig; its dots become '-'.
	Prefix string
	// Replicas is the replica count of each bucket that this archive creates. 0 means 1.
	Replicas int
	// TTL is the time after which a lock of a crashed holder expires. All processes must use the
	// same. 0 means LeaseTTL.
	TTL time.Duration
}

// EnsureDefaults replaces zero values by their defaults.
func (c *ArchiveConfig) EnsureDefaults() {
	c.Prefix = cmp.Or(c.Prefix, "penstock")
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.TTL = cmp.Or(c.TTL, LeaseTTL)
}

// Validate reports all problems of c.
func (c *ArchiveConfig) Validate() error {
	errs := []error{checkPrefix(c.Prefix)}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fault.New(fault.Invalid, "archive replicas: have %d, JetStream allows 1 to 5", c.Replicas))
	}
	if c.TTL < time.Second {
		errs = append(errs, fault.New(fault.Invalid, "archive ttl: have %v, at least a second is needed", c.TTL))
	}
	return errors.Join(errs...)
}

// NATSArchive is an archive in a JetStream object store, which the usual tools can read. Its locks
// are keys with a time to live. docs/format/bus.md documents names and bytes.
//
// This package writes and reads objects itself instead of using the client library's object store.
// The library sends all chunks of an object without waiting for acknowledgements, more than a
// server accepts, and its reader waits for deleted chunks until it times out.
type NATSArchive struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	cfg    ArchiveConfig
	bucket string
	locks  string
	// abandonedAge is the age from which chunks without an object are garbage: their writer has
	// crashed.
	abandonedAge time.Duration
}

var _ Archive = (*NATSArchive)(nil)

// NewNATSArchive returns an archive over nc, which remains owned by the caller. It uses the server
// only when it is used itself.
func NewNATSArchive(nc *nats.Conn, cfg ArchiveConfig) (*NATSArchive, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, natsd.WrapUnavailable("open archive "+cfg.Prefix, err)
	}
	word := cleanPrefix(cfg.Prefix)
	return &NATSArchive{nc: nc, js: js, cfg: cfg, bucket: word + "_archive", locks: word + "_locks", abandonedAge: time.Hour}, nil
}

// cleanPrefix returns a prefix as names of buckets have it.
func cleanPrefix(prefix string) string { return strings.ReplaceAll(prefix, ".", "-") }

const (
	// chunkSize is how much of an object one message carries, in bytes; maxInFlight is how many
	// such messages may be unacknowledged: 8 MiB.
	chunkSize   = 256 << 10
	maxInFlight = 32
	// cleanupTimeout bounds the removal of the remains of a failed Put.
	cleanupTimeout = 5 * time.Second
)

// streamName, metaSubject and chunkSubject follow the naming convention of JetStream object stores.
func (a *NATSArchive) streamName() string { return "OBJ_" + a.bucket }

func (a *NATSArchive) metaSubject(name string) string {
	return "$O." + a.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

func (a *NATSArchive) chunkSubject(id string) string { return "$O." + a.bucket + ".C." + id }

// Put implements Archive.
func (a *NATSArchive) Put(ctx context.Context, name string, data []byte) error {
	if err := checkObject(name, len(data)); err != nil {
		return err
	}
	return natsd.RunWhileConnected(ctx, a.nc, "put "+name, func(ctx context.Context) error {
		s, err := a.openBucket(ctx)
		if err != nil {
			return err
		}
		all, err := a.listObjects(ctx)
		if err != nil {
			return err
		}
		if all[name] == nil && len(all) >= MaxObjects {
			return errArchiveFull(name)
		}
		info := a.newInfo(name, data)
		if err := a.publishObject(ctx, info, data); err != nil {
			a.discardChunks(ctx, s, info.NUID)
			return err
		}
		if old := all[name]; old != nil {
			a.discardChunks(ctx, s, old.NUID)
		}
		all[name] = info
		return a.sweepAbandoned(ctx, s, all)
	})
}

// newInfo returns the metadata of a new object.
func (a *NATSArchive) newInfo(name string, data []byte) *jetstream.ObjectInfo {
	return &jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}},
		Bucket:     a.bucket, NUID: rand.Text(),
		Size: uint64(len(data)), Chunks: uint32((len(data) + chunkSize - 1) / chunkSize), Digest: objectDigest(data),
	}
}

// publishObject sends the chunks. When the server has acknowledged all of them, it sends the
// metadata which makes them an object, under the conditions that opts have for it.
func (a *NATSArchive) publishObject(ctx context.Context, info *jetstream.ObjectInfo, data []byte, opts ...jetstream.PublishOpt) error {
	subject := a.chunkSubject(info.NUID)
	var acks []jetstream.PubAckFuture
	for chunk := range slices.Chunk(data, chunkSize) {
		ack, err := a.js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: chunk}, jetstream.WithExpectStream(a.streamName()))
		if err != nil {
			return err
		}
		if acks = append(acks, ack); len(acks) == maxInFlight {
			if err := awaitAcks(ctx, acks); err != nil {
				return err
			}
			acks = acks[:0]
		}
	}
	if err := awaitAcks(ctx, acks); err != nil {
		return err
	}
	meta, err := json.Marshal(info)
	if err != nil {
		return err
	}
	m := nats.NewMsg(a.metaSubject(info.Name))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Data = meta
	_, err = a.js.PublishMsg(ctx, m, append(opts, jetstream.WithExpectStream(a.streamName()))...)
	return err
}

// awaitAcks waits until the server has stored all messages.
func awaitAcks(ctx context.Context, acks []jetstream.PubAckFuture) error {
	for _, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// discardChunks removes chunks which no longer belong to an object. If it fails, a later
// sweepAbandoned removes them.
func (a *NATSArchive) discardChunks(ctx context.Context, s jetstream.Stream, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = s.Purge(ctx, jetstream.WithPurgeSubject(a.chunkSubject(id)))
}

// sweepAbandoned removes the chunks of crashed writers.
func (a *NATSArchive) sweepAbandoned(ctx context.Context, s jetstream.Stream, all map[string]*jetstream.ObjectInfo) error {
	live := map[string]bool{}
	for _, info := range all {
		live[a.chunkSubject(info.NUID)] = true
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(a.chunkSubject("*")))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		if live[subject] {
			continue
		}
		last, err := s.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // another process was faster
		}
		if err != nil {
			return err
		}
		if info.TimeStamp.Sub(last.Time) < a.abandonedAge { // both timestamps are the server's
			continue // it may still be being written
		}
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return err
		}
	}
	return nil
}

// Get implements Archive.
func (a *NATSArchive) Get(ctx context.Context, name string) (data []byte, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	err = natsd.RunWhileConnected(ctx, a.nc, "get "+name, func(ctx context.Context) error {
		all, err := a.listObjects(ctx)
		if err != nil {
			return err
		}
		info := all[name]
		if info == nil {
			return errObjectNotFound(name)
		}
		if info.Size > MaxObject {
			return fault.New(fault.TooLarge, "get %s: the object has %d bytes, at most %d are allowed", name, info.Size, MaxObject)
		}
		if data, err = a.readObject(ctx, info); errors.Is(err, errDamagedObject) {
			return fault.New(fault.Unavailable, "get %s: the object is damaged, or was replaced while it was read", name)
		}
		return err
	})
	return data, err
}

// errDamagedObject says that the chunks of an object do not match its metadata.
var errDamagedObject = errors.New("the object is damaged")

// readObject reads the chunks of an object.
func (a *NATSArchive) readObject(ctx context.Context, info *jetstream.ObjectInfo) ([]byte, error) {
	data := make([]byte, 0, min(info.Size, chunkSize)) // the announced size is not trusted
	if info.Size > 0 {
		err := a.readMessages(ctx, a.chunkSubject(info.NUID), 1, func(m natsd.Msg) error {
			if uint64(len(data)+len(m.Data)) > info.Size {
				return errDamagedObject
			}
			data = append(data, m.Data...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if objectDigest(data) != info.Digest {
		return nil, errDamagedObject
	}
	return data, nil
}

// List implements Archive.
func (a *NATSArchive) List(ctx context.Context, prefix string) (list []ArchiveObject, err error) {
	err = natsd.RunWhileConnected(ctx, a.nc, "list "+prefix, func(ctx context.Context) error {
		all, err := a.listObjects(ctx)
		for name, info := range all {
			if strings.HasPrefix(name, prefix) {
				list = append(list, ArchiveObject{name, info.Size})
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b ArchiveObject) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Delete implements Archive.
func (a *NATSArchive) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	return natsd.RunWhileConnected(ctx, a.nc, "delete "+name, func(ctx context.Context) error {
		s, err := a.js.Stream(ctx, a.streamName())
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		all, err := a.listObjects(ctx)
		if err != nil || all[name] == nil {
			return err
		}
		// Remove the metadata first, so that a crash here leaves no incomplete object.
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(a.metaSubject(name))); err != nil {
			return err
		}
		return s.Purge(ctx, jetstream.WithPurgeSubject(a.chunkSubject(all[name].NUID)))
	})
}

// listObjects returns the metadata of all objects, by name. It skips objects which no user of this
// package can have stored.
func (a *NATSArchive) listObjects(ctx context.Context) (map[string]*jetstream.ObjectInfo, error) {
	all := map[string]*jetstream.ObjectInfo{}
	err := a.readMessages(ctx, a.metaSubject("")+"*", 0, func(m natsd.Msg) error {
		var info jetstream.ObjectInfo
		if json.Unmarshal(m.Data, &info) == nil && !info.Deleted && a.metaSubject(info.Name) == m.Subject {
			all[info.Name] = &info
		}
		return nil
	})
	return all, err
}

// readMessages passes the current messages of a subject of the bucket to sink, see readStored.
func (a *NATSArchive) readMessages(ctx context.Context, subject string, seq uint64, sink func(natsd.Msg) error) error {
	return readStored(ctx, a.js, a.streamName(), subject, seq, sink)
}

// objectDigest returns the digest of an object in the format of object stores.
func objectDigest(data []byte) string {
	sum := sha256.Sum256(data)
	return "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:])
}

// openBucket returns the stream of the bucket; it creates the bucket if it is missing. It does not
// change an existing bucket.
func (a *NATSArchive) openBucket(ctx context.Context) (jetstream.Stream, error) {
	s, err := a.js.Stream(ctx, a.streamName())
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sctx, done := natsd.DetachedContext(ctx, a.nc)
	defer done()
	_, err = a.js.CreateObjectStore(sctx, jetstream.ObjectStoreConfig{
		Bucket: a.bucket, Description: "Penstock archive", Storage: jetstream.FileStorage, Replicas: a.cfg.Replicas,
	})
	if err != nil && !errors.Is(err, jetstream.ErrBucketExists) {
		return nil, err
	}
	return a.js.Stream(sctx, a.streamName())
}

// Lock implements Archive.
func (a *NATSArchive) Lock(ctx context.Context, name string, held func(context.Context, uint64) error) error {
	if err := checkName(name); err != nil {
		return err
	}
	l := &natsLock{archive: a, key: name}
	if err := natsd.RunWhileConnected(ctx, a.nc, "lock "+name, l.acquireLock); err != nil {
		return err
	}
	return l.holdLock(ctx, held)
}
