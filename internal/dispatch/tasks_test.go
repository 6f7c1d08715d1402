package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
)

// fleet is a router and a plane over scripted workers. The router chooses the first worker that is not
// excluded, and logs what it is told.
type fleet struct {
	workers []*catalog.Worker
	// answer is a worker's answer to one attempt.
	answer func(addr string, body []byte, recv func(frame []byte) error) error
	log    []string
	held   int
}

func (f *fleet) model() *catalog.Model       { return &catalog.Model{Workers: f.workers} }
func (f *fleet) Superseded() <-chan struct{} { return nil }

func (f *fleet) WorkerEpoch(kv.WorkerID) (uint64, bool) { return 1, true }

func (f *fleet) note(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) }

func (f *fleet) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	for _, w := range f.workers {
		if !slices.Contains(req.Exclude, w.ID) {
			f.held++
			return route.Decision{Worker: kv.Worker{ID: w.ID}, Addr: w.Addr, BlockSize: 2}, nil
		}
	}
	return route.Decision{}, errNoWorker
}

func (f *fleet) RecordFirstToken(id string, attempt uint32, cached int) {
	f.note("%s/%d first %d", id, attempt, cached)
}

func (f *fleet) MarkPrefilled(id string, attempt uint32, cached int) {
	f.note("%s/%d prefilled %d", id, attempt, cached)
}

func (f *fleet) RecordOutput(id string, attempt uint32, tokens int) {
	f.note("%s/%d output %d", id, attempt, tokens)
}

func (f *fleet) RenewReservation(string, uint32) {}

func (f *fleet) FreeReservation(id string, attempt uint32, answer int) {
	f.held--
	f.note("%s/%d freed %d", id, attempt, answer)
}

func (f *fleet) ReportFailure(w kv.Worker, err error) {
	f.note("failed %d %v", w.ID, fault.CodeOf(err))
}

func (f *fleet) Call(_ context.Context, addr, _ string, body []byte, recv func(frame []byte) error) error {
	return f.answer(addr, body, recv)
}

// newFleet returns a fleet of workers w1, w2 and so on, each with the card of change, and its dispatcher.
func newFleet(n int, change func(id kv.WorkerID, c *engine.Card)) (*fleet, *Dispatcher) {
	f := &fleet{}
	for id := kv.WorkerID(1); id <= kv.WorkerID(n); id++ {
		card := &engine.Card{PassthroughPaths: []string{"/p"}, Embeddings: true, Preprocess: true}
		if change != nil {
			change(id, card)
		}
		f.workers = append(f.workers, &catalog.Worker{Instance: disco.Instance{ID: id, Addr: fmt.Sprint("w", uint64(id))}, Card: card})
	}
	return f, &Dispatcher{
		Limits: migrate.Config{MaxFailures: 2}, Router: f, Plane: f, StallTimeout: time.Minute, PreprocessTimeout: time.Minute,
		View: func() WorkerView { return f }, Place: " over there", ContextError: func(ctx context.Context) error { return ctx.Err() },
		Moves:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "moves"}, []string{"kind"}),
		Waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "waiting"}),
		Log:     obs.NewThrottle(slog.New(slog.DiscardHandler), time.Second),
	}
}

// sink takes the tokens of a generation, and ends a choice at token 99.
type sink struct {
	g    *Generation
	got  []kv.Token
	log  []string
	fail error // of the next output
}

func (s *sink) HandleAttempt(event AttemptEvent) error {
	s.log = append(s.log, fmt.Sprintf("%d:%d", s.g.Request.Attempt, event))
	if s.g.IsInexact() {
		s.log = append(s.log, "inexact")
	}
	return nil
}

func (s *sink) HandleOutput(d *engine.Delta) (done bool, err error) {
	if i := slices.Index(d.Tokens, 99); i >= 0 {
		d.Tokens, done = d.Tokens[:i+1], true
	}
	s.got = append(s.got, d.Tokens...)
	return done || d.Finish != engine.NotFinished, s.fail
}

