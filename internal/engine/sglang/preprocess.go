package sglang

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// Preprocess lets the server make the tokens of a text or a conversation by /tokenize. Not all versions take
// conversations there. The server parses the names of special tokens in a text as those tokens, also if the
// request does not ask for it.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	body, err := e.tokenizeRequest(req)
	if err != nil {
		return nil, err
	}
	return e.FetchPrompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		return e.fetchTokens(ctx, body, len(req.Chat) > 0, p)
	})
}

// tokenizeRequest returns the body that asks for the tokens of a request.
func (e *Engine) tokenizeRequest(req *engine.PreprocessRequest) ([]byte, error) {
	model := e.model
	if card := e.Card(); req.Model != "" && !card.HasName(req.Model) {
		model = req.Model
	}
	body := strictjson.AppendString([]byte(`{"model":`), model)
	if len(req.Chat) == 0 {
		body = strictjson.AppendString(append(body, `,"prompt":`...), req.Text)
		body = append(body, `,"add_special_tokens":`...)
		return append(strconv.AppendBool(body, req.AddSpecial), '}'), nil
	}
	chat, err := prep.DecodeChat(req.Chat)
	if err != nil {
		return nil, err
	}
	return append(append(body, ','), prep.AppendChat(nil, chat)[1:]...), nil
}

// fetchTokens asks for the tokens and reads them into p.
func (e *Engine) fetchTokens(ctx context.Context, body []byte, chat bool, p *engine.Preprocessed) error {
	a, err := e.client.Do(ctx, &remote.Call{Path: "/tokenize", Body: body})
	if err != nil {
		return err
	}
	defer a.Close()
	switch {
	case a.Status == http.StatusNotFound:
		return noPromptsError()
	case !a.OK():
		err := a.RefusalError()
		if said := err.Error(); chat && strings.Contains(said, "prompt") && strings.Contains(strings.ToLower(said), "required") {
			return noPromptsError() // it requires a text in place of the conversation
		}
		return err
	}
	text, err := a.ReadAll(ctx)
	if err != nil {
		return err
	}
	return remote.ParseTokenize(text, p)
}

func noPromptsError() error {
	return fault.New(fault.Unimplemented, "the engine makes no prompts of this: name the directory of its model with --model-path, and they are made here")
}
