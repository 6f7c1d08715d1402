package frontend

import (
	"errors"
	"fmt"
	"time"

	"penstock/internal/plane/disco"
)

// Config bounds what a frontend does for its clients. Zero fields take the
// defaults of EnsureDefaults.
type Config struct {
	// Namespace and Component are those of the instances to send to; "" takes
	// those of all.
	Namespace, Component string
	// MaxBodyBytes bounds a request's body; beyond it the answer is 413 and the
	// rest is not read. Default 32 MiB.
	MaxBodyBytes int64
	// BodyMemory bounds the memory of all bodies being read and decoded at once;
	// beyond it the answer is 503. As much again bounds the prompts being made,
	// which wait for each other. Default 512 MiB, and at least two of the largest
	// bodies.
	BodyMemory int64
	// MaxInflight bounds the generation requests being served; beyond it the
	// answer is 503 at once. Default 4096.
	MaxInflight int
	// MigrationLimit is how many workers may fail under a request beyond the first.
	// Those that leave as planned do not count. Default 3; negative is none: the
	// request then fails with its worker.
	MigrationLimit int
	// MigrationWait is how long a request that lost its worker waits for another
	// while there is none. Default 10 s; negative is not at all.
	MigrationWait time.Duration
	// StallTimeout is how long a worker may send nothing before it is given up
	// for another. It covers waiting in the engine's queue and prefill. Default
	// 5 minutes.
	StallTimeout time.Duration
	// Preprocess says who makes prompts of texts and conversations. Default
	// PreprocessLocal.
	Preprocess Preprocess
	// PreprocessTimeout is how long a worker may take to make a prompt before
	// another is asked. Default 30 s.
	PreprocessTimeout time.Duration
	// IgnoresCaches says that the router's mode asks no cache: what only its choice would need is not
	// found out, unless a request asks for another mode.
	IgnoresCaches bool
	// RequestTimeout bounds a whole request; 0 is no bound.
	RequestTimeout time.Duration
	// HeaderTimeout and BodyTimeout bound how long a client may take to send its
	// headers (default 10 s) and its body (default 60 s).
	HeaderTimeout time.Duration
	BodyTimeout   time.Duration
	// WriteTimeout bounds each write: a client that takes nothing for so long is
	// gone. Default 60 s.
	WriteTimeout time.Duration
	// KeepAlive is how long a stream may be silent before a comment says that it
	// lives. Default 15 s.
	KeepAlive time.Duration
	// IdleTimeout closes connections without requests. Default 120 s.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a request's headers. Default 64 KiB.
	MaxHeaderBytes int
	// MaxStreams bounds the requests at once on one connection of HTTP/2. Default 250.
	MaxStreams int
	// OpenMetrics lets everybody read /metrics while keys are in force, which
	// otherwise takes a key for administrators.
	OpenMetrics bool
	// DrainGrace is how long a frontend that is told to stop goes on as before, but
	// for its health and for closing each connection with an answer, so that load
	// balancers and clients find another. Default none.
	DrainGrace time.Duration
	// DrainTimeout is how long requests may go on after that, while no new ones are
	// taken, before they are cut off. Default 30 s.
	DrainTimeout time.Duration
}

// Preprocess says who makes prompts of texts and conversations.
type Preprocess string

// The makers of prompts.
const (
	// PreprocessLocal has this process tokenize and run chat templates.
	PreprocessLocal Preprocess = "local"
	// PreprocessEngine has the model's engines do it, for models whose tokenizer or
	// template is refused here. Tokens become text here in any case: where a model's
	// tokenizer cannot be opened at all, completions are refused, and only what
	// needs no text of tokens is served (embeddings, /tokenize, the router's
	// questions).
	PreprocessEngine Preprocess = "engine"
)

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	setDefault(&c.MaxBodyBytes, 32<<20)
	setDefault(&c.BodyMemory, max(512<<20, 4*c.MaxBodyBytes))
	setDefault(&c.MaxInflight, 4096)
	setDefault(&c.MigrationLimit, 3)
	setDefault(&c.MigrationWait, 10*time.Second)
	setDefault(&c.StallTimeout, 5*time.Minute)
	setDefault(&c.Preprocess, PreprocessLocal)
	setDefault(&c.PreprocessTimeout, 30*time.Second)
	setDefault(&c.HeaderTimeout, 10*time.Second)
	setDefault(&c.BodyTimeout, time.Minute)
	setDefault(&c.WriteTimeout, time.Minute)
	setDefault(&c.KeepAlive, 15*time.Second)
	setDefault(&c.IdleTimeout, 2*time.Minute)
	setDefault(&c.MaxHeaderBytes, 64<<10)
	setDefault(&c.MaxStreams, 250)
	setDefault(&c.DrainTimeout, 30*time.Second)
}

// takes reports whether requests may go to an instance.
func (c *Config) takes(in *disco.Instance) bool {
	return (c.Namespace == "" || in.Namespace == c.Namespace) && (c.Component == "" || in.Component == c.Component)
}

func setDefault[T comparable](field *T, v T) {
	var zero T
	if *field == zero {
		*field = v
	}
}

// Validate reports every field that cannot be.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range [...]struct {
		name string
		v    int64
	}{
		{"MaxBodyBytes", c.MaxBodyBytes},
		{"BodyMemory", c.BodyMemory},
		{"MaxInflight", int64(c.MaxInflight)},
		{"StallTimeout", int64(c.StallTimeout)},
		{"PreprocessTimeout", int64(c.PreprocessTimeout)},
		{"HeaderTimeout", int64(c.HeaderTimeout)},
		{"BodyTimeout", int64(c.BodyTimeout)},
		{"WriteTimeout", int64(c.WriteTimeout)},
		{"KeepAlive", int64(c.KeepAlive)},
		{"IdleTimeout", int64(c.IdleTimeout)},
		{"MaxHeaderBytes", int64(c.MaxHeaderBytes)},
		{"MaxStreams", int64(c.MaxStreams)},
		{"DrainTimeout", int64(c.DrainTimeout)},
	} {
		if f.v <= 0 {
			errs = append(errs, fmt.Errorf("frontend config: %s must be positive, not %d", f.name, f.v))
		}
	}
	if c.Preprocess != PreprocessLocal && c.Preprocess != PreprocessEngine {
		errs = append(errs, fmt.Errorf("frontend config: Preprocess must be %s or %s, not %.100q", PreprocessLocal, PreprocessEngine, c.Preprocess))
	}
	if c.DrainGrace < 0 {
		errs = append(errs, fmt.Errorf("frontend config: DrainGrace must not be negative, but is %v", c.DrainGrace))
	}
	if c.RequestTimeout < 0 {
		errs = append(errs, fmt.Errorf("frontend config: RequestTimeout must not be negative, but is %v", c.RequestTimeout))
	}
	return errors.Join(errs...)
}
