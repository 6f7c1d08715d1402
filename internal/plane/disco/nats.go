package disco

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/plane/natsd"
)

// NATSRegistryConfig configures a registry in a NATS key-value bucket.
type NATSRegistryConfig struct {
	// Bucket is the bucket's name: letters, digits, '-' and '_'. All processes which discover each
	// other use the same. Empty means "penstock_discovery".
	Bucket string
	// TTL is how long an instance which has stopped refreshing stays, in whole seconds, the
	// server's resolution. All processes should use the same. 0 means 10 s.
	TTL time.Duration
	// Replicas is the replica count of a bucket that this registry creates, for a cluster of
	// servers. 0 means 1.
	Replicas int
	// Log receives lost registrations, interruptions and unreadable records. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *NATSRegistryConfig) EnsureDefaults() {
	c.Bucket = cmp.Or(c.Bucket, "penstock_discovery")
	c.TTL = cmp.Or(c.TTL, 10*time.Second)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *NATSRegistryConfig) Validate() error {
	var errs []error
	if checkKind(Kind(c.Bucket)) != nil {
		errs = append(errs, fault.New(fault.Invalid, "discovery bucket %.100q: use up to 64 letters, digits, '-' and '_'", c.Bucket))
	}
	if c.TTL < time.Second || c.TTL%time.Second != 0 {
		errs = append(errs, fault.New(fault.Invalid, "discovery ttl: have %v, use whole seconds, at least one", c.TTL))
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fault.New(fault.Invalid, "discovery replicas: have %d, JetStream allows 1 to 5", c.Replicas))
	}
	return errors.Join(errs...)
}

// NATSRegistry is the discovery plane in a NATS key-value bucket. An instance has a record, which
// persists, and a liveness key with a TTL, which its process refreshes. docs/format/disco.md
// documents the bytes of both.
type NATSRegistry struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	cfg       NATSRegistryConfig
	malformed atomic.Uint64
	leases    leaseSet
}

var _ Registry = (*NATSRegistry)(nil)

// NewNATSRegistry returns a registry over nc, which remains owned by the caller. The registry uses
// the server only when it is used itself.
func NewNATSRegistry(nc *nats.Conn, cfg NATSRegistryConfig) (*NATSRegistry, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, natsd.WrapUnavailable("open discovery", err)
	}
	return &NATSRegistry{nc: nc, js: js, cfg: cfg}, nil
}

// Close stops refreshing the registrations that were not released, and waits until that has
// stopped. They disappear when their leases expire, as after a crash; release them before Close to
// remove them at once. It is idempotent.
func (r *NATSRegistry) Close() { r.leases.closeLeases() }

// PurgeInstances removes all instances registered in the bucket. It is for the owner of a store
// that has just started: existing registrations come from an earlier run, and their leases would
// keep dead instances visible for a while. Live processes elsewhere register again when they find
// their leases gone, as after any loss of the store.
func (r *NATSRegistry) PurgeInstances(ctx context.Context) error {
	return natsd.RunWhileConnected(ctx, r.nc, "forget instances", func(ctx context.Context) error {
		s, err := r.js.Stream(ctx, r.streamName())
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.Purge(ctx)
	})
}

// Malformed returns how many records and liveness keys could not be decoded.
func (r *NATSRegistry) Malformed() uint64 { return r.malformed.Load() }

// Prefixes of an instance's keys. They differ, so that one filter selects the keys of one type and
// kind.
const (
	recordWord = "instance"
	leaseWord  = "lease"
)

func recordKey(n instanceKey) string { return fmt.Sprintf("%s.%s.%d", recordWord, n.kind, n.id) }
func leaseKey(n instanceKey) string  { return fmt.Sprintf("%s.%s.%d", leaseWord, n.kind, n.id) }

// keySubject returns the subject of a key of the bucket, or a filter for several keys.
func (r *NATSRegistry) keySubject(key string) string { return "$KV." + r.cfg.Bucket + "." + key }

// streamName returns the name of the bucket's stream.
func (r *NATSRegistry) streamName() string { return "KV_" + r.cfg.Bucket }

// parseSubject returns the key prefix and id of a subject of kind.
func (r *NATSRegistry) parseSubject(kind Kind, subject string) (word string, id kv.WorkerID, ok bool) {
	key, ok := strings.CutPrefix(subject, r.keySubject(""))
	if !ok {
		return "", 0, false
	}
	parts := strings.Split(key, ".")
	if len(parts) != 3 || parts[1] != string(kind) {
		return "", 0, false
	}
	n, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil || kv.WorkerID(n) > kv.MaxWorkerID || strconv.FormatUint(n, 10) != parts[2] {
		return "", 0, false
	}
	return parts[0], kv.WorkerID(n), true
}

// markerTTL is how long the server keeps deletion markers. Watchers read the whole bucket again
// after an interruption, so a marker need not outlast one delivery.
const markerTTL = time.Minute

// maxBucket bounds the bucket, in bytes; when it is full, registering fails.
const maxBucket = 64 << 20

// openBucket opens the bucket; it creates the bucket if it is missing. An existing bucket keeps the
// settings that its operator gave it.
func (r *NATSRegistry) openBucket(ctx context.Context) (jetstream.KeyValue, error) {
	b, err := r.js.KeyValue(ctx, r.cfg.Bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return b, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, done := natsd.DetachedContext(ctx, r.nc)
	defer done()
	b, err = r.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:         r.cfg.Bucket,
		Description:    "Penstock discovery",
		MaxValueSize:   MaxRecord + 1<<10, // plus the headers
		MaxBytes:       maxBucket,
		Storage:        jetstream.FileStorage,
		Replicas:       r.cfg.Replicas,
		LimitMarkerTTL: markerTTL, // without it watchers would not see expired keys
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
		return r.js.KeyValue(ctx, r.cfg.Bucket)
	}
	return b, err
}

// isLostRace reports whether a write failed because the key had changed meanwhile.
func isLostRace(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == codeWrongLastSequenceConstant) {
		return true
	}
	return errors.Is(err, jetstream.ErrKeyExists)
}

// codeWrongLastSequenceConstant is the corresponding code of a replicated stream.
const codeWrongLastSequenceConstant jetstream.ErrorCode = 10164
