package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/node/planes"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/handoff"
)

// PrefillQueues are the queues of prefill jobs of a namespace and a component, for people who look after the fleet. The
// name of a queue here is its name on the bus without [handoff.QueuePrefix]: it begins with that of the model.
type PrefillQueues struct {
	planes planes.Set
	queues bus.Queues
	prefix string
}

// PrefillQueueState is what a queue has.
type PrefillQueueState struct {
	Queue string `json:"queue"`
	// Waiting jobs were never given to a worker; Started ones were, and have not ended.
	Waiting int `json:"waiting"`
	Started int `json:"in_progress"`
	Dead    int `json:"dead"`
	// Oldest is the age of the oldest job, in seconds; nil without jobs.
	Oldest *float64 `json:"oldest_s"`
}

// DeadAttempts is the reason of a dead letter whose job had all attempts, and none ended it.
const DeadAttempts = "attempts"

// DeadPrefill is a job of prefill workers which had all its attempts. Its bytes come from outside: if they are no job,
// only Queue, ID, Reason, Attempts, Age, Bytes and Unreadable are set.
type DeadPrefill struct {
	Queue      string  `json:"queue"`
	ID         string  `json:"id"`
	Reason     string  `json:"reason"`
	Attempts   int     `json:"attempts"`
	Age        float64 `json:"age_s"` // since the job died, in seconds
	Bytes      int     `json:"bytes"` // of the job
	Unreadable bool    `json:"unreadable"`
	Model      string  `json:"model,omitempty"`
	RequestID  string  `json:"request_id,omitempty"`
	// DecodeWorker is the worker that waited for the blocks.
	DecodeWorker uint64 `json:"decode_worker,omitempty"`
}

// OpenPrefillQueues connects to the NATS server of the settings, once. The caller closes the queues.
func OpenPrefillQueues(cfg *config.Loaded) (*PrefillQueues, error) {
	url := cfg.NATS.URLs
	if url == "" && cfg.NATS.Listen != "" { // the settings of the process which embeds the server
		url = "nats://" + cfg.NATS.Listen
	}
	q := &PrefillQueues{prefix: handoff.QueuePrefix(cfg.Fleet.Namespace, cfg.Fleet.Component)}
	log := slog.New(slog.DiscardHandler)
	if err := q.planes.ConnectNATS(cfg, url, "penstock queue", log, nats.NoReconnect()); err != nil {
		return nil, fmt.Errorf("%w (name another server with --nats)", err)
	}
	b, err := bus.NewNATSBus(q.planes.Conn, bus.NATSBusConfig{})
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.queues = b
	return q, nil
}

// Close closes the connection.
func (q *PrefillQueues) Close() error { return q.planes.Close() }

// Names returns the names of the queues, in order.
func (q *PrefillQueues) Names(ctx context.Context) ([]string, error) {
	names, err := q.queues.ListQueues(ctx, q.prefix)
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], q.prefix)
	}
	return names, err
}

func (q *PrefillQueues) openQueue(name string) (bus.Queue, error) {
	return q.queues.OpenQueue(handoff.NamedQueue(q.prefix + name))
}

// Describe returns what a queue has.
func (q *PrefillQueues) Describe(ctx context.Context, name string) (PrefillQueueState, error) {
	queue, err := q.openQueue(name)
	if err != nil {
		return PrefillQueueState{}, err
	}
	s, err := queue.DescribeState(ctx)
	if err != nil {
		return PrefillQueueState{}, err
	}
	row := PrefillQueueState{Queue: name, Waiting: s.Waiting, Started: s.Started, Dead: s.Dead}
	if !s.Oldest.IsZero() {
		age := ageSeconds(time.Now(), s.Oldest)
		row.Oldest = &age
	}
	return row, nil
}

// ListDead returns the dead letters of a queue, the oldest first.
func (q *PrefillQueues) ListDead(ctx context.Context, name string) ([]DeadPrefill, error) {
	queue, err := q.openQueue(name)
	if err != nil {
		return nil, err
	}
	dead, err := queue.ListDead(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	rows := make([]DeadPrefill, len(dead))
	for i := range dead {
		rows[i] = describeDead(now, name, &dead[i])
	}
	return rows, nil
}

// describeDead describes a dead letter without its handle, which is for the prefill worker only.
func describeDead(now time.Time, queue string, d *bus.DeadJob) DeadPrefill {
	row := DeadPrefill{Queue: queue, ID: d.ID, Reason: DeadAttempts, Attempts: d.Attempts, Age: ageSeconds(now, d.At), Bytes: len(d.Data)}
	var job engine.PrefillRequest
	if engine.DecodePrefillRequest(d.Data, &job) != nil || job.Validate() != nil {
		row.Unreadable = true
		return row
	}
	row.Model, row.RequestID, row.DecodeWorker = job.Model, job.ID, uint64(job.Decode.ID)
	return row
}

// ageSeconds is the time from at to now in seconds; 0 if the clocks of this machine and of the store differ by more.
func ageSeconds(now, at time.Time) float64 {
	return max(now.Sub(at).Round(time.Millisecond).Seconds(), 0)
}

// DropDead drops the dead letters with the given ids in a queue, all without ids, and returns the dropped ids.
func (q *PrefillQueues) DropDead(ctx context.Context, name string, ids []string) (dropped []string, err error) {
	queue, err := q.openQueue(name)
	if err != nil {
		return nil, err
	}
	dead, err := queue.ListDead(ctx)
	if err != nil {
		return nil, err
	}
	for i := range dead {
		if len(ids) > 0 && !slices.Contains(ids, dead[i].ID) {
			continue
		}
		if err := queue.DropDead(ctx, dead[i].ID); err != nil {
			return dropped, err
		}
		dropped = append(dropped, dead[i].ID)
	}
	return dropped, nil
}
