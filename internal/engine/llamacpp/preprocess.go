package llamacpp

import (
	"context"
	"net/http"
	"strconv"

	"penstock/core/fault"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"
)

// Preprocess lets the server make the tokens of a text by /tokenize, and the text of a conversation by
// /apply-template.
func (e *Engine) Preprocess(ctx context.Context, req *engine.PreprocessRequest) (*engine.Preprocessed, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	var chat []byte
	if len(req.Chat) > 0 {
		c, err := prep.DecodeChat(req.Chat)
		if err != nil {
			return nil, err
		}
		chat = prep.AppendChat(nil, c)
	}
	if !e.native {
		return nil, fault.New(fault.Unimplemented, "the engine makes no prompts: name the directory of its model with --model-path, and they are made here")
	}
	return e.FetchPrompt(ctx, req.Attempt, func(ctx context.Context, p *engine.Preprocessed) error {
		return e.fetchPrompt(ctx, req, chat, p)
	})
}

// fetchPrompt asks for the tokens and reads them into p.
func (e *Engine) fetchPrompt(ctx context.Context, req *engine.PreprocessRequest, chat []byte, p *engine.Preprocessed) error {
	text, special, add := req.Text, req.ParseSpecial, req.AddSpecial
	if chat != nil {
		var made struct {
			Prompt *string `json:"prompt"`
		}
		if err := e.client.DoJSON(ctx, &remote.Call{Path: "/apply-template", Body: chat}, &made); remote.IsNotFound(err) {
			return fault.New(fault.Unimplemented, "the engine's version has no /apply-template: take a newer one, or name the directory of its model with --model-path")
		} else if err != nil {
			return err
		}
		if made.Prompt == nil {
			return fault.New(fault.Unavailable, "the engine answers a question for a prompt with what is none")
		}
		// The server's own chat endpoint does so too.
		text, special, add = *made.Prompt, true, true
	}
	body := strictjson.AppendString([]byte(`{"content":`), text)
	body = strconv.AppendBool(append(body, `,"add_special":`...), add)
	body = strconv.AppendBool(append(body, `,"parse_special":`...), special)
	answer, err := e.client.ReadBody(ctx, &remote.Call{Method: http.MethodPost, Path: "/tokenize", Body: append(body, '}')}, remote.MaxEvent)
	if err != nil {
		return err
	}
	return remote.ParseTokenize(answer, p)
}
