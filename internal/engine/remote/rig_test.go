package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/strictjson"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// plain is a test dialect: the prompt is sent as a list, and an event is
// {"i":choice,"t":[tokens],"f":"stop"|"length","c":cached} or {"error":…}.
type plain struct{}

func (plain) BuildCall(p *SubRequest, call *Call) error {
	call.Path = "/tokens"
	prompt, generated := p.PromptTokens()
	call.Large.B = strictjson.AppendTokens(call.Large.B, prompt, generated)
	return nil
}

func (plain) HandleEvent(p *SubRequest, data []byte) error {
	if string(data) == "[DONE]" {
		return io.EOF
	}
	c := strictjson.NewCursor(data)
	finish, index, cached := engine.NotFinished, 0, -1
	p.Tokens = p.Tokens[:0]
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "i":
			index = int(c.ReadInt())
		case "t":
			p.Tokens = c.ReadTokens(p.Tokens)
		case "f":
			finish = map[string]engine.Finish{"stop": engine.FinishStop, "length": engine.FinishLength}[c.ReadString()]
		case "c":
			cached = int(c.ReadInt())
		case "error":
			return StreamError(data)
		}
	}
	if c.End() != nil {
		return engine.ContractError("what is no event", c.Err())
	}
	if err := p.DeliverTokens(index, p.Tokens, nil, finish); err != nil || cached < 0 {
		return err
	}
	return p.ReportCached(cached)
}

func testCard() engine.Card {
	return engine.Card{
		Name: "m", Engine: "test", Numerics: "test", BlockSize: 4, Blocks: 100, Ranks: 1, ContextLength: 100, VocabSize: 50,
		EOS: []kv.Token{49}, Tokenizer: engine.TokenizerRef{Kind: "builtin"},
	}
}

// serve runs a server until the test ends.
func serve(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func clientOf(t testing.TB, at string) *Client {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(&Spec{URL: u, APIKey: "secret"})
	c.pool.idleTimeout, c.drainTimeout = time.Hour, time.Minute // a busy machine loses no connection
	t.Cleanup(c.Close)
	return c
}

// base returns a running engine that speaks plain with a server.
func base(t testing.TB, at string, change func(*Config), set ...func(*Base)) *Base {
	t.Helper()
	cfg := Config{Spec: Spec{SaltWait: time.Minute}, Card: testCard(), Client: clientOf(t, at), Dialect: plain{}, Choices: SingleCall}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range set {
		f(b)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return b
}

func testRequest(n int) *engine.Request {
	return &engine.Request{
		ID: "r", Attempt: 1, Model: "m", Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3, 4, 5, 6, 7, 8, 9},
		Stop: engine.Stop{MaxTokens: n, Tokens: []kv.Token{40}},
	}
}

// events writes a stream of server-sent events.
func events(w http.ResponseWriter, data ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, d := range data {
		fmt.Fprintf(w, "data: %s\n\n", d)
	}
	w.(http.Flusher).Flush()
}

// deltas serves req and returns the output, one text for each choice: engines may merge deltas that are
// available together.
func deltas(b *Base, req *engine.Request) (got []string, err error) {
	type choice struct {
		from, cached int
		tokens       []kv.Token
		finish       engine.Finish
	}
	choices := map[int]*choice{}
	err = b.Generate(context.Background(), req, func(d *engine.Delta) error {
		if d.Accepted {
			got = append(got, "accepted")
			return nil
		}
		c := choices[d.Choice]
		if c == nil {
			c = &choice{from: d.Pos, cached: d.Cached}
			choices[d.Choice] = c
		} else if d.Finish != engine.NotFinished && c.cached < 0 {
			c.cached = d.Cached
		}
		if d.Pos != c.from+len(c.tokens) {
			return fmt.Errorf("position %d after %d tokens from %d", d.Pos, len(c.tokens), c.from)
		}
		c.tokens, c.finish = append(c.tokens, d.Tokens...), d.Finish
		return nil
	})
	for i := range req.Choices {
		if c := choices[i]; c != nil {
			got = append(got, fmt.Sprintf("%d@%d%v cached %d finish %d", i, c.from, c.tokens, c.cached, c.finish))
		}
	}
	return got, err
}

func wantFault(t *testing.T, what string, err error, code fault.Code, says string) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v (%v), want %v with %q", what, err, fault.CodeOf(err), code, says)
	}
}
