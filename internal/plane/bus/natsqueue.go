package bus

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/plane/natsd"
)

// NATSQueue is a queue over NATS: a JetStream work-queue stream and a durable pull consumer.
// docs/format/queue.md documents them.
//
// The server does what it can: it drops a second message with the id of a job, refuses messages beyond
// MaxJobs, numbers deliveries, redelivers after AckWait, and removes jobs at their deadline, to the second.
// Two things it does not do. It takes a late acknowledgement of a delivery for one of the newest, so leases
// are kept here. And a message beyond MaxDeliver stays in the stream, hidden, until its time to live ends,
// so MaxDeliver is not used: Pull stores a dead letter in a stream of its own.
type NATSQueue struct {
	bus        *NATSBus
	cfg        QueueConfig
	jobs, dead natsStream
	// opened says that the consumer exists. The call which has put into opening creates it: others wait, since the server
	// may answer a pull with 503 while the consumer is updated.
	opened  atomic.Bool
	opening chan struct{}
	mu      struct {
		sync.Mutex
		held leaseTable // of the deliveries to this process
	}
}

var (
	_ Queue  = (*NATSQueue)(nil)
	_ Queues = (*NATSBus)(nil)
)

const (
	// queueConsumer is the name of the consumer, which all workers share.
	queueConsumer = "workers"
	// maxIdleWorkers bounds the workers of a queue which wait for a job.
	maxIdleWorkers = 8192
	// queueOverhead bounds the subject and headers of a job, in bytes.
	queueOverhead = 2 << 10
)

// Headers of messages.
const (
	// lifetimeHeader is the time from the storage of a job to its deadline, in ms.
	lifetimeHeader = "Penstock-Lifetime-Ms"
	// attemptsHeader is the number of attempts which a dead letter had.
	attemptsHeader = "Penstock-Attempts"
)

// Acknowledgements of a delivery.
var (
	ackDone     = []byte("+ACK")
	ackProgress = []byte("+WPI")
	ackRelease  = []byte("-NAK")
	ackDiscard  = []byte("+TERM")
)

// OpenQueue implements Queues. It does not use the server.
func (b *NATSBus) OpenQueue(cfg QueueConfig) (Queue, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.mu.queues[cfg.Name]
	if q == nil {
		q = newNATSQueue(b, cfg)
		b.mu.queues[cfg.Name] = q
	}
	if q.cfg != cfg {
		return nil, errQueueMismatch(cfg, q.cfg)
	}
	return q, nil
}

// ListQueues implements Queues. It reads the names of the streams of jobs and of dead letters.
func (b *NATSBus) ListQueues(ctx context.Context, prefix string) ([]string, error) {
	found := map[string]bool{}
	err := natsd.RunWhileConnected(ctx, b.nc, "list queues", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // it ends a list which is not read to its end
		list := b.js.StreamNames(ctx, jetstream.WithStreamListSubject(b.cfg.Prefix+".>"))
		for stream := range list.Name() {
			if name, ok := b.queueOfStream(stream); ok && strings.HasPrefix(name, prefix) {
				found[name] = true
			}
			if len(found) > MaxQueues {
				return errManyQueues(prefix)
			}
		}
		return list.Err()
	})
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// queueOfStream returns the name of the queue which a stream belongs to; ok is false if it belongs to none.
func (b *NATSBus) queueOfStream(stream string) (name string, ok bool) {
	name, ok = strings.CutPrefix(strings.ReplaceAll(stream, "+", "."), b.cfg.Prefix+"_")
	if !ok {
		return "", false
	}
	if name, ok = strings.CutSuffix(name, ".jobs"); !ok {
		name, ok = strings.CutSuffix(name, ".dead")
	}
	return name, ok && checkName(name) == nil
}

