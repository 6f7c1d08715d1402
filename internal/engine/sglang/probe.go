package sglang

import (
	"context"
	"slices"

	"penstock/core/fault"
	"penstock/internal/engine/remote"
)

// probed is what an engine says of itself.
type probed struct {
	model    string // the first name that it serves
	adapters []string
	length   int // max_model_len; 0 if it is not said
	server   serverInfo
}

// serverInfo is the part of /server_info that matters: the settings of the server, and what
// it has computed from them.
type serverInfo struct {
	Version           string    `json:"version"`
	ModelPath         string    `json:"model_path"`
	PageSize          int       `json:"page_size"`
	DPSize            int       `json:"dp_size"`
	ContextLength     int       `json:"context_length"`
	MaxTotalTokens    int       `json:"max_total_num_tokens"`
	DisableRadixCache bool      `json:"disable_radix_cache"`
	EnableMetrics     bool      `json:"enable_metrics"`
	GrammarBackend    string    `json:"grammar_backend"`
	KVEvents          *kvEvents `json:"kv_events"`
	States            []struct {
		MaxTotalTokens int `json:"max_total_num_tokens"`
	} `json:"internal_states"`
}

// kvEvents is how newer versions say where they publish cache events.
type kvEvents struct {
	Publisher string `json:"publisher"`
	Host      string `json:"endpoint_host"`
	Port      int    `json:"endpoint_port_base"`
	BlockSize int    `json:"block_size"`
	DPSize    int    `json:"dp_size"`
}

// page returns how many tokens a page has; 0 if the engine does not say.
func (p *probed) page() int {
	if ev := p.server.KVEvents; ev != nil && ev.BlockSize > 0 {
		return ev.BlockSize
	}
	return max(p.server.PageSize, 0)
}

// window returns how many tokens prompt and output may have; 0 if the engine does not say.
func (p *probed) window() int {
	if p.length > 0 {
		return p.length
	}
	return max(p.server.ContextLength, 0)
}

// tokens returns for how many tokens a rank has room; 0 if the engine does not say.
func (p *probed) tokens() int {
	if p.server.MaxTotalTokens > 0 {
		return p.server.MaxTotalTokens
	}
	if len(p.server.States) > 0 {
		return max(p.server.States[0].MaxTotalTokens, 0)
	}
	return 0
}

// probe asks an engine what it is.
func probe(ctx context.Context, client *remote.Client) (*probed, error) {
	p := &probed{}
	var models struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
			Length int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := client.JSON(ctx, &remote.Call{Method: "GET", Path: "/v1/models"}, &models); err != nil {
		return nil, err
	}
	for _, m := range models.Data {
		switch {
		case m.Parent != "":
			p.adapters = append(p.adapters, m.ID)
		case p.model == "":
			p.model, p.length = m.ID, m.Length
		}
	}
	if p.model == "" {
		return nil, fault.New(fault.Unavailable, "the engine serves no model yet")
	}
	slices.Sort(p.adapters)
	p.adapters = slices.Compact(p.adapters)
	var err error
	for _, path := range []string{"/server_info", "/get_server_info"} {
		if err = client.JSON(ctx, &remote.Call{Method: "GET", Path: path}, &p.server); err == nil || !remote.NotFound(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// givesTokens reports whether /generate answers with token ids: it is asked for one token.
func givesTokens(ctx context.Context, client *remote.Client) (bool, error) {
	var answer struct {
		IDs []int64 `json:"output_ids"`
	}
	body := []byte(`{"input_ids":[1],"sampling_params":{"max_new_tokens":1,"temperature":0},"stream":false}`)
	if err := client.JSON(ctx, &remote.Call{Path: "/generate", Body: body}, &answer); err != nil {
		if remote.NotFound(err) {
			return false, nil
		}
		return false, err
	}
	return len(answer.IDs) > 0, nil
}
