package bus

import (
	"cmp"
	"context"
	"errors"
	"time"

	"penstock/core/fault"
)

// Limits of every queue.
const (
	// MaxJob bounds the data of a job, in bytes; longer data is TooLarge. A job names a request and a
	// handle from which its worker fetches the rest: it never carries token ids or text.
	MaxJob = 4 << 10
	// MaxDead bounds the dead letters of a queue, and DeadAge their age. The oldest are dropped.
	MaxDead = 1024
	DeadAge = 24 * time.Hour
	// MaxQueues bounds a list of queues.
	MaxQueues = 1024
)

// Meaning of 0 in a QueueConfig, and bounds.
const (
	DefaultMaxJobs     = 1024
	DefaultMaxAttempts = 3
	DefaultLease       = 2 * time.Second
	DefaultMaxLifetime = 10 * time.Minute

	maxMaxJobs     = 1 << 16
	minLease       = 10 * time.Millisecond
	minMaxLifetime = time.Second
	maxMaxLifetime = 24 * time.Hour
)

// QueueConfig names a queue and sets its limits. All users of a queue must pass equal values.
type QueueConfig struct {
	// Name has the syntax of the name of a topic. A queue stores its jobs under the names NAME.jobs and
	// NAME.dead, which no topic may have.
	Name string
	// MaxJobs bounds the jobs of the queue, waiting and started. 0 means 1024.
	MaxJobs int
	// MaxAttempts is how often a job is delivered. 0 means 3.
	MaxAttempts int
	// Lease is how long a worker has a job after it got it or extended it. 0 means 2 s.
	Lease time.Duration
	// MaxLifetime bounds the lifetime of jobs. The queue knows their ids for that long. 0 means ten
	// minutes; one second to one day.
	MaxLifetime time.Duration
}

// EnsureDefaults replaces zero values by their defaults.
func (c *QueueConfig) EnsureDefaults() {
	c.MaxJobs = cmp.Or(c.MaxJobs, DefaultMaxJobs)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	c.MaxLifetime = cmp.Or(c.MaxLifetime, DefaultMaxLifetime)
}

// Validate reports all problems of c.
func (c *QueueConfig) Validate() error {
	errs := []error{checkName(c.Name), checkName(c.jobsName())}
	if c.MaxJobs < 1 || c.MaxJobs > maxMaxJobs {
		errs = append(errs, fault.New(fault.Invalid, "queue %s: MaxJobs is %d, must be 1 to %d", c.Name, c.MaxJobs, maxMaxJobs))
	}
	if c.MaxAttempts < 1 {
		errs = append(errs, fault.New(fault.Invalid, "queue %s: MaxAttempts is %d, must be at least 1", c.Name, c.MaxAttempts))
	}
	if c.Lease < minLease {
		errs = append(errs, fault.New(fault.Invalid, "queue %s: Lease is %v, must be at least %v", c.Name, c.Lease, minLease))
	}
	if c.MaxLifetime < minMaxLifetime || c.MaxLifetime > maxMaxLifetime {
		errs = append(errs, fault.New(fault.Invalid, "queue %s: MaxLifetime is %v, must be %v to %v", c.Name, c.MaxLifetime, minMaxLifetime, maxMaxLifetime))
	}
	return errors.Join(errs...)
}

// jobsName and deadName are the names under which the jobs and the dead letters are stored.
func (c *QueueConfig) jobsName() string { return c.Name + ".jobs" }
func (c *QueueConfig) deadName() string { return c.Name + ".dead" }

// Job is one unit of work.
type Job struct {
	// ID names the job: 1 to MaxKey bytes. It is never used for another job.
	ID   string
	Data []byte
	// Lifetime is the time from Put to the job's deadline, in whole milliseconds; a part of one counts
	// as one. At least 1 ns, at most the queue's MaxLifetime.
	Lifetime time.Duration
}

// Delivery is a job in the hands of a worker.
type Delivery struct {
	ID   string
	Data []byte // owned by the worker
	// Attempt is 1 at the first delivery, and greater at each later one: it is a fencing token. The
	// receiver of a job's result must refuse an attempt which is less than one it has seen. Two
	// deliveries with the same ID and Attempt are one, which came twice.
	Attempt int
	// Deadline is the end of the job's lifetime, by the clock of the store.
	Deadline time.Time
	// Receipt names this delivery to its queue.
	Receipt string
}

// QueueDepth is the number of jobs in a queue.
type QueueDepth struct {
	Waiting int // never delivered
	// Started jobs were delivered: workers have them, or they wait for another worker.
	Started int
	// At is the time to which the numbers belong, or a little before.
	At time.Time
}

// QueueState is what a queue has.
type QueueState struct {
	QueueDepth
	// Oldest is when the oldest job of the queue was put, by the clock of the store; zero without jobs.
	Oldest time.Time
	// Dead is the number of dead letters.
	Dead int
}

