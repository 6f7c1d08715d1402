package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Registration has the fields which the harness reads of a record in the discovery bucket
// (docs/format/disco.md).
type Registration struct {
	Kind   string `json:"kind"`
	ID     uint64 `json:"id"`
	Epoch  uint64 `json:"epoch"`
	Holder string `json:"holder"`
}

// Registry is the content of the discovery bucket.
type Registry struct {
	Workers map[uint64]Registration // including routers, which register in the same way
	Leases  map[uint64]bool         // workers with a liveness key
	Keys    int                     // of all kinds
}

const (
	recordPrefix = "instance.worker."
	leasePrefix  = "lease.worker."
)

// openBucket opens the discovery bucket of a NATS server; the caller closes it.
func openBucket(ctx context.Context, url string) (jetstream.KeyValue, func(), error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(0))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	bucket, err := js.KeyValue(ctx, "penstock_discovery")
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return bucket, nc.Close, nil
}

// RemoveExpiry removes the time to live from the liveness key of a worker, which must be dead: a NATS server
// killed at a bad time does so too.
func RemoveExpiry(ctx context.Context, url string, id uint64) error {
	bucket, closeBucket, err := openBucket(ctx, url)
	if err != nil {
		return fmt.Errorf("lose expiry: %w", err)
	}
	defer closeBucket()
	key := leasePrefix + strconv.FormatUint(id, 10)
	entry, err := bucket.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("lose expiry: %s: %w", key, err)
	}
	_, err = bucket.Update(ctx, key, entry.Value(), entry.Revision()) // without a TTL
	return err
}

// ReadRegistry reads the discovery bucket of a NATS server.
func ReadRegistry(ctx context.Context, url string) (Registry, error) {
	reg := Registry{Workers: map[uint64]Registration{}, Leases: map[uint64]bool{}}
	bucket, closeBucket, err := openBucket(ctx, url)
	if err != nil {
		return reg, fmt.Errorf("read registry: %w", err)
	}
	defer closeBucket()
	keys, err := bucket.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return reg, fmt.Errorf("read registry: %w", err)
	}
	reg.Keys = len(keys)
	for _, key := range keys {
		if id, ok := strings.CutPrefix(key, leasePrefix); ok {
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return reg, fmt.Errorf("read registry: %s: %w", key, err)
			}
			reg.Leases[n] = true
		}
		if !strings.HasPrefix(key, recordPrefix) {
			continue
		}
		entry, err := bucket.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // deleted in between
		}
		if err != nil {
			return reg, fmt.Errorf("read registry: %s: %w", key, err)
		}
		var in Registration
		if err := json.Unmarshal(entry.Value(), &in); err != nil {
			return reg, fmt.Errorf("read registry: %s: %w", key, err)
		}
		reg.Workers[in.ID] = in
	}
	return reg, nil
}
