package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock/core/fault"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// Producer is a vLLM server which encodes media for other ones: a producer of --ec-transfer-config. It generates nothing.
// Open it with [OpenProducer].
type Producer struct {
	base   *remote.Base
	client *remote.Client
	model  string // the server's name of it
	pinned []string

	mu struct {
		sync.Mutex
		runs map[encodeKey]*encodeRun
	}
}

// Compile-time guards.
var (
	_ engine.Engine        = (*Producer)(nil)
	_ engine.MediaEncoder  = (*Producer)(nil)
	_ engine.LoadSource    = (*Producer)(nil)
	_ engine.WarningSource = (*Producer)(nil)
	_ engine.HealthWatcher = (*Producer)(nil)
)

// producerRemedy says how a producer is started.
const producerRemedy = `--ec-transfer-config '{"ec_connector":"ECExampleConnector","ec_role":"ec_producer","ec_connector_extra_config":{"shared_storage_path":"DIR"}}'`

// OpenProducer probes a producer, see [remote.Probe.Open].
func OpenProducer(ctx context.Context, cfg Config) (*Producer, error) {
	cfg.Spec.ECRole, cfg.Spec.Mode, cfg.Spec.BlockSize = remote.ECProducer, remote.ModePassthrough, 0
	cfg.Tokenizer = engine.TokenizerRef{Kind: engine.TokenizerOfEngine}
	p, err := newProbe(&cfg)
	if err != nil {
		return nil, err
	}
	e := &Producer{client: p.Client, pinned: p.pinned}
	e.mu.runs = map[encodeKey]*encodeRun{}
	e.base, err = p.Open(ctx, remote.Steps{
		FindModel: p.findModel, FindServer: func(ctx context.Context) error { p.FindVersion(ctx); return nil },
		BuildCard: func() (engine.Card, error) {
			p.cache.blockSize = defaultBlockSize // it has no KV cache
			card, err := p.buildCard()
			card.Role, card.NoPrefixCache, card.Adapters = engine.RoleEncode, true, nil
			return card, err
		},
		Complete: func(ctx context.Context, rc *remote.Config) error {
			p.findMedia(ctx, &rc.Card, []string{pathChat})
			rc.Salts, rc.PassthroughSalts = remote.SaltsUnneeded, remote.SaltsUnneeded
			rc.Headers, rc.CheckAlive = p.pinned, p.checkProducerAlive
			e.model = p.base.ID
			return p.checkProducer(ctx, &rc.Card)
		},
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// checkProducerAlive checks that the server answers and serves the same model.
func (p *serverProbe) checkProducerAlive(ctx context.Context) error {
	if err := p.CheckHealth(ctx, "/health"); err != nil {
		return err
	}
	return p.checkSameModel(ctx)
}

// encoding is what a server says of a request.
type encoding struct {
	// handoff is the JSON object by which others get what was encoded, and names are the objects in it; nil if the
	// server encodes nothing for others.
	handoff []byte
	names   []string
	tokens  int // generated
}

// encodeSample has a small object encoded.
func (p *serverProbe) encodeSample(ctx context.Context, card *engine.Card) (encoding, error) {
	ctx, cancel := context.WithTimeout(ctx, mediaProbeTimeout)
	defer cancel()
	kind := card.Media[0]
	if slices.Contains(card.Media, media.Image.String()) {
		kind = media.Image.String()
	}
	body := p.sampleRequest(kind)
	return fetchEncoding(ctx, p.Client, p.pinned, "", append(body[:len(body)-1], `,"max_tokens":1}`...))
}

// checkProducer checks that the server encodes for others.
func (p *serverProbe) checkProducer(ctx context.Context, card *engine.Card) error {
	host := p.Config.Spec.URL.Host
	if len(card.Media) == 0 {
		return fmt.Errorf("the engine at %s takes no media, and a worker of role encode has nothing to encode: see whether %.100q is a multimodal model, or name its media with media=image", host, card.Name)
	}
	got, err := p.encodeSample(ctx, card)
	switch {
	case err != nil:
		return err
	case got.handoff == nil:
		return fmt.Errorf("the engine at %s encodes nothing for others: its answers have no ec_transfer_params. Start vLLM (0.32 or later) with %s", host, producerRemedy)
	}
	return nil
}

// refuseProducer refuses a server which generates nothing: a producer alone, whose prefix cache is off.
func (p *serverProbe) refuseProducer(ctx context.Context, card *engine.Card) error {
	if !p.isPrefixCacheOff() || len(card.Media) == 0 {
		return nil
	}
	got, err := p.encodeSample(ctx, card)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && got.handoff != nil && got.tokens == 0 {
		return fmt.Errorf("the engine at %s is a producer of encoded media (ec_producer), which generates nothing: start penstock worker --role encode in front of it, or add ec-role=producer to the engine", p.Config.Spec.URL.Host)
	}
	return nil
}

// checkConsumer checks the settings of a server which takes what others encoded.
func (p *serverProbe) checkConsumer(card *engine.Card) error {
	switch {
	case p.Config.Spec.ECRole != remote.ECConsumer:
		return nil
	case len(card.Media) == 0:
		return fmt.Errorf("the engine at %s has ec-role=consumer and takes no media: leave out ec-role, or name its media with media=image", p.Config.Spec.URL.Host)
	case card.MediaKeys == "":
		return fmt.Errorf("the engine at %s has ec-role=consumer and media-keys=off: what others encoded is found by these keys; leave out media-keys", p.Config.Spec.URL.Host)
	}
	return nil
}

// pathChat is the path of conversations.
const pathChat = "/v1/chat/completions"

// Card implements [engine.Engine].
func (e *Producer) Card() engine.Card { return e.base.Card() }

// Run implements [engine.Engine].
func (e *Producer) Run(ctx context.Context) error { return e.base.Run(ctx) }

// Generate implements [engine.Engine].
func (e *Producer) Generate(context.Context, *engine.Request, func(*engine.Delta) error) error {
	return fault.New(fault.Unimplemented, "the engine encodes media for others and generates nothing")
}

// Load implements [engine.LoadSource].
func (e *Producer) Load() engine.Load { return e.base.Load() }

// Warnings implements [engine.WarningSource].
func (e *Producer) Warnings() []engine.Warning { return e.base.Warnings() }

// HealthReport implements [engine.HealthSource].
func (e *Producer) HealthReport() engine.HealthReport { return e.base.HealthReport() }

// WatchHealth implements [engine.HealthWatcher].
func (e *Producer) WatchHealth(ctx context.Context, changed func()) { e.base.WatchHealth(ctx, changed) }

// encodeKey says which requests are for the same: an object under its name, in a namespace.
type encodeKey struct{ namespace, name string }

// encodeRun is one question to the server, for all which wait for it.
type encodeRun struct {
	done    chan struct{} // closed when the fields below are set
	handoff []byte
	err     error
	waiting int // guarded by the lock of Producer
	cancel  context.CancelFunc
}

// EncodeObject implements [engine.MediaEncoder]: it sends the object alone, under the name which requests that show it
// have for it, and returns a handoff. Whether the server's encoder ran is not known: it keeps outputs by its own rules.
func (e *Producer) EncodeObject(ctx context.Context, req *engine.EncodeRequest, object *media.Object) (*engine.EncodedObject, error) {
	card := e.base.Card()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case req.Encoder != "" && req.Encoder != card.Encoder:
		return nil, fault.New(fault.Conflict, "encode: the engine is %.200q, not %.200q", card.Encoder, req.Encoder)
	case object.Key.IsZero():
		return nil, fault.InvalidParam(object.Part, "the object has no key, by which other engines find it")
	case object.Source == "" || req.CachedOnly:
		return nil, fault.New(fault.NotFound, "encode: the engine needs the object's URL")
	}
	key := encodeKey{req.Namespace, object.Key.UUIDIn(req.Namespace)}
	run := e.joinRun(ctx, key, req.ID, object)
	defer e.leaveRun(key, run)
	select {
	case <-run.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if run.err != nil {
		var f *fault.Error
		if errors.As(run.err, &f) && f.Code == fault.Invalid {
			return nil, fault.InvalidParam(object.Part, "%s", f.Message)
		}
		return nil, run.err
	}
	return &engine.EncodedObject{Handoff: run.handoff, Release: func() {}}, nil
}

// EncodeLoad implements [engine.MediaEncoder].
func (e *Producer) EncodeLoad() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.mu.runs)
}

// joinRun returns the run for an object, which it starts unless there is one. leaveRun must be called.
func (e *Producer) joinRun(ctx context.Context, key encodeKey, id string, object *media.Object) *encodeRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	run := e.mu.runs[key]
	if run == nil {
		run = &encodeRun{done: make(chan struct{})}
		var within context.Context
		within, run.cancel = context.WithCancel(context.WithoutCancel(ctx))
		e.mu.runs[key] = run
		body := e.objectRequest(key.name, object)
		go func() { // it ends with its last waiter, which waits for it in leaveRun
			defer close(run.done)
			run.handoff, run.err = e.ask(within, id, key.name, body)
		}()
	}
	run.waiting++
	return run
}