// TestGeneration: what reaches the sink and the router of a prompt of three tokens and at most six of answer.
func TestGeneration(t *testing.T) {
	const noLogprobs = -1
	delta := func(pos int, finish engine.Finish, tokens ...kv.Token) engine.Delta {
		return engine.Delta{Pos: pos, Tokens: tokens, Finish: finish, Cached: 2}
	}
	gone := fault.New(fault.Unavailable, "gone")
	for _, tt := range []struct {
		name     string
		one, two []engine.Delta // of two workers, the first of which then fails with ends
		ends     error
		fail     error // of the sink
		got      string
		router   string
		sink     string
		err      string
	}{
		{
			"whole",
			[]engine.Delta{delta(0, 0, 1, 2), delta(2, engine.FinishStop, 3)},
			nil, nil, nil,
			"[1 2 3]", "r/1 first 2; r/1 output 2; r/1 freed 3", "1:0 1:1 1:2", "<nil>",
		},
		{
			"moves",
			[]engine.Delta{delta(0, 0, 1)},
			[]engine.Delta{delta(0, 0, 1, 2), delta(2, engine.FinishLength, 3)},
			gone, nil,
			"[1 2 3]", "r/1 first 2; r/1 freed 0; failed 1 unavailable; r/2 first 2; r/2 output 2; r/2 freed 2", "1:0 1:1 1:2 2:0 inexact 2:1 inexact 2:2 inexact", "<nil>",
		},
		{
			"ends by the sink",
			[]engine.Delta{delta(0, 0, 1, 99, 3), delta(3, 0, 4)},
			nil, nil, nil,
			"[1 99]", "r/1 first 2; r/1 output 3; r/1 freed 3", "1:0 1:1 1:2", "<nil>",
		},
		{
			"the sink fails",
			[]engine.Delta{delta(0, 0, 1)},
			nil, nil, fault.New(fault.Unavailable, "no room"),
			"[1]", "r/1 first 2; r/1 freed 0", "1:0 1:1 1:2", "no room",
		},
		{
			"drains", nil, nil, fault.New(fault.Draining, "leaving"), nil,
			"[]", "r/1 freed 0; failed 1 draining; r/2 freed 0; failed 2 unavailable", "1:0 2:0", "no worker over there could finish the request (2 tried): send it again",
		},
		{
			"another choice",
			[]engine.Delta{{Choice: 2, Tokens: []kv.Token{1}}},
			nil, nil, nil,
			"[]", "r/1 freed 0", "1:0 1:1", "the worker sent tokens of a choice that there is not, or no longer: this is a defect of the server",
		},
		{
			"after the end of one of two",
			[]engine.Delta{delta(0, engine.FinishStop, 1), delta(1, 0, 2)},
			nil, nil, nil,
			"[1]", "r/1 first 2; r/1 freed 0", "1:0 1:1 1:2", "the worker sent tokens of a choice that there is not, or no longer: this is a defect of the server",
		},
		{
			"more than asked for",
			[]engine.Delta{delta(0, 0, 1, 2, 3, 4, 5, 6, 7)},
			nil, nil, nil,
			"[]", "r/1 first 2; r/1 freed 0", "1:0 1:1 1:2", "the worker sent more tokens than were asked for: this is a defect of the server",
		},
		{
			"more cached than there is",
			[]engine.Delta{{Tokens: []kv.Token{1}, Cached: 4}},
			nil, nil, nil,
			"[]", "r/1 freed 0", "1:0 1:1", "the worker sent a number of cached tokens that cannot be: this is a defect of the server",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, d := newFleet(2, func(id kv.WorkerID, c *engine.Card) { c.Numerics = fmt.Sprint("n", uint64(id)) })
			f.answer = func(addr string, body []byte, recv func(frame []byte) error) error {
				var req engine.Request
				if err := engine.DecodeRequest(body, &req); err != nil {
					return err
				}
				deltas, end := tt.one, tt.ends
				if addr == "w2" {
					deltas, end = tt.two, nil
				}
				for _, delta := range deltas {
					delta.Attempt = req.Attempt
					if err := recv(engine.AppendDelta(nil, &delta)); err != nil {
						return err
					}
				}
				return end
			}
			choices := 1
			if strings.HasSuffix(tt.name, "of two") {
				choices = 2
			}
			g := &Generation{Request: engine.Request{Prompt: []kv.Token{7, 8, 9}, Choices: choices, Logprobs: noLogprobs, Stop: engine.Stop{MaxTokens: 6}}}
			s := &sink{g: g, fail: tt.fail}
			g.Route, g.Workers, g.Sink = route.Request{ID: "r"}, f.model, s
			err := d.Generate(t.Context(), g, 1)
			if got := fmt.Sprint(s.got); got != tt.got || fmt.Sprint(err) != tt.err || f.held != 0 {
				t.Errorf("%s: %s, %v, want %s, %s; %d reserved", tt.name, got, err, tt.got, tt.err, f.held)
			}
			if log := strings.Join(f.log, "; "); log != tt.router {
				t.Errorf("%s: the router heard %s\nwant %s", tt.name, log, tt.router)
			}
			if log := strings.Join(s.log, " "); log != tt.sink {
				t.Errorf("%s: the sink heard %s, want %s", tt.name, log, tt.sink)
			}
		})
	}
}

// chunkSink takes the chunks of a passthrough request.
type chunkSink struct{ data string }

func (s *chunkSink) StartAttempt() {}

func (s *chunkSink) HandleChunk(p *engine.PassthroughChunk) (sent bool, err error) {
	s.data += string(p.Data)
	return s.data != "", nil
}

