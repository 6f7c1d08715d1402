package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

// all returns the codes; PoolLost is the last one.
func all() (codes []Code) {
	for c := Internal; c <= PoolLost; c++ {
		codes = append(codes, c)
	}
	return codes
}

func TestEveryCodeHasARow(t *testing.T) {
	if len(classes) != len(all()) {
		t.Fatalf("the table has %d rows, there are %d codes", len(classes), len(all()))
	}
	names := map[string]Code{}
	for _, c := range all() {
		row := c.Class()
		if row.Name == "" || row.Type == "" || row.Status < 400 || row.Status > 599 {
			t.Errorf("code %d: row is %+v", c, row)
		}
		if other, taken := names[row.Name]; taken {
			t.Errorf("codes %d and %d are both called %q", c, other, row.Name)
		}
		names[row.Name] = c
		if c.String() != row.Name {
			t.Errorf("code %d prints as %q, is called %q", c, c, row.Name)
		}
		// The status also tells whether a client may try again.
		if retry := map[int]bool{429: true, 503: true, 504: true}[row.Status]; retry != row.Retryable {
			t.Errorf("%v: status %d, retryable %v", c, row.Status, row.Retryable)
		}
	}
	if got := Code(200).Class(); got != Internal.Class() {
		t.Errorf("an unknown code reads as %+v", got)
	}
}

// TestNumbers: codes are part of the wire format, so none ever changes its number.
func TestNumbers(t *testing.T) {
	for i, name := range []string{
		"internal_error", "invalid_request", "not_found", "request_too_large", "rate_limit_exceeded", "overloaded",
		"unavailable", "conflict", "client_closed_request", "deadline_exceeded", "unauthorized", "not_implemented",
		"draining", "forbidden", "no_eligible_worker", "engine_error",
		"media_failed", "transfer_failed", "pool_lost",
	} {
		if got := Code(i).String(); got != name {
			t.Errorf("code %d is %q, want %q", i, got, name)
		}
	}
}

func TestErrorThroughWrapping(t *testing.T) {
	inner := New(Unavailable, "worker %d is gone: %w", 7, io.ErrUnexpectedEOF)
	inner.RetryAfter = time.Second
	err := fmt.Errorf("rpc call: %w", fmt.Errorf("attempt 2: %w", inner))

	var e *Error
	if !errors.As(err, &e) || e != inner {
		t.Fatalf("errors.As finds %v in %v", e, err)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("the cause is lost")
	}
	if got := CodeOf(err); got != Unavailable {
		t.Errorf("the code is %v, want %v", got, Unavailable)
	}
	if got, want := inner.Error(), "worker 7 is gone: unexpected EOF"; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
	if joined := errors.Join(io.EOF, err); CodeOf(joined) != Unavailable {
		t.Errorf("the code is %v in joined errors, want %v", CodeOf(joined), Unavailable)
	}
	if got := CodeOf(io.EOF); got != Internal {
		t.Errorf("an error of others has code %v, want %v", got, Internal)
	}
	if got := CodeOf(nil); got != Internal {
		t.Errorf("no error has code %v, want %v", got, Internal)
	}
}

func TestParam(t *testing.T) {
	e := InvalidParam("messages[2].content", "has %d parts: send one", 0)
	if e.Code != Invalid || e.Param != "messages[2].content" || e.Message != "has 0 parts: send one" || e.Err != nil {
		t.Errorf("Param gives %+v", e)
	}
}