// leaveRun takes a waiter from a run, and ends the run with its last one.
func (e *Producer) leaveRun(key encodeKey, run *encodeRun) {
	e.mu.Lock()
	run.waiting--
	last := run.waiting == 0
	if last && e.mu.runs[key] == run {
		delete(e.mu.runs, key)
	}
	e.mu.Unlock()
	if last {
		run.cancel()
		<-run.done
	}
}

// objectRequest returns a conversation which shows one object under a name.
func (e *Producer) objectRequest(name string, object *media.Object) []byte {
	part := object.Kind.String() + "_url"
	b := strictjson.AppendString([]byte(`{"model":`), e.model)
	b = append(append(b, `,"max_tokens":1,"stream":false,"messages":[{"role":"user","content":[{"type":"`...), part...)
	b = append(append(append(b, `","`...), part...), `":{"url":`...)
	b = strictjson.AppendString(b, object.Source)
	b = append(append(append(b, `},"uuid":"`...), name...), `"}]}]}`...)
	return b
}

// ask has the server encode what a request shows under a name.
func (e *Producer) ask(ctx context.Context, id, name string, body []byte) ([]byte, error) {
	inside, done, err := e.base.StartCall(ctx)
	if err != nil {
		return nil, err
	}
	got, err := fetchEncoding(inside, e.client, e.pinned, id, body)
	switch {
	case err != nil:
	case got.handoff == nil:
		err = fault.New(fault.Conflict, "the engine encodes nothing for others any more: its answer has no ec_transfer_params")
	case !slices.Contains(got.names, name):
		err = fault.New(fault.Conflict, "the engine encoded the object under another name than %.80q: %.80q; take a version that uses the names (uuid) of requests", name, got.names)
	}
	return got.handoff, done(err)
}

