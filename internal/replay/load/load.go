// Package load sends the requests of a workload to a server with the OpenAI API, each at its time, and
// measures when the response tokens arrive.
//
// It is built so that it measures the server and not itself. Bodies are built before they are due. One
// thread, which sleeps in the kernel and polls the clock at the end, starts each request. Each request has
// its own connection and a goroutine which only reads it. The time of a token is the time when the read which
// brought it returned. Nothing is allocated and no lock is taken between two tokens. The package implements
// HTTP/1.1 itself: net/http would pass each request through two more goroutines and hide when bytes arrived.
// The remaining lateness of the client is in the samples.
package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"penstock/internal/replay"
)

// Recorder receives the measurements. *replay.Recorder is one. One goroutine calls it.
type Recorder interface {
	// RecordSample records a finished request.
	RecordSample(s *replay.Sample)
	// RecordGap records the time between two tokens of the complete response of the last sample, n times.
	RecordGap(between time.Duration, n int)
}

// TokenRecorder is a Recorder which also receives the times of a response's tokens.
type TokenRecorder interface {
	Recorder
	// RecordTokens is called after RecordSample of a complete response with the times of its events with
	// tokens. at is valid during the call.
	RecordTokens(s *replay.Sample, at []time.Duration)
}

// Config says where requests are sent and how.
type Config struct {
	Endpoint Endpoint
	Model    string
	Form     RequestForm
	// Name is the prefix of each x-request-id, before the index; "" is "bench".
	Name string
	// Vocabulary is the vocabulary of generated prompts.
	Vocabulary replay.Vocabulary
	// Pictures sends the workload's images as images, generated from their ids and Vocabulary's seed, before
	// the text of a chat request. Otherwise they are tokens or words like the rest.
	Pictures bool
	// Extra is an object whose members are added to every body; the extra members of a request take
	// precedence.
	Extra json.RawMessage
	// MaxTokens replaces the workload's output lengths; 0 keeps them.
	MaxTokens int
	// Concurrency, if not 0, is a closed loop: this many requests are in flight, and the next is sent when
	// one finishes, whatever times the workload has. At 0 requests are sent at their times.
	Concurrency int
	// MaxConnections bounds the connections of an open loop. A request without one is late. 0 is 4096.
	MaxConnections int
	// Timeout bounds the time of a request to its last token; 0 is ten minutes.
	Timeout time.Duration
	// Duration is the time after which no more requests are sent; 0 is the end of the workload.
	Duration time.Duration
	// Ahead is how many bodies are built before they are due, 64 MiB at most; 0 is 256, or Concurrency if
	// that is more.
	Ahead int
	// Grace is the time for running requests after the context ends; 0 is two seconds.
	Grace time.Duration
}

// Summary describes a run in addition to its samples.
type Summary struct {
	// Start is the time from which samples count.
	Start time.Time
	// Answers counts complete responses. NoUsage of them lacked the token count, NoCached the cached count;
	// Short had fewer tokens than the workload.
	Answers, NoUsage, NoCached, Short int
	// Together counts the tokens which shared an event with another.
	Together int64
	// Resent counts requests which were sent again, since the server had closed the idle connection.
	Resent int
	// Interrupted reports that the context ended the run; the Abandoned requests were then in flight and have
	// no sample.
	Interrupted bool
	Abandoned   int
}

// maxConnections exceeds a client's ports towards one server; the buffers of this many connections take 2 GB.
const maxConnections = 1 << 16

var (
	errConcurrency = errors.New("load: concurrency, connections, duration and bodies ahead must not be negative")
	errTooMany     = fmt.Errorf("load: concurrency, connections and bodies ahead must be at most %d", maxConnections)
	errModel       = errors.New("load: no model")
	errName        = errors.New("load: the name is none that an id can begin with")
)

func (c *Config) applyDefaults() error {
	if c.Concurrency < 0 || c.MaxConnections < 0 || c.Duration < 0 || c.Ahead < 0 || c.MaxTokens < 0 || c.Timeout < 0 || c.Grace < 0 {
		return errConcurrency
	}
	if max(c.Concurrency, c.MaxConnections, c.Ahead) > maxConnections {
		return errTooMany
	}
	if c.Model == "" {
		return errModel
	}
	if !validValue([]byte(c.Name)) {
		return errName
	}
	if _, err := c.extraMembers(); err != nil {
		return err
	}
	setDefault(&c.Name, "bench")
	setDefault(&c.MaxConnections, 4096)
	setDefault(&c.Ahead, max(256, c.Concurrency))
	setDefault(&c.Timeout, 10*time.Minute)
	setDefault(&c.Grace, 2*time.Second)
	return nil
}

// extraMembers returns the members of Extra.
func (c *Config) extraMembers() (members map[string]json.RawMessage, err error) {
	if len(c.Extra) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(c.Extra, &members); err != nil {
		return nil, fmt.Errorf("load: extra members of bodies: %w", err)
	}
	return members, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Run sends the requests of source and passes each finished one to record, in the order in which they finish
// except for nearly simultaneous ones. It returns when all have finished. If ctx ends, it sends no more,
// running requests have a short time to finish, and the summary says so. The error is that of an unusable
// workload or endpoint; measurements before it are valid.
func Run(ctx context.Context, cfg Config, source replay.Source, record Recorder) (Summary, error) {
	if err := cfg.applyDefaults(); err != nil {
		return Summary{}, err
	}
	p, err := cfg.Endpoint.resolveTarget()
	if err != nil {
		return Summary{}, err
	}
	r := newLoadRun(cfg, p, newRunClock())
	return r.execute(ctx, source, record)
}

const (
	// coarseTimer is how long before a deadline runtime timers are no longer used: they have a resolution of
	// a millisecond where the process is idle.
	coarseTimer = 2 * time.Millisecond
	// maxNap is the longest sleep before checking for other jobs.
	maxNap = 200 * time.Microsecond
	// spinTime is how long before a deadline the clock is polled without sleeping: about the time which the
	// system needs to wake a thread.
	spinTime = 20 * time.Microsecond
)

// runClock is the clock of a run and waits precisely for near deadlines.
type runClock struct {
	start time.Time
	spin  time.Duration
	sleep func(time.Duration)
	// prepare makes the calling goroutine's sleeps precise. The goroutine then exits with its thread.
	prepare func()
}

func newRunClock() *runClock {
	return &runClock{spin: spinTime, sleep: sleepPrecisely, prepare: sharpenSleep}
}

func (c *runClock) elapsed() time.Duration { return time.Since(c.start) }

// sleepTowards sleeps towards due, at most for maxNap, and reports whether it is reached.
func (c *runClock) sleepTowards(due time.Duration) bool {
	left := due - c.elapsed()
	if left > c.spin {
		c.sleep(min(left-c.spin, maxNap))
		left = due - c.elapsed()
	}
	if left > c.spin {
		return false
	}
	for left > 0 {
		left = due - c.elapsed()
	}
	return true
}
