package vllm

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// Preprocess lets the server make the tokens of a text or a conversation by /tokenize, and of a conversation
// with images by /v1/chat/completions/render, which returns their positions and, if the request asks for it,
// the processor's output. The server parses the names of special tokens in a text as those tokens, also if
// the request does not ask for it.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	path, body, err := e.tokenizeRequest(req)
	if err != nil {
		return nil, err
	}
	return e.FetchPrompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		if path != pathRender {
			return fetchPrompt(ctx, e.client, rankHeaders(&e.spec), path, body, p)
		}
		if req.Features && e.Card().Features && !e.RefusedFeatures() {
			err := fetchPrompt(ctx, e.client, rankHeaders(&e.spec), path, body, p)
			if !errors.Is(err, errFeaturesTooLarge) {
				return err
			}
		}
		return fetchPrompt(ctx, e.client, rankHeaders(&e.spec), path, withoutFeatures(body), p)
	})
}

// withoutFeatures extends a render request so that the response omits the processor's output, which has
// megabytes for a picture. It sets the parameters of two versions.
func withoutFeatures(body []byte) []byte {
	return append(body[:len(body)-1], `,"return_mm_kwargs":false,"mm_payload":"none"}`...)
}

// tokenizeRequest returns the path and the body that ask for the tokens of a request.
func (e *Engine) tokenizeRequest(req *engine.PreprocessRequest) (path string, body []byte, err error) {
	model := e.model
	if card := e.Card(); req.Model != "" && !card.HasName(req.Model) {
		model = req.Model
	}
	body = append(body, `{"model":`...)
	body = strictjson.AppendString(body, model)
	if len(req.Chat) == 0 {
		body = append(body, `,"prompt":`...)
		body = strictjson.AppendString(body, req.Text)
		body = append(body, `,"add_special_tokens":`...)
		return pathTokenize, append(strconv.AppendBool(body, req.AddSpecial), '}'), nil
	}
	chat, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return "", nil, err
	}
	path = pathTokenize
	for i := range chat.Messages {
		if showsMedia(chat.Messages[i].Parts) {
			path = pathRender
		}
	}
	again := prep.AppendChat(nil, chat)
	body = append(body, ',')
	return path, append(body, again[1:]...), nil
}

// showsMedia reports whether any content part is not text.
func showsMedia(parts []byte) bool {
	if len(parts) == 0 {
		return false
	}
	c := strictjson.NewCursor(parts)
	media := false
	for c.Open('['); c.More(']'); {
		if !c.NextIs('{') {
			c.Skip()
			continue
		}
		for c.Open('{'); c.More('}'); {
			if string(c.Key()) == "type" {
				kind := string(c.Raw())
				media = media || kind != `"text"` && kind != `"refusal"`
			} else {
				c.Skip()
			}
		}
	}
	return media
}

// maxRendered bounds a render response with the processor's output, in bytes.
const maxRendered = engine.MaxFeatures + 16<<20

// errFeaturesTooLarge is the error of a larger response.
var errFeaturesTooLarge = errors.New("vllm: more was made of media than is taken")

// fetchPrompt asks for the tokens and reads them into p.
func fetchPrompt(ctx context.Context, client *remote.Client, pinned []string, path string, body []byte, p *engine.Preprocessed) error {
	a, err := client.Do(ctx, &remote.Call{Path: path, Body: body, Headers: pinned})
	if err != nil {
		return err
	}
	defer a.Close()
	switch {
	case a.Status == http.StatusNotFound || a.Status == http.StatusForbidden:
		return fault.New(fault.Unimplemented, "the engine makes no prompts at %s; start it with its tokenizer, and with --enable-scale-out for conversations with images", path)
	case !a.OK():
		return a.RefusalError()
	}
	text, more, err := a.ReadUpTo(ctx, maxRendered)
	switch {
	case err != nil:
		return err
	case more:
		return errFeaturesTooLarge
	}
	return readPrompt(text, p)
}

// readPrompt reads {"tokens":[…]} or {"token_ids":[…],"features":{…}}.
func readPrompt(text []byte, p *engine.Preprocessed) error {
	c := strictjson.NewCursor(text)
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "tokens", "token_ids":
			p.Tokens = c.ReadTokens(p.Tokens[:0])
		case "features":
			if !c.SkipNull() {
				from := c.Pos()
				processed := readFeatures(&c, p)
				if raw := bytes.TrimSpace(text[from:c.Pos()]); processed && len(raw) <= engine.MaxFeatures {
					p.Features = raw
				}
			}
		default:
			c.Skip()
		}
	}
	if c.End() != nil {
		return &fault.Error{Code: fault.Unavailable, Message: "the engine answers a question for a prompt with what is none", Err: c.Err()}
	}
	slices.SortStableFunc(p.Media, func(a, b kv.Media) int { return a.Start - b.Start })
	return nil
}

// readFeatures reads {"mm_hashes":{"image":["…"]},"mm_placeholders":{"image":[{"offset":5,"length":64}]},
// "kwargs_data":{"image":["…"]}}, and reports whether the last member has the processor's output for every
// object.
func readFeatures(c *strictjson.Cursor, p *engine.Preprocessed) (processed bool) {
	hashes, places := map[string][]uint64{}, map[string][]kv.Media{}
	made := 0
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "mm_hashes":
			eachKind(c, func(kind string) {
				hash, _ := kv.MediaHash(c.ReadString())
				hashes[kind] = append(hashes[kind], hash)
			})
		case "mm_placeholders":
			eachKind(c, func(kind string) { places[kind] = append(places[kind], readPlaceholder(c)) })
		case "kwargs_data":
			eachKind(c, func(string) {
				if c.NextIs('"') {
					made++
				}
				c.Skip()
			})
		default:
			c.Skip()
		}
	}
	for kind, at := range places { // the caller sorts them by their start
		for i, m := range at {
			if i < len(hashes[kind]) {
				m.Hash = hashes[kind][i]
				p.Media = append(p.Media, m)
			}
		}
	}
	return made > 0 && made == len(p.Media)
}

// eachKind calls each before every element of the lists of an object.
func eachKind(c *strictjson.Cursor, each func(kind string)) {
	if c.SkipNull() {
		return
	}
	for c.Open('{'); c.More('}'); {
		kind := string(c.Key())
		if c.SkipNull() {
			continue
		}
		for c.Open('['); c.More(']'); {
			each(kind)
		}
	}
}

func readPlaceholder(c *strictjson.Cursor) (m kv.Media) {
	length := 0
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "offset":
			m.Start = int(c.ReadInt())
		case "length":
			length = int(c.ReadInt())
		default:
			c.Skip()
		}
	}
	m.End = m.Start + length
	return m
}