// DeadJob is a dead letter: a job which had all its attempts, and none was acknowledged.
type DeadJob struct {
	ID       string
	Data     []byte // owned by the caller
	Attempts int    // of the queue's MaxAttempts
	At       time.Time
}

// Queue is a queue of jobs, each for one of many workers. It delivers at least once.
//
//	state    | event                                     | next state
//	waiting  | Pull                                      | held, attempt 1
//	held     | Ack                                       | gone
//	held     | Release, or Lease passes without Extend   | returned
//	returned | Pull, and it had fewer than MaxAttempts   | held, one attempt more
//	returned | Pull, and it had MaxAttempts              | dead
//	any      | its deadline                              | gone; never delivered any more
//	dead     | DropDead, DeadAge, MaxDead others         | gone
//
// Returned jobs are delivered before waiting ones, and both in order.
//
// A worker whose lease has passed gets a Conflict from Ack, Extend and Release, and one whose deadline has
// passed gets Deadline: what it does is of no use any more. A worker which stood still may learn that too
// late, and its Ack may end a job which another worker has too. Therefore results carry the Attempt.
//
// Implementations are safe for concurrent use. Unavailable means that it is unknown whether a call took
// effect; it may be made again.
type Queue interface {
	// Put adds a job. If the queue has got a job of that id during the last MaxLifetime, Put changes
	// nothing and returns nil, whatever has become of that job; a store which was restarted may have
	// forgotten ids of jobs that are gone. A queue with MaxJobs jobs is Overloaded. Put copies data.
	Put(ctx context.Context, j Job) error
	// Pull waits for a job until ctx ends, whose error it then returns.
	Pull(ctx context.Context) (Delivery, error)
	// Extend says that the worker still works: its lease begins again.
	Extend(ctx context.Context, d Delivery) error
	// Ack says that the job is done.
	Ack(ctx context.Context, d Delivery) error
	// Release gives the job back at once, for another attempt.
	Release(ctx context.Context, d Delivery) error
	// DescribeDepth asks the store for the depth. [WatchedQueue] knows it without a question.
	DescribeDepth(ctx context.Context) (QueueDepth, error)
	// DescribeState asks the store for the depth and for more, at the cost of several questions. It makes
	// and changes nothing, even if the store has no such queue yet.
	DescribeState(ctx context.Context) (QueueState, error)
	// ListDead returns the dead letters, the oldest first.
	ListDead(ctx context.Context) ([]DeadJob, error)
	// DropDead removes the dead letter of that id. If there is none it does nothing.
	DropDead(ctx context.Context, id string) error
}

// Queues is the ability of a bus to carry queues.
type Queues interface {
	// OpenQueue returns the queue of a name, which exists from then on. It is Conflict if this bus has
	// opened it with other values.
	OpenQueue(cfg QueueConfig) (Queue, error)
	// ListQueues returns the names, in order, of the queues which begin with prefix and were used: a job was
	// put, or pulled. Queues which were only opened may be among them. More than MaxQueues are TooLarge.
	ListQueues(ctx context.Context, prefix string) ([]string, error)
}

// checkJob validates a job for Put, and rounds its lifetime.
func (c *QueueConfig) checkJob(j Job) (Job, error) {
	if err := c.checkJobID(j.ID); err != nil {
		return j, err
	}
	if len(j.Data) > MaxJob {
		return j, fault.New(fault.TooLarge, "put into %s: the job has %d bytes, at most %d are allowed", c.Name, len(j.Data), MaxJob)
	}
	if j.Lifetime <= 0 || j.Lifetime > c.MaxLifetime {
		return j, fault.New(fault.Invalid, "put into %s: the job lives for %v, it must be more than 0 and at most %v", c.Name, j.Lifetime, c.MaxLifetime)
	}
	j.Lifetime = roundUp(j.Lifetime, time.Millisecond)
	return j, nil
}

func (c *QueueConfig) checkJobID(id string) error {
	if id == "" || len(id) > MaxKey {
		return fault.New(fault.Invalid, "queue %s: the id of a job has %d bytes, it must have 1 to %d", c.Name, len(id), MaxKey)
	}
	return nil
}

// roundUp returns the least multiple of unit which is at least d.
func roundUp(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

func errQueueFull(c *QueueConfig) error {
	return fault.New(fault.Overloaded, "put into %s: the queue has %d jobs already", c.Name, c.MaxJobs)
}

func errManyQueues(prefix string) error {
	return fault.New(fault.TooLarge, "list queues: more than %d begin with %.100q", MaxQueues, prefix)
}

func errQueueMismatch(a, b QueueConfig) error {
	return fault.New(fault.Conflict, "queue %s: used with %+v and with %+v; everyone must pass an equal value", a.Name, b, a)
}
