package remote

import (
	"io"
	"net/url"

	"penstock/internal/engine"
)

// DialectRun is the result of a dialect for a request and events, without an engine.
type DialectRun struct {
	Path string
	Body string // of the first call
}

// RunDialect lets d build the call for req and handle events as its response, and passes the deltas to sink.
// It is for tests of dialects: no engine is called. Requests that take several calls get the events in the
// first.
func RunDialect(card engine.Card, how ChoiceMode, d Dialect, req *engine.Request, events [][]byte, sink func(*engine.Delta) error) (DialectRun, error) {
	client := NewClient(&Spec{URL: &url.URL{Scheme: "http", Host: "rehearsal"}})
	defer client.Close()
	b, err := New(Config{Card: card, Client: client, Dialect: d, Choices: how})
	if err != nil {
		return DialectRun{}, err
	}
	if err := b.checkSupported(req); err != nil {
		return DialectRun{}, err
	}
	a := newAttempt(b, req, sink)
	a.load = b.load.startRequest(a)
	defer b.load.finishRequest(a.load)
	parts := a.splitIntoParts(how.forRequest(req))
	if len(parts) == 0 {
		return DialectRun{}, a.finishAttempt()
	}
	p := parts[0]
	b.cache.startCall(p)
	call := &Call{Large: NewBody()}
	defer call.Large.Release()
	if err := d.BuildCall(p, call); err != nil {
		return DialectRun{}, err
	}
	done := DialectRun{Path: call.Path, Body: string(call.Large.B)}
	if err := a.sendAccepted(); err != nil {
		return done, err
	}
	for _, data := range events {
		if err := d.HandleEvent(p, data); err == io.EOF {
			break
		} else if err != nil {
			return done, err
		}
	}
	return done, a.finishAttempt()
}