func newNATSQueue(b *NATSBus, cfg QueueConfig) *NATSQueue {
	q := &NATSQueue{bus: b, cfg: cfg, opening: make(chan struct{}, 1)}
	jobs := b.streamConfig(cfg.jobsName())
	jobs.Retention, jobs.Discard = jetstream.WorkQueuePolicy, jetstream.DiscardNew
	jobs.MaxMsgs, jobs.MaxMsgSize = int64(cfg.MaxJobs), MaxJob+queueOverhead
	// The server loses messages when both limits are reached (nats-server#4771): this one never is.
	jobs.MaxBytes = int64(cfg.MaxJobs+1) * 2 * (MaxJob + queueOverhead)
	jobs.MaxAge, jobs.Duplicates = cfg.MaxLifetime, cfg.MaxLifetime
	jobs.AllowMsgTTL = true
	q.jobs.config = jobs

	dead := b.streamConfig(cfg.deadName())
	dead.Retention, dead.Discard = jetstream.LimitsPolicy, jetstream.DiscardOld
	dead.MaxMsgs, dead.MaxMsgSize, dead.MaxBytes = MaxDead, MaxJob+queueOverhead, (MaxDead+1)*2*(MaxJob+queueOverhead)
	dead.MaxMsgsPerSubject = 1 // a job which dies twice, because its first end was not confirmed, is one
	dead.MaxAge = DeadAge
	q.dead.config = dead
	return q
}

func (q *NATSQueue) consumerConfig() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       queueConsumer,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       q.cfg.Lease,
		MaxDeliver:    -1,
		MaxAckPending: -1,
		MaxWaiting:    maxIdleWorkers,
	}
}

// openConsumer creates the stream of jobs and its consumer, or updates their limits, once.
func (q *NATSQueue) openConsumer(ctx context.Context) error {
	if q.opened.Load() {
		return nil
	}
	select {
	case q.opening <- struct{}{}:
		defer func() { <-q.opening }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if q.opened.Load() {
		return nil
	}
	if _, err := q.bus.openStream(ctx, &q.jobs); err != nil {
		return err
	}
	ctx, done := natsd.DetachedContext(ctx, q.bus.nc)
	defer done()
	if _, err := q.bus.js.CreateOrUpdateConsumer(ctx, q.jobs.config.Name, q.consumerConfig()); err != nil {
		return err
	}
	q.opened.Store(true)
	return nil
}

// runOnConsumer runs an operation on the consumer. After a failure the next one looks whether there is one.
func (q *NATSQueue) runOnConsumer(ctx context.Context, op string, f func(ctx context.Context) error) error {
	err := natsd.RunWhileConnected(ctx, q.bus.nc, op+" "+q.cfg.Name, func(ctx context.Context) error {
		if err := q.openConsumer(ctx); err != nil {
			return err
		}
		return f(ctx)
	})
	if err != nil && ctx.Err() == nil {
		q.opened.Store(false)
	}
	return err
}

// Put implements Queue.
func (q *NATSQueue) Put(ctx context.Context, j Job) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j, err := q.cfg.checkJob(j)
	if err != nil {
		return err
	}
	token := string(appendKey(nil, j.ID))
	m := nats.NewMsg(q.bus.subjectBase(q.cfg.jobsName()) + token)
	m.Data = j.Data
	m.Header.Set(lifetimeHeader, strconv.FormatInt(j.Lifetime.Milliseconds(), 10))
	err = q.bus.publishStored(ctx, "put into "+q.cfg.Name, &q.jobs, m,
		jetstream.WithMsgID(token), jetstream.WithMsgTTL(roundUp(j.Lifetime, time.Second))) // whole seconds, says the server
	if fault.CodeOf(err) == fault.Overloaded {
		return errQueueFull(&q.cfg)
	}
	return err
}

// queuedJob is a message of the stream of jobs.
type queuedJob struct {
	id       string
	data     []byte
	lifetime time.Duration
}

// parseJob reads a message of the stream of jobs. An error means that no user of this package can have sent
// it. A process with another MaxLifetime can have sent one that lives for longer than ours.
func (q *NATSQueue) parseJob(m *nats.Msg) (queuedJob, error) {
	id, err := q.parseJobID(q.cfg.jobsName(), m.Subject)
	if err != nil {
		return queuedJob{}, err
	}
	ms, err := parseCanonical(m.Header.Get(lifetimeHeader))
	if err != nil || len(m.Data) > MaxJob || ms > uint64(maxMaxLifetime.Milliseconds()) {
		return queuedJob{}, fault.New(fault.Invalid, "job %.100q: %d bytes, a lifetime of %d ms, %v", id, len(m.Data), ms, err)
	}
	return queuedJob{id, m.Data, time.Duration(ms) * time.Millisecond}, nil
}

func (q *NATSQueue) parseJobID(name, subject string) (string, error) {
	token, ok := strings.CutPrefix(subject, q.bus.subjectBase(name))
	if !ok {
		return "", errBadKey(subject)
	}
	id, err := decodeKey(token)
	if err != nil {
		return "", err
	}
	return id, q.cfg.checkJobID(id)
}

