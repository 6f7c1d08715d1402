package rpc

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"penstock/core/fault"
)

// NATSConfig configures a request plane over NATS.
type NATSConfig struct {
	// Prefix begins the subjects that servers choose. It is words of letters,
	// digits, '-' and '_' joined by dots. Empty is "penstock".
	Prefix string
	// Bucket is the object store for bodies that do not fit a message, of letters,
	// digits, '-' and '_'; everybody uses the same. Empty is "penstock_rpc".
	Bucket string
	// MaxStore bounds a bucket that this plane creates, in bytes; while it is full,
	// calls with such bodies are Overloaded. 0 is 1 GiB.
	MaxStore int64
	// Replicas is the number of copies of a bucket that this plane creates, for a
	// cluster of servers. 0 is 1.
	Replicas int
	// KeepAlive is after how much silence the other end of a call is dead. 0 is 10 s:
	// on a busy machine its signs of life wait behind the answers of thousands of calls.
	KeepAlive time.Duration
	// MaxCalls is how many calls a server has in progress at once; a further one
	// is Overloaded. 0 is 16384.
	MaxCalls int
	// MaxBodies is how many bytes of bodies a server holds at once; a further one
	// is Overloaded. 0 is 512 MiB.
	MaxBodies int64
	// Log gets what handlers keep from their callers. Nil discards it.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *NATSConfig) EnsureDefaults() {
	if c.Prefix == "" {
		c.Prefix = "penstock"
	}
	if c.Bucket == "" {
		c.Bucket = "penstock_rpc"
	}
	if c.MaxStore == 0 {
		c.MaxStore = 1 << 30
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = defaultKeepAlive
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = defaultMaxCalls
	}
	if c.MaxBodies == 0 {
		c.MaxBodies = defaultMaxBodies
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports everything that is wrong with c.
func (c *NATSConfig) Validate() error {
	var errs []error
	if !validSubject(c.Prefix) {
		errs = append(errs, fault.New(fault.Invalid, "rpc prefix %.100q: use words of letters, digits, '-' and '_' joined by dots", c.Prefix))
	}
	if !validSubject(c.Bucket) || strings.Contains(c.Bucket, ".") {
		errs = append(errs, fault.New(fault.Invalid, "rpc bucket %.100q: use letters, digits, '-' and '_'", c.Bucket))
	}
	if c.MaxStore < 2*MaxBody {
		errs = append(errs, fault.New(fault.Invalid, "rpc bucket of %d bytes: use at least %d, two of the largest bodies", c.MaxStore, 2*MaxBody))
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, fault.New(fault.Invalid, "rpc replicas: have %d, JetStream allows 1 to 5", c.Replicas))
	}
	if c.KeepAlive < silentBeats*time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "rpc keep-alive: have %v, use at least %v", c.KeepAlive, silentBeats*time.Millisecond))
	}
	return errors.Join(append(errs, validateLimits(c.MaxCalls, c.MaxBodies))...)
}

// maxSubject bounds the subject of a server, in bytes.
const maxSubject = 256

// validSubject reports whether s is one subject, not a pattern for several.
func validSubject(s string) bool {
	if len(s) > maxSubject {
		return false
	}
	for word := range strings.SplitSeq(s, ".") {
		if word == "" {
			return false
		}
		for _, c := range []byte(word) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}
