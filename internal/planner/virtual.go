package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/plan"
)

// DecisionStore keeps the last decision of a planner, and what an agent says of it.
type DecisionStore interface {
	// WriteDecision replaces the decision.
	WriteDecision(ctx context.Context, data []byte) error
	// ReadDecision and ReadAck return nil if there is none.
	ReadDecision(ctx context.Context) ([]byte, error)
	ReadAck(ctx context.Context) ([]byte, error)
}

// VirtualConnector writes decisions into a store, where an agent finds them, applies and acknowledges them.
type VirtualConnector struct {
	store DecisionStore
	// patience is the time after which a decision which no agent has acknowledged is reported.
	patience time.Duration
	timeout  time.Duration // of an access to the store
	opened   bool
	base     uint64 // added to ids, so that they ascend from the ones which the store has
	written  FleetDecision
	tried    uint64    // the largest id which it has tried to write: the store may have it although the write failed
	acked    uint64    // the last acknowledged id
	since    time.Time // since when a decision waits for an acknowledgement
}

// NewVirtualConnector returns a connector. Decisions which no agent acknowledges within patience are reported.
func NewVirtualConnector(store DecisionStore, patience time.Duration) *VirtualConnector {
	return &VirtualConnector{store: store, patience: patience, timeout: storeTimeout}
}

// storeTimeout bounds an access to a store.
const storeTimeout = 5 * time.Second

// ApplyDecision implements Connector.
func (c *VirtualConnector) ApplyDecision(ctx context.Context, d *FleetDecision, _ []FleetWorker) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.openStore(ctx, d.ID); err != nil {
		return err
	}
	next := *d
	next.ID += c.base
	if err := c.checkOwner(ctx); err != nil {
		return err
	}
	data, err := json.Marshal(&next)
	if err != nil {
		return err
	}
	c.tried = max(c.tried, next.ID)
	if err := c.store.WriteDecision(ctx, data); err != nil {
		return fmt.Errorf("write the decision: %w", err)
	}
	if next.ID != c.written.ID && c.acked >= c.written.ID {
		c.since = time.Now()
	}
	c.written = next
	d.ID = next.ID
	return nil
}

// openStore finds out, once, which ids were used: a planner whose clock went back must not repeat them.
func (c *VirtualConnector) openStore(ctx context.Context, first uint64) error {
	if c.opened {
		return nil
	}
	data, err := c.store.ReadDecision(ctx)
	if err != nil {
		return fmt.Errorf("read the last decision: %w", err)
	}
	var last FleetDecision
	if json.Unmarshal(data, &last) == nil && last.ID >= first && last.ID < maxDecisionID {
		c.base = last.ID + 1 - first
	}
	c.opened = true
	return nil
}

// checkOwner finds out whether a planner which was started later writes into the store: an agent would follow each in turn.
func (c *VirtualConnector) checkOwner(ctx context.Context) error {
	if c.tried == 0 {
		return nil
	}
	data, err := c.store.ReadDecision(ctx)
	if err != nil {
		return fmt.Errorf("read the last decision: %w", err)
	}
	var last FleetDecision
	if json.Unmarshal(data, &last) == nil && last.ID > c.tried && last.ID < maxDecisionID {
		return fmt.Errorf("another planner of this namespace has written decision %d, and this one writes no more: stop one of them, and start the other one again", last.ID)
	}
	return nil
}

// maxDecisionID bounds ids which a store may have: JSON readers are exact below it.
const maxDecisionID = 1 << 53