// parseCanonical reads a number of at least 1 as strconv writes it.
func parseCanonical(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err == nil && (n == 0 || strconv.FormatUint(n, 10) != s) {
		err = strconv.ErrSyntax
	}
	return n, err
}

// Pull implements Queue.
func (q *NATSQueue) Pull(ctx context.Context) (Delivery, error) {
	for {
		var m *nats.Msg
		err := q.runOnConsumer(ctx, "pull from", func(ctx context.Context) (err error) {
			m, err = natsd.PullMessage(ctx, q.bus.nc, q.jobs.config.Name, queueConsumer, func(m *nats.Msg) {
				_ = q.bus.nc.Publish(m.Reply, ackRelease) // if it is lost, the lease passes
			})
			return err
		})
		if err != nil {
			return Delivery{}, err
		}
		if d, ok, err := q.acceptMessage(ctx, m); ok || err != nil {
			return d, err
		}
	}
}

// acceptMessage makes a delivery of a message; ok is false if it is none for a worker.
func (q *NATSQueue) acceptMessage(ctx context.Context, m *nats.Msg) (d Delivery, ok bool, err error) {
	now := time.Now()
	j, err := q.parseJob(m)
	md, merr := m.Metadata()
	if err = cmp.Or(err, merr); err != nil {
		q.bus.malformed.Add(1)
		return Delivery{}, false, q.confirmAck(ctx, "discard a message of", m.Reply, ackDiscard, now.Add(q.cfg.Lease))
	}
	deadline := md.Timestamp.Add(j.lifetime)
	switch judgeOffer(now, deadline, md.NumDelivered, q.cfg.MaxAttempts) {
	case offerExpired:
		// The server removes it when its time to live ends. If only the clock of this process is wrong,
		// another worker gets it after the lease.
		return Delivery{}, false, nil
	case offerDead:
		return Delivery{}, false, q.buryJob(ctx, m, j)
	case offerDeliver:
	}
	d = Delivery{ID: j.id, Data: j.data, Attempt: int(md.NumDelivered), Deadline: deadline, Receipt: m.Reply}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.held.removeLapsed(now)
	q.mu.held.grantLease(d, now.Add(q.cfg.Lease))
	return d, true, nil
}

// buryJob stores a dead letter, then ends the job. After an error the job is offered again, and buried.
func (q *NATSQueue) buryJob(ctx context.Context, m *nats.Msg, j queuedJob) error {
	dead := nats.NewMsg(q.bus.subjectBase(q.cfg.deadName()) + string(appendKey(nil, j.id)))
	dead.Data = j.data
	dead.Header.Set(attemptsHeader, strconv.Itoa(q.cfg.MaxAttempts))
	if err := q.bus.publishStored(ctx, "bury a job of "+q.cfg.Name, &q.dead, dead); err != nil {
		return err
	}
	return q.confirmAck(ctx, "bury a job of", m.Reply, ackDone, time.Now().Add(q.cfg.Lease))
}

// confirmAck sends an acknowledgement and waits, at most until a time, until the server has confirmed it.
func (q *NATSQueue) confirmAck(ctx context.Context, op, receipt string, ack []byte, until time.Time) error {
	return natsd.RunWhileConnected(ctx, q.bus.nc, op+" "+q.cfg.Name, func(ctx context.Context) error {
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		_, err := q.bus.nc.RequestWithContext(ctx, receipt, ack)
		return err
	})
}

// confirmHeld sends an acknowledgement of a delivery whose lease has not passed. If it is confirmed, done
// changes the lease.
func (q *NATSQueue) confirmHeld(ctx context.Context, op string, d Delivery, ack []byte, done func(held *leaseTable, d Delivery)) error {
	q.mu.Lock()
	until, err := q.mu.held.checkLease(time.Now(), d)
	q.mu.Unlock()
	if err != nil {
		return err
	}
	if err := q.confirmAck(ctx, op, d.Receipt, ack, until); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	done(&q.mu.held, d)
	return nil
}

// Extend implements Queue. The lease begins, by the clock of this process, when the request is sent.
func (q *NATSQueue) Extend(ctx context.Context, d Delivery) error {
	until := time.Now().Add(q.cfg.Lease)
	return q.confirmHeld(ctx, "extend a job of", d, ackProgress, func(held *leaseTable, d Delivery) { held.extendLease(d, until) })
}

// Ack implements Queue.
func (q *NATSQueue) Ack(ctx context.Context, d Delivery) error {
	return q.confirmHeld(ctx, "acknowledge a job of", d, ackDone, (*leaseTable).endLease)
}

