package main

import (
	"fmt"
	"strconv"
	"time"
)

// warmup is the start of a run which is left out of its figures: a number of requests, or those sent within a
// time. It implements pflag.Value.
type warmup struct {
	requests int
	window   time.Duration
}

// Set implements pflag.Value.
func (w *warmup) Set(s string) error {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 {
		*w = warmup{requests: n}
		return nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		*w = warmup{window: d}
		return nil
	}
	return fmt.Errorf("%q is neither a number of requests nor a time such as 10s", s)
}

// String implements pflag.Value.
func (w *warmup) String() string {
	if w.window > 0 {
		return w.window.String()
	}
	return strconv.Itoa(w.requests)
}

// Type implements pflag.Value.
func (*warmup) Type() string { return "requests|time" }
