// Package load sends the requests of a workload to a server with the OpenAI API,
// each at its moment, and measures when the tokens of the answers arrive.
//
// It is built so that what it measures is the server. Bodies are made before they
// are due; one thread that sleeps in the kernel and watches the clock at the end
// starts each request; each request has a connection, and a goroutine that does
// nothing but read it, to itself; the moment of a token is that at which the read
// that brought it returned; nothing is allocated and no lock is taken between one
// token and the next. HTTP/1.1 is written and read by this package: net/http would
// hand each request through two more goroutines, and hide when bytes came. What the
// client is late by all the same is in the samples.
package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"penstock/internal/replay"
)

// Recorder takes what is measured. *replay.Recorder is one. It is called by one
// goroutine.
type Recorder interface {
	// Sample tells of a request that is over.
	Sample(s *replay.Sample)
	// Gap tells of the time between two tokens of the whole answer that the last Sample
	// was of, n times.
	Gap(between time.Duration, n int)
}

// TokenRecorder is a Recorder that wants the moments of an answer's tokens too.
type TokenRecorder interface {
	Recorder
	// Tokens is called after the Sample of a whole answer with the moments of its events
	// that had tokens. at is good during the call.
	Tokens(s *replay.Sample, at []time.Duration)
}

// Config says where requests go and how.
type Config struct {
	Endpoint Endpoint
	Model    string
	Form     Form
	// Name begins the x-request-id of each request, before its index; "" is "bench".
	Name string
	// Vocabulary is what made-up prompts consist of.
	Vocabulary replay.Vocabulary
	// Pictures sends the workload's images as pictures, made of their ids and of Vocabulary's seed,
	// in a chat request before the text. Without, they are tokens or words like all else.
	Pictures bool
	// Extra is an object whose members are put into every body; those of a request of
	// the workload are stronger.
	Extra json.RawMessage
	// MaxTokens takes the place of the workload's output lengths; 0 keeps them.
	MaxTokens int
	// Concurrency, if not 0, is a closed loop: so many requests are under way, and the
	// next is sent when one is over, whatever moments the workload has. At 0 requests are
	// sent at their moments.
	Concurrency int
	// MaxConnections bounds the connections of an open loop. A request that finds none
	// is late. 0 is 4096.
	MaxConnections int
	// Timeout is how long a request may take to its last token; 0 is ten minutes.
	Timeout time.Duration
	// Duration is after how long no more requests are sent; 0 is the end of the workload.
	Duration time.Duration
	// Ahead is how many bodies are made before they are due, 64 MiB at most; 0 is 256,
	// or Concurrency if that is more.
	Ahead int
	// Grace is how long running requests have once the context ended; 0 is two seconds.
	Grace time.Duration
}

// Summary is what a run was beside its samples.
type Summary struct {
	// Start is the moment from which samples count.
	Start time.Time
	// Answers are whole. Of them NoUsage came without the number of their tokens, and NoCached
	// without that of cached ones; Short had fewer tokens than the workload says.
	Answers, NoUsage, NoCached, Short int
	// Together counts the tokens that came in one event with another.
	Together int64
	// Resent counts requests that were sent a second time, since the server had closed
	// the connection that waited for them.
	Resent int
	// Interrupted says that the context ended the run; Abandoned requests were then under
	// way and are in no sample.
	Interrupted bool
	Abandoned   int
}

// maxConnections is more than a client has ports for towards one server, and what is
// kept for so many is 2 GB.
const maxConnections = 1 << 16

var (
	errConcurrency = errors.New("load: concurrency, connections, duration and bodies ahead must not be negative")
	errTooMany     = fmt.Errorf("load: concurrency, connections and bodies ahead must be at most %d", maxConnections)
	errModel       = errors.New("load: no model")
	errName        = errors.New("load: the name is none that an id can begin with")
)

func (c *Config) ensure() error {
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
	if _, err := c.extra(); err != nil {
		return err
	}
	setDefault(&c.Name, "bench")
	setDefault(&c.MaxConnections, 4096)
	setDefault(&c.Ahead, max(256, c.Concurrency))
	setDefault(&c.Timeout, 10*time.Minute)
	setDefault(&c.Grace, 2*time.Second)
	return nil
}

// extra returns the members of Extra.
func (c *Config) extra() (members map[string]json.RawMessage, err error) {
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

// Run sends the requests of source and tells record of each that is over, in the
// order in which they end but for moments very close to each other. It returns when
// all are over. If ctx ends, no more are sent, those under way have a short time,
// and the summary says so. The error is that of a workload or an endpoint that
// cannot be used; what was measured before it counts.
func Run(ctx context.Context, cfg Config, source replay.Source, record Recorder) (Summary, error) {
	if err := cfg.ensure(); err != nil {
		return Summary{}, err
	}
	p, err := cfg.Endpoint.peer()
	if err != nil {
		return Summary{}, err
	}
	r := newRun(cfg, p, newClock())
	return r.execute(ctx, source, record)
}
