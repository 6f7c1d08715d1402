package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PrefillQueue is the queue of prefill jobs in a NATS server (docs/format/queue.md).
type PrefillQueue struct {
	Stream string
	// Waiting has the decode worker of each job which no prefill worker has got yet, in order. Started is how many other
	// jobs the queue has.
	Waiting []uint64
	Started int
	// Leader is the name of the server which leads the stream, "" without a cluster.
	Leader string
}

// callPatience bounds a connection attempt, and the calls which follow: servers without a leader do not answer.
const callPatience = 10 * time.Second

// The names of the stream of jobs and of its consumer.
const (
	jobStreamSuffix = "+jobs"
	jobConsumer     = "workers"
)

// withJetStream calls f with a connection to a NATS server.
func withJetStream(ctx context.Context, url string, f func(context.Context, jetstream.JetStream) error) error {
	nc, err := nats.Connect(url, nats.MaxReconnects(0), nats.Timeout(callPatience))
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel() // it also ends a list which is not read to its end
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return f(ctx, js)
}

// findJobs returns the stream of the prefill jobs: the oldest one, if workers of another build have their own.
func findJobs(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	var oldest *jetstream.StreamInfo
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if strings.HasSuffix(info.Config.Name, jobStreamSuffix) && (oldest == nil || info.Created.Before(oldest.Created)) {
			oldest = info
		}
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	if oldest == nil {
		return nil, errors.New("the NATS server has no prefill queue")
	}
	return js.Stream(ctx, oldest.Config.Name)
}

// ReadPrefillQueue reads the queue of a fleet with one model.
func ReadPrefillQueue(ctx context.Context, url string) (q PrefillQueue, err error) {
	err = withJetStream(ctx, url, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := findJobs(ctx, js)
		if err != nil {
			return err
		}
		// The consumer first: a job which is delivered meanwhile counts as one which waits.
		c, err := s.Consumer(ctx, jobConsumer)
		if err != nil {
			return err
		}
		given := c.CachedInfo().Delivered.Stream
		info, err := s.Info(ctx)
		if err != nil {
			return err
		}
		q = PrefillQueue{Stream: info.Config.Name}
		if info.Cluster != nil {
			q.Leader = info.Cluster.Leader
		}
		for seq := max(given+1, info.State.FirstSeq); seq <= info.State.LastSeq; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			q.Waiting = append(q.Waiting, jobOwner(m.Subject))
		}
		q.Started = int(info.State.Msgs) - len(q.Waiting)
		return nil
	})
	if err != nil {
		return q, fmt.Errorf("read the prefill queue: %w", err)
	}
	return q, nil
}

// jobOwner returns the decode worker of a job: its id, the last token of the subject, begins with it, before an encoded
// dot. It is 0 for a message which is no job.
func jobOwner(subject string) uint64 {
	id := subject[strings.LastIndexByte(subject, '.')+1:]
	worker, _, _ := strings.Cut(id, "=2E")
	n, _ := strconv.ParseUint(worker, 10, 64)
	return n
}

// DeletePrefillQueue deletes the queue with all its jobs.
func DeletePrefillQueue(ctx context.Context, url string) error {
	return withJetStream(ctx, url, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := findJobs(ctx, js)
		if err != nil {
			return err
		}
		return js.DeleteStream(ctx, s.CachedInfo().Config.Name)
	})
}

// FillPrefillQueue puts messages which are no jobs into the queue until it takes no more, and returns how many.
func FillPrefillQueue(ctx context.Context, url string) (n int, err error) {
	err = withJetStream(ctx, url, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := findJobs(ctx, js)
		if err != nil {
			return err
		}
		cfg := s.CachedInfo().Config
		base := strings.TrimSuffix(cfg.Subjects[0], "*")
		for {
			_, err := js.Publish(ctx, fmt.Sprintf("%sfiller-%d-%d", base, s.CachedInfo().State.LastSeq, n), nil)
			if full := new(jetstream.APIError); errors.As(err, &full) && strings.Contains(full.Description, "maximum messages exceeded") {
				return nil
			}
			if err != nil {
				return err
			}
			if n++; int64(n) > cfg.MaxMsgs {
				return fmt.Errorf("it took %d messages, its limit is %d", n, cfg.MaxMsgs)
			}
		}
	})
	if err != nil {
		return n, fmt.Errorf("fill the prefill queue: %w", err)
	}
	return n, nil
}

// ReplicateStreams gives each stream of a cluster so many replicas, as an operator does, and returns nil when all
// replicas are current.
func ReplicateStreams(ctx context.Context, url string, replicas int) error {
	return withJetStream(ctx, url, func(ctx context.Context, js jetstream.JetStream) error {
		list := js.ListStreams(ctx)
		var behind error
		for info := range list.Info() {
			if info.Config.Replicas != replicas {
				cfg := info.Config
				cfg.Replicas = replicas
				if _, err := js.UpdateStream(ctx, cfg); err != nil {
					return fmt.Errorf("replicate %s: %w", cfg.Name, err)
				}
				behind = fmt.Errorf("%s has just got its replicas", cfg.Name)
				continue
			}
			if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != replicas-1 {
				behind = fmt.Errorf("%s has no leader or too few replicas", info.Config.Name)
				continue
			}
			for _, r := range info.Cluster.Replicas {
				if !r.Current || r.Offline {
					behind = fmt.Errorf("the replica of %s at %s is not current", info.Config.Name, r.Name)
				}
			}
		}
		return errors.Join(list.Err(), behind)
	})
}