// TestPassthrough: another worker is tried until the client has a part of the answer.
func TestPassthrough(t *testing.T) {
	head := engine.PassthroughChunk{Accepted: true, Status: 200}
	data := engine.PassthroughChunk{Data: []byte("a"), Tokens: 1}
	last := engine.PassthroughChunk{Data: []byte("b"), Last: true, Tokens: 1, PromptTokens: 3, OutputTokens: 5, Cached: 1}
	for _, tt := range []struct {
		name   string
		one    []engine.PassthroughChunk
		ends   error
		data   string
		router string
		err    string
		code   fault.Code
	}{
		{"whole", []engine.PassthroughChunk{head, data, last}, nil, "ab", "r/1 first -1; r/1 prefilled 1; r/1 freed 5", "<nil>", 0},
		{"moves", []engine.PassthroughChunk{head}, errGone, "ab", "r/1 freed 0; failed 1 unavailable; r/2 first -1; r/2 prefilled 1; r/2 freed 5", "<nil>", 0},
		{
			"breaks",
			[]engine.PassthroughChunk{head, data},
			errLeaves, "a", "r/1 first -1; failed 1 draining; r/1 freed 0",
			"the engine over there did not finish its answer, which only it can go on with: send the request again", fault.Unavailable,
		},
		{
			"breaks by the request",
			[]engine.PassthroughChunk{head, data},
			fault.New(fault.EngineError, "out of memory"), "a", "r/1 first -1; failed 1 engine_error; r/1 freed 0",
			"out of memory", fault.EngineError,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, d := newFleet(2, nil)
			f.answer = func(addr string, body []byte, recv func(frame []byte) error) error {
				var req engine.PassthroughRequest
				chunks, end := tt.one, tt.ends
				if addr == "w2" {
					chunks, end = []engine.PassthroughChunk{head, data, last}, nil
				}
				err := engine.DecodePassthroughRequest(body, &req)
				for _, p := range chunks {
					p.Attempt = req.Attempt
					err = errors.Join(err, recv(engine.AppendPassthroughChunk(nil, &p)))
				}
				if err != nil {
					return err
				}
				return end
			}
			s := &chunkSink{}
			p := &Passthrough{Request: engine.PassthroughRequest{Path: "/p", Body: []byte("{}")}, Sink: s}
			p.Route, p.Workers = route.Request{ID: "r"}, f.model
			err := d.PassThrough(t.Context(), p, 1)
			if s.data != tt.data || fmt.Sprint(err) != tt.err || err != nil && fault.CodeOf(err) != tt.code || f.held != 0 {
				t.Errorf("%s: %s, %v (%v); %d reserved", tt.name, s.data, err, fault.CodeOf(err), f.held)
			}
			if log := strings.Join(f.log, "; "); log != tt.router {
				t.Errorf("%s: the router heard %s\nwant %s", tt.name, log, tt.router)
			}
		})
	}
}

// TestPromptTasks: inputs go to workers which embed, prompts by turns to workers which make them.
func TestPromptTasks(t *testing.T) {
	f, d := newFleet(4, func(id kv.WorkerID, c *engine.Card) {
		c.Embeddings, c.Preprocess, c.Features, c.ResolvesMedia = id == 3, id < 4, id < 3, id == 4
	})
	var asked []string
	f.answer = func(addr string, body []byte, recv func(frame []byte) error) error {
		asked = append(asked, addr)
		var embed engine.EmbedRequest
		if engine.DecodeEmbedRequest(body, &embed) == nil && embed.ID == "e" {
			return recv(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: embed.Attempt, Vector: []float32{1}}))
		}
		var req engine.PreprocessRequest
		if err := engine.DecodePreprocessRequest(body, &req); err != nil {
			return err
		}
		return (&engine.Preprocessed{Attempt: req.Attempt, Tokens: []kv.Token{1}}).SendFrames(recv)
	}
	workers := f.model
	e := &Embedding{Request: engine.EmbedRequest{ID: "e", Prompt: []kv.Token{1}}}
	e.Route, e.Workers = route.Request{ID: "e"}, workers
	if err := d.Embed(t.Context(), e, 1); err != nil || e.Answer.Vector == nil || len(e.Decisions) != 1 || f.held != 0 {
		t.Errorf("%v, %+v", err, e)
	}
	for _, req := range []engine.PreprocessRequest{{Text: "a"}, {Text: "a"}, {Text: "a"}, {Chat: []byte("{}"), Features: true}, {Chat: []byte("{}"), ResolveMedia: true}} {
		p := &Preprocessing{Request: req, Workers: workers, Vocabulary: 10}
		if err := d.Preprocess(t.Context(), p, 1); err != nil || len(p.Answer.Tokens) != 1 {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if got := strings.Join(asked, " "); got != "w3 w1 w2 w3 w2 w4" {
		t.Errorf("asked %s", got)
	}
	f.workers = f.workers[:1]
	p := &Preprocessing{Request: engine.PreprocessRequest{Model: "m", ResolveMedia: true}, Workers: workers}
	if err := d.Preprocess(t.Context(), p, 1); err == nil || err.Error() != "no worker over there of the model 'm' that makes prompts is left: try again later" {
		t.Error(err)
	}
}