// Release implements Queue.
func (q *NATSQueue) Release(ctx context.Context, d Delivery) error {
	return q.confirmHeld(ctx, "release a job of", d, ackRelease, (*leaseTable).endLease)
}

// DescribeDepth implements Queue.
func (q *NATSQueue) DescribeDepth(ctx context.Context) (depth QueueDepth, err error) {
	err = q.runOnConsumer(ctx, "describe", func(ctx context.Context) (err error) {
		depth, err = q.readDepth(ctx)
		return err
	})
	return depth, err
}

// readDepth reads the depth from the consumer.
func (q *NATSQueue) readDepth(ctx context.Context) (QueueDepth, error) {
	at := time.Now()
	c, err := q.bus.js.Consumer(ctx, q.jobs.config.Name, queueConsumer)
	if err != nil {
		return QueueDepth{}, err
	}
	info := c.CachedInfo()
	return QueueDepth{Waiting: int(info.NumPending), Started: info.NumAckPending, At: at}, nil
}

// DescribeState implements Queue. Messages which are no dead letters count as such too.
func (q *NATSQueue) DescribeState(ctx context.Context) (state QueueState, err error) {
	err = natsd.RunWhileConnected(ctx, q.bus.nc, "describe "+q.cfg.Name, func(ctx context.Context) error {
		state = QueueState{}
		jobs, err := q.readStream(ctx, &q.jobs)
		if err != nil {
			return err
		}
		dead, err := q.readStream(ctx, &q.dead)
		if err != nil {
			return err
		}
		state.QueueDepth, err = q.readDepth(ctx)
		if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			state.QueueDepth, err = QueueDepth{Waiting: int(jobs.Msgs), At: time.Now()}, nil // no worker has come yet
		}
		if state.Dead = int(dead.Msgs); jobs.Msgs > 0 {
			state.Oldest = jobs.FirstTime
		}
		return err
	})
	if err != nil {
		return QueueState{}, err
	}
	return state, nil
}

// readStream returns the state of a stream, which has no messages if it does not exist.
func (q *NATSQueue) readStream(ctx context.Context, ns *natsStream) (jetstream.StreamState, error) {
	s, err := q.bus.js.Stream(ctx, ns.config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return jetstream.StreamState{}, nil
	}
	if err != nil {
		return jetstream.StreamState{}, err
	}
	return s.CachedInfo().State, nil
}

// ListDead implements Queue.
func (q *NATSQueue) ListDead(ctx context.Context) (list []DeadJob, err error) {
	base := q.bus.subjectBase(q.cfg.deadName())
	err = natsd.RunWhileConnected(ctx, q.bus.nc, "list the dead letters of "+q.cfg.Name, func(ctx context.Context) error {
		return readStored(ctx, q.bus.js, q.dead.config.Name, base+"*", 1, func(m natsd.Msg) error {
			d, err := q.parseDead(m)
			if err != nil {
				q.bus.malformed.Add(1)
				return nil
			}
			list = append(list, d)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// parseDead reads a message of the stream of dead letters.
func (q *NATSQueue) parseDead(m natsd.Msg) (DeadJob, error) {
	id, err := q.parseJobID(q.cfg.deadName(), m.Subject)
	if err != nil {
		return DeadJob{}, err
	}
	attempts, err := parseCanonical(m.Header.Get(attemptsHeader))
	if err != nil || len(m.Data) > MaxJob || attempts > 1<<31-1 {
		return DeadJob{}, fault.New(fault.Invalid, "dead letter %.100q: %d bytes, %d attempts, %v", id, len(m.Data), attempts, err)
	}
	return DeadJob{ID: id, Data: slices.Clone(m.Data), Attempts: int(attempts), At: m.Stored}, nil
}

// DropDead implements Queue.
func (q *NATSQueue) DropDead(ctx context.Context, id string) error {
	if err := q.cfg.checkJobID(id); err != nil {
		return err
	}
	subject := q.bus.subjectBase(q.cfg.deadName()) + string(appendKey(nil, id))
	return natsd.RunWhileConnected(ctx, q.bus.nc, "drop a dead letter of "+q.cfg.Name, func(ctx context.Context) error {
		s, err := q.bus.openStream(ctx, &q.dead)
		if err != nil {
			return err
		}
		return s.Purge(ctx, jetstream.WithPurgeSubject(subject))
	})
}
