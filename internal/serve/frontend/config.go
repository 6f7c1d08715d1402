package frontend

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Config bounds what a frontend does for its clients. Zero fields take the defaults of EnsureDefaults.
type Config struct {
	// MaxBodyBytes bounds a request's body; beyond it the answer is 413 and the rest is not read.
	// Default 32 MiB.
	MaxBodyBytes int64
	// BodyMemory bounds the memory of all bodies being read and decoded at once; beyond it the answer
	// is 503. As much again bounds the prompts being made, which wait for each other. Default 512 MiB,
	// and at least 4 * MaxBodyBytes, which is room for two of the largest bodies.
	BodyMemory int64
	// MaxInflight bounds the generation requests being served; beyond it the answer is 503 at once.
	// Default 4096.
	MaxInflight int
	// MigrationLimit is how many workers may fail under a request beyond the first. Workers which drain
	// do not count. Default 3; with 0 the request fails with its worker.
	MigrationLimit *int
	// MigrationWait is how long a request that lost its worker waits for another while there is none.
	// Default 10 s; 0 does not wait.
	MigrationWait *time.Duration
	// StallTimeout is how long a worker may send nothing before the request moves to another. It covers
	// queueing in the engine and prefill. Default 5 minutes.
	StallTimeout time.Duration
	// Preprocess says where prompts of texts and conversations are made. Default PreprocessLocal.
	Preprocess Preprocess
	// PreprocessTimeout is how long a worker may take to make a prompt before another is asked. Default
	// 30 s.
	PreprocessTimeout time.Duration
	// PromptWait bounds the wait for the tokens and media of a passthrough request's prompt. Only the
	// choice of a worker needs them: without them the worker is chosen by load. Default 2 s.
	PromptWait time.Duration
	// IgnoresCaches says that the router's mode does not look at caches: what only its choice needs is
	// not computed, unless a request asks for another mode.
	IgnoresCaches bool
	// RequestTimeout bounds a whole request; 0 is no bound.
	RequestTimeout time.Duration
	// HeaderTimeout and BodyTimeout bound how long a client may take to send its headers (default 10 s)
	// and its body (default 60 s).
	HeaderTimeout time.Duration
	BodyTimeout   time.Duration
	// WriteTimeout bounds each write: a client that reads nothing for this long counts as disconnected.
	// Default 60 s.
	WriteTimeout time.Duration
	// KeepAlive is how long a stream may be silent before a keep-alive comment. Default 15 s.
	KeepAlive time.Duration
	// IdleTimeout closes connections without requests. Default 120 s.
	IdleTimeout time.Duration
	// MaxHeaderBytes bounds a request's headers. Default 64 KiB.
	MaxHeaderBytes int
	// MaxStreams bounds the concurrent requests on one HTTP/2 connection. Default 250.
	MaxStreams int
	// OpenMetrics allows everyone to read /metrics while keys are in force; otherwise it needs an admin
	// key.
	OpenMetrics bool
	// DrainGrace is how long a frontend that is told to stop continues to serve, except that its health
	// reports draining and each answer closes its connection, so that load balancers and clients find
	// another frontend. Default none.
	DrainGrace time.Duration
	// DrainTimeout is how long requests may continue after that, while new ones are refused, before
	// they are cut off. Default 30 s.
	DrainTimeout time.Duration
}

// Preprocess says where prompts of texts and conversations are made.
type Preprocess string

// The values of Preprocess.
const (
	// PreprocessLocal makes prompts in this process: it tokenizes and runs chat templates.
	PreprocessLocal Preprocess = "local"
	// PreprocessEngine lets the model's engines make prompts, for models whose tokenizer or template is
	// refused here. Detokenizing always happens here: if a model's tokenizer cannot be opened,
	// completions are refused, and only requests which need no text from tokens are served (embeddings,
	// /tokenize, the router's questions).
	PreprocessEngine Preprocess = "engine"
)

// EnsureDefaults fills in what is not set.
func (c *Config) EnsureDefaults() {
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 32<<20)
	c.BodyMemory = cmp.Or(c.BodyMemory, max(512<<20, 4*c.MaxBodyBytes))
	c.MaxInflight = cmp.Or(c.MaxInflight, 4096)
	c.MigrationLimit = cmp.Or(c.MigrationLimit, new(3))
	c.MigrationWait = cmp.Or(c.MigrationWait, new(10*time.Second))
	c.StallTimeout = cmp.Or(c.StallTimeout, 5*time.Minute)
	c.Preprocess = cmp.Or(c.Preprocess, PreprocessLocal)
	c.PreprocessTimeout = cmp.Or(c.PreprocessTimeout, 30*time.Second)
	c.PromptWait = cmp.Or(c.PromptWait, 2*time.Second)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 10*time.Second)
	c.BodyTimeout = cmp.Or(c.BodyTimeout, time.Minute)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, time.Minute)
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, 64<<10)
	c.MaxStreams = cmp.Or(c.MaxStreams, 250)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
}

// Validate reports every invalid field.
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
		{"PromptWait", int64(c.PromptWait)},
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

// http2Config bounds one HTTP/2 connection, which TLS clients choose. A silent connection is pinged:
// otherwise its streams would hold a connection whose client disappeared.
func (f *Frontend) http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: f.cfg.MaxStreams,
		SendPingTimeout:      30 * time.Second,
		PingTimeout:          15 * time.Second,
		WriteByteTimeout:     f.cfg.WriteTimeout,
	}
}
