package rpc

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"time"

	"penstock/core/fault"
)

// NATSPlaneConfig configures a request plane over NATS.
type NATSPlaneConfig struct {
	// Prefix is the prefix of the subjects that servers choose: words of letters, digits, '-' and
	// '_', joined by dots. Empty means "penstock".
	Prefix string
	// Bucket is the object store for bodies that do not fit a message: letters, digits, '-' and
	// '_'. All processes use the same bucket. Empty means "penstock_rpc".
	Bucket string
	// MaxStore bounds a bucket that this plane creates, in bytes. While the bucket is full, calls
	// that need it are Overloaded. 0 means 1 GiB.
	MaxStore int64
	// Replicas is the replica count of a bucket that this plane creates, for a cluster of servers.
	// 0 means 1.
	Replicas int
	// KeepAlive is how long the other end of a call may be silent before it is considered dead. 0
	// means 10 s: on a busy machine keepalives queue after the answers of thousands of calls.
	KeepAlive time.Duration
	// MaxCalls bounds a server's calls in progress; a further call is Overloaded. 0 means 16384.
	MaxCalls int
	// MaxBodies bounds the bodies that a server holds at once, in bytes; a call beyond it is
	// Overloaded. 0 means 512 MiB.
	MaxBodies int64
	// Log receives the details of handler errors which callers do not get. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *NATSPlaneConfig) EnsureDefaults() {
	c.Prefix = cmp.Or(c.Prefix, "penstock")
	c.Bucket = cmp.Or(c.Bucket, "penstock_rpc")
	c.MaxStore = cmp.Or(c.MaxStore, 1<<30)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.KeepAlive = cmp.Or(c.KeepAlive, defaultKeepAlive)
	c.MaxCalls = cmp.Or(c.MaxCalls, defaultMaxCalls)
	c.MaxBodies = cmp.Or(c.MaxBodies, defaultMaxBodies)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *NATSPlaneConfig) Validate() error {
	var errs []error
	if !isValidSubject(c.Prefix) {
		errs = append(errs, fault.New(fault.Invalid, "rpc prefix %.100q: use words of letters, digits, '-' and '_' joined by dots", c.Prefix))
	}
	if !isValidSubject(c.Bucket) || strings.Contains(c.Bucket, ".") {
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

// isValidSubject reports whether s is a literal subject, without wildcards.
func isValidSubject(s string) bool {
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
