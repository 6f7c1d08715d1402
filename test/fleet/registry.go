package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Registration is what the harness reads of a record in the discovery bucket
// (docs/format/disco.md).
type Registration struct {
	Kind   string `json:"kind"`
	ID     uint64 `json:"id"`
	Epoch  uint64 `json:"epoch"`
	Holder string `json:"holder"`
}

// Registry is what the discovery bucket holds.
type Registry struct {
	Workers map[uint64]Registration // and routers, which register as such
	Keys    int                     // of all kinds
}

// ReadRegistry looks into the discovery bucket of a NATS server.
func ReadRegistry(ctx context.Context, url string) (Registry, error) {
	reg := Registry{Workers: map[uint64]Registration{}}
	nc, err := nats.Connect(url, nats.MaxReconnects(0))
	if err != nil {
		return reg, fmt.Errorf("read registry: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return reg, err
	}
	bucket, err := js.KeyValue(ctx, "penstock_discovery")
	if err != nil {
		return reg, fmt.Errorf("read registry: %w", err)
	}
	keys, err := bucket.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return reg, fmt.Errorf("read registry: %w", err)
	}
	reg.Keys = len(keys)
	for _, key := range keys {
		if !strings.HasPrefix(key, "instance.worker.") {
			continue
		}
		entry, err := bucket.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // it left meanwhile
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
