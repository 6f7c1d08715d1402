package remote

import (
	"io"
	"net/url"

	"penstock/internal/engine"
)

// DialectRun is the result of a dialect for a request and events, without an engine.
type Rehearsal struct {
	Path string
	Body string // of the first call
}

// RunDialect lets d build the call for req and handle events as its response, and passes the deltas to sink.
// It is for tests of dialects: no engine is called. Requests that take several calls get the events in the
// first.
func Rehearse(card engine.Card, how Choices, d Dialect, req *engine.Request, events [][]byte, sink func(*engine.Delta) error) (Rehearsal, error) {
	client := NewClient(&Spec{URL: &url.URL{Scheme: "http", Host: "rehearsal"}})
	defer client.Close()
	b, err := New(Config{Card: card, Client: client, Dialect: d, Choices: how})
	if err != nil {
		return Rehearsal{}, err
	}
	if err := b.refuse(req); err != nil {
		return Rehearsal{}, err
	}
	a := newAttempt(b, req, sink)
	a.flight = b.load.begin(a)
	defer b.load.end(a.flight)
	parts := a.parts(how.of(req))
	if len(parts) == 0 {
		return Rehearsal{}, a.end()
	}
	p := parts[0]
	b.cache.begin(p)
	call := &Call{Large: NewBody()}
	defer call.Large.Release()
	if err := d.Call(p, call); err != nil {
		return Rehearsal{}, err
	}
	done := Rehearsal{Path: call.Path, Body: string(call.Large.B)}
	if err := a.accept(); err != nil {
		return done, err
	}
	for _, data := range events {
		if err := d.Event(p, data); err == io.EOF {
			break
		} else if err != nil {
			return done, err
		}
	}
	return done, a.end()
}
