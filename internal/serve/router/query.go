package router

import (
	"bytes"
	"math"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// promptQuery is a question about a prompt: a chat or completion request as clients send it, or token
// ids.
type promptQuery struct {
	request       *api.Request
	tokens        []kv.Token      // instead of a prompt; empty if the request has one
	givenOverride *route.Override // given beside the request; nil if absent
}

// policyOverride returns the question's override of the policy.
func (q *promptQuery) policyOverride() route.Override {
	if q.givenOverride != nil {
		return *q.givenOverride
	}
	return q.request.Ext.Override
}

// decodeQuery reads the body of a question. Apart from the router's own fields it is the body of a
// request with messages or a prompt and is decoded as such, because an answer about another prompt than
// the request's would be worthless. It keeps nothing of body. The error is a *fault.Error of code
// Invalid that names the field.
func decodeQuery(body []byte) (*promptQuery, error) {
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	d := queryDecoder{Reader: r, query: &promptQuery{}}
	if err := r.ReadObject(d.readField); err != nil {
		return nil, err
	}
	if err := r.CheckEnd(); err != nil {
		return nil, err
	}
	return d.query, d.decodeRequest()
}

type queryDecoder struct {
	*strictjson.Reader
	query *promptQuery
	// rest holds the members of the body which are not the router's own, without the enclosing braces.
	rest             []byte
	messages, prompt bool // whether rest has them
}

// readField reads the value of one top-level key. A null counts as a missing field.
func (d *queryDecoder) readField(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "token_ids":
		return d.ReadArray("an array of token ids", d.readToken)
	case "router_config_override":
		return d.readOverride()
	case "messages":
		d.messages = true
	case "prompt":
		d.prompt = true
	}
	raw, err := d.ReadRaw()
	if err != nil || key == "cache_salt" && string(raw) == `""` { // an empty salt is none
		return err
	}
	if len(d.rest) > 0 {
		d.rest = append(d.rest, ',')
	}
	d.rest = append(strictjson.AppendString(d.rest, key), ':')
	d.rest = append(d.rest, raw...)
	return nil
}

func (d *queryDecoder) readToken(int) error {
	n, err := d.ReadInt()
	if err != nil {
		return err
	}
	if n < 0 || n > math.MaxUint32 {
		return d.InvalidError("must be a token id, not %d", n)
	}
	d.query.tokens = append(d.query.tokens, kv.Token(n))
	return nil
}

func (d *queryDecoder) readOverride() error {
	if d.Kind() != strictjson.ObjectKind {
		return d.WrongTypeError("an object")
	}
	raw, err := d.ReadRaw()
	if err != nil {
		return err
	}
	d.query.givenOverride = new(route.Override)
	return decodeJSON(bytes.NewReader(raw), d.query.givenOverride)
}

// decodeRequest decodes the request in the members which are not the router's own.
func (d *queryDecoder) decodeRequest() (err error) {
	ways := 0
	for _, given := range [...]bool{len(d.query.tokens) > 0, d.prompt, d.messages} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return fault.InvalidParam("token_ids", "give the prompt as one of token_ids, prompt and messages, and not empty")
	}
	body := wrapObject(d.rest)
	switch {
	case d.messages:
		d.query.request, err = openai.Decode(api.Chat, body)
	case d.prompt:
		d.query.request, err = openai.Decode(api.Completion, body)
	default:
		d.query.request, err = decodeBare(d.rest)
	}
	return err
}

// decodeBare reads the members that may stand beside token ids. nvext is decoded as part of a
// completion request.
func decodeBare(members []byte) (*api.Request, error) {
	r, err := strictjson.NewReader(wrapObject(members))
	if err != nil {
		return nil, err
	}
	q, extended := &api.Request{}, false
	err = r.ReadObject(func(key string) error {
		switch key {
		case "model":
			return r.ReadStringInto(&q.Model)
		case "cache_salt":
			return r.ReadStringInto(&q.CacheSalt)
		case "nvext":
			extended = true
			return r.SkipValue()
		}
		return r.UnsupportedError()
	})
	if err == nil && strings.TrimSpace(q.Model) == "" {
		err = fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
	}
	if err != nil || !extended {
		return q, err
	}
	whole, err := openai.Decode(api.Completion, wrapObject(append(slices.Clip(members), `,"prompt":[0]`...)))
	if err != nil {
		return nil, err
	}
	if len(whole.Ext.Tokens) > 0 {
		return nil, fault.InvalidParam("nvext.token_data", "'nvext.token_data' and 'token_ids' are two prompts: give one of them")
	}
	q.CacheSalt, q.Ext = whole.CacheSalt, whole.Ext
	return q, nil
}

// wrapObject puts braces around members.
func wrapObject(members []byte) []byte { return append(append([]byte{'{'}, members...), '}') }

// prefixLookup is the memory of one lookup.
type prefixLookup struct {
	match    prefix.Match
	known    []kv.Overlap // from events
	expected []kv.Overlap // from predictions
	both     []kv.Overlap
}

// reset empties l, as for a prompt that was not looked up.
func (l *prefixLookup) reset() { l.known, l.expected, l.both = l.known[:0], l.expected[:0], l.both[:0] }

// lookUpPrefix finds, from events and predictions, which workers hold how much of the prompt whose full
// blocks end in chain; it considers labels only if asks. The result is memory of l. It takes no lock.
func (r *Router) lookUpPrefix(l *prefixLookup, chain []kv.SeqHash, moe *kv.MoEQuery, asks bool) []kv.Overlap {
	l.reset()
	if !asks {
		moe = nil
	}
	if r.usesEvents {
		r.cache.matchPrefix(&l.match, chain, moe)
		l.known = l.match.AppendOverlaps(l.known)
	}
	if !r.predictions.isEnabled() {
		return l.known
	}
	r.predictions.matchPrefix(&l.match, chain)
	l.expected = l.match.AppendOverlaps(l.expected)
	l.both = prefix.AppendLarger(l.both, l.known, l.expected)
	return l.both
}