// DescribeFleet implements Connector.
func (c *VirtualConnector) DescribeFleet(ctx context.Context, roles []plan.WorkerRole) (fleet []plan.RoleFleet, problems []string) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	data, err := c.store.ReadAck(ctx)
	var ack *Ack
	switch {
	case err != nil:
		return nil, []string{fmt.Sprintf("connector virtual: the acknowledgement cannot be read: %v", err)}
	case data == nil:
		ack = &Ack{}
	default:
		if ack, err = parseAck(data); err != nil {
			return nil, []string{fmt.Sprintf("connector virtual: the acknowledgement is not valid: %v", err)}
		}
		asked := c.written.ID
		if asked == 0 { // what it could not have was ordered by an earlier planner
			asked = maxDecisionID
		}
		fleet = ack.fleetOf(roles, asked)
	}
	if ack.ID > c.acked {
		c.acked, c.since = ack.ID, time.Now()
	}
	if ack.Error != "" {
		problems = append(problems, fmt.Sprintf("connector virtual: the agent reports: %.200q", ack.Error))
	}
	if c.written.ID > ack.ID && time.Since(c.since) >= c.patience {
		problems = append(problems, fmt.Sprintf("connector virtual: no agent has acknowledged decision %d within %v", c.written.ID, c.patience))
	}
	return fleet, problems
}

// Close implements Connector. The decision stays.
func (c *VirtualConnector) Close() error { return nil }

// The files of a DirectoryStore.
const (
	decisionFile = "decision.json"
	ackFile      = "ack.json"
)

// DirectoryStore is a DecisionStore of files in a directory.
type DirectoryStore struct{ dir string }

// NewDirectoryStore returns a store in a directory, which it makes.
func NewDirectoryStore(dir string) (*DirectoryStore, error) {
	return &DirectoryStore{dir}, os.MkdirAll(dir, 0o700)
}

// WriteDecision implements DecisionStore. Readers see the old decision or the new one, whole.
func (s *DirectoryStore) WriteDecision(_ context.Context, data []byte) (err error) {
	f, err := os.CreateTemp(s.dir, decisionFile+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, decisionFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// ReadDecision implements DecisionStore.
func (s *DirectoryStore) ReadDecision(context.Context) ([]byte, error) {
	return s.readFile(decisionFile)
}

// ReadAck implements DecisionStore.
func (s *DirectoryStore) ReadAck(context.Context) ([]byte, error) { return s.readFile(ackFile) }

func (s *DirectoryStore) readFile(name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxAck+1))
}

// planBucket is the key-value bucket of decisions and acknowledgements.
const planBucket = "penstock_plan"

// NATSStore is a DecisionStore in a NATS key-value bucket: the keys NAMESPACE.decision and NAMESPACE.ack.
type NATSStore struct {
	js        jetstream.JetStream
	namespace string
}

// NewNATSStore returns a store on a connection, for the decisions of a namespace.
func NewNATSStore(conn *nats.Conn, namespace string) (*NATSStore, error) {
	js, err := jetstream.New(conn)
	return &NATSStore{js, namespace}, err
}

// openBucket opens the bucket, which it makes if there is none.
func (s *NATSStore) openBucket(ctx context.Context) (jetstream.KeyValue, error) {
	b, err := s.js.KeyValue(ctx, planBucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return b, err
	}
	b, err = s.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: planBucket, Description: "decisions of Penstock planners, and what agents say of them",
		MaxValueSize: maxAck + 1<<10, MaxBytes: 16 << 20, Storage: jetstream.FileStorage,
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
		return s.js.KeyValue(ctx, planBucket)
	}
	return b, err
}

// WriteDecision implements DecisionStore. A decision which is there is not written again.
func (s *NATSStore) WriteDecision(ctx context.Context, data []byte) error {
	b, err := s.openBucket(ctx)
	if err != nil {
		return err
	}
	if now, err := s.readKey(ctx, "decision"); err == nil && string(now) == string(data) {
		return nil
	}
	_, err = b.Put(ctx, s.namespace+".decision", data)
	return err
}

// ReadDecision implements DecisionStore.
func (s *NATSStore) ReadDecision(ctx context.Context) ([]byte, error) {
	return s.readKey(ctx, "decision")
}

// ReadAck implements DecisionStore.
func (s *NATSStore) ReadAck(ctx context.Context) ([]byte, error) { return s.readKey(ctx, "ack") }

func (s *NATSStore) readKey(ctx context.Context, name string) ([]byte, error) {
	b, err := s.openBucket(ctx)
	if err != nil {
		return nil, err
	}
	e, err := b.Get(ctx, s.namespace+"."+name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return e.Value(), nil
}