// maxEncoding bounds the answer to a question, in bytes.
const maxEncoding = engine.MaxOpaque + 64<<10

// fetchEncoding sends a conversation and returns what the answer says of it.
func fetchEncoding(ctx context.Context, client *remote.Client, pinned []string, id string, body []byte) (got encoding, err error) {
	a, err := client.Do(ctx, &remote.Call{Path: pathChat, ID: id, Headers: pinned, Body: body, Wait: -1})
	if err != nil {
		return got, err
	}
	defer a.Close()
	if !a.OK() {
		return got, a.RefusalError()
	}
	text, more, err := a.ReadUpTo(ctx, maxEncoding)
	if err == nil && more {
		err = fault.New(fault.Conflict, "the engine's answer about an object has more than %d bytes", maxEncoding)
	}
	if err != nil {
		return got, err
	}
	return readEncoding(text)
}

// readEncoding reads {"usage":{"completion_tokens":0},"ec_transfer_params":{NAME:{…}}}.
func readEncoding(text []byte) (got encoding, err error) {
	c := strictjson.NewCursor(text)
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "ec_transfer_params":
			got.handoff, got.names = nil, nil
			if !c.NextIs('{') {
				c.Skip()
				continue
			}
			from := c.Pos()
			for c.Open('{'); c.More('}'); {
				got.names = append(got.names, string(c.Key()))
				c.Skip()
			}
			if len(got.names) > 0 && c.Err() == nil {
				got.handoff = text[from:c.Pos()]
			}
		case "usage":
			if c.SkipNull() {
				continue
			}
			for c.Open('{'); c.More('}'); {
				if string(c.Key()) == "completion_tokens" && !c.SkipNull() {
					got.tokens = int(c.ReadInt())
				} else {
					c.Skip()
				}
			}
		default:
			c.Skip()
		}
	}
	switch {
	case c.End() != nil, got.handoff != nil && !json.Valid(got.handoff): // the cursor does not check what it skips
		return encoding{}, &fault.Error{Code: fault.Unavailable, Message: "the engine answers about an object with what is no JSON", Err: c.Err()}
	case len(got.handoff) > engine.MaxOpaque:
		return encoding{}, fault.New(fault.Conflict, "the engine's handoff has %d bytes; at most %d are taken", len(got.handoff), engine.MaxOpaque)
	}
	return got, nil
}
