package vllm

import (
	"context"
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

// Preprocess has the server make the tokens of a text or a conversation, by /tokenize; a conversation
// that shows images by /v1/chat/completions/render, which says where they stand. The server reads the
// names of special tokens in a text as those tokens, whether or not the request asks for it.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	path, body, err := e.tokenize(req)
	if err != nil {
		return nil, err
	}
	return e.Prompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		return e.render(ctx, path, body, p)
	})
}

// tokenize returns what to ask for the tokens of a request.
func (e *Engine) tokenize(req *engine.PreprocessRequest) (path string, body []byte, err error) {
	model := e.model
	if card := e.Card(); req.Model != "" && !card.Names(req.Model) {
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
	if path == pathRender {
		// What the processor made is megabytes for a picture: two versions of how to leave it out.
		body = append(body, `,"return_mm_kwargs":false,"mm_payload":"none"`...)
	}
	again := prep.AppendChat(nil, chat)
	body = append(body, ',')
	return path, append(body, again[1:]...), nil
}

// showsMedia reports whether content parts have any that is no text.
func showsMedia(parts []byte) bool {
	if len(parts) == 0 {
		return false
	}
	c := remote.NewCursor(parts)
	media := false
	for c.Open('['); c.More(']'); {
		if !c.Is('{') {
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

// render asks for the tokens and reads them into p.
func (e *Engine) render(ctx context.Context, path string, body []byte, p *engine.Preprocessed) error {
	a, err := e.client.Do(ctx, &remote.Call{Path: path, Body: body, Headers: pin(&e.spec)})
	if err != nil {
		return err
	}
	defer a.Close()
	switch {
	case a.Status == http.StatusNotFound || a.Status == http.StatusForbidden:
		return fault.New(fault.Unimplemented, "the engine makes no prompts at %s; start it with its tokenizer, and with --enable-scale-out for conversations with images", path)
	case !a.OK():
		return a.Refused()
	}
	text, err := a.All(ctx)
	if err != nil {
		return err
	}
	return readPrompt(text, p)
}

// readPrompt reads {"tokens":[…]} or {"token_ids":[…],"features":{…}}.
func readPrompt(text []byte, p *engine.Preprocessed) error {
	c := remote.NewCursor(text)
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "tokens", "token_ids":
			p.Tokens = c.Tokens(p.Tokens[:0])
		case "features":
			if !c.Null() {
				readFeatures(&c, p)
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

// readFeatures reads {"mm_hashes":{"image":["…"]},"mm_placeholders":{"image":[{"offset":5,"length":64}]}}.
func readFeatures(c *remote.Cursor, p *engine.Preprocessed) {
	hashes, places := map[string][]uint64{}, map[string][]kv.Media{}
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "mm_hashes":
			eachKind(c, func(kind string) {
				hash, _ := kv.MediaHash(c.Text())
				hashes[kind] = append(hashes[kind], hash)
			})
		case "mm_placeholders":
			eachKind(c, func(kind string) { places[kind] = append(places[kind], readPlace(c)) })
		default:
			c.Skip()
		}
	}
	for kind, at := range places { // sorted by where they begin, by the caller
		for i, m := range at {
			if i < len(hashes[kind]) {
				m.Hash = hashes[kind][i]
				p.Media = append(p.Media, m)
			}
		}
	}
}

// eachKind calls each before every element of the lists of an object.
func eachKind(c *remote.Cursor, each func(kind string)) {
	if c.Null() {
		return
	}
	for c.Open('{'); c.More('}'); {
		kind := string(c.Key())
		if c.Null() {
			continue
		}
		for c.Open('['); c.More(']'); {
			each(kind)
		}
	}
}

func readPlace(c *remote.Cursor) (m kv.Media) {
	length := 0
	for c.Open('{'); c.More('}'); {
		switch string(c.Key()) {
		case "offset":
			m.Start = int(c.Int())
		case "length":
			length = int(c.Int())
		default:
			c.Skip()
		}
	}
	m.End = m.Start + length
	return m
}
