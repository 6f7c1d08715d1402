package frontend

import (
	"net/http"

	"penstock/internal/edge/anthropic"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/openai/responses"
)

// dialect is an API that a generation endpoint speaks.
type dialect struct {
	endpoint api.Endpoint
	// decode reads a request, and returns with it what makes the writer of its
	// answer.
	decode func(body []byte) (*api.Request, newWriter, error)
	// idHeader is where its clients look for the request's id besides x-request-id;
	// "" if nowhere.
	idHeader string
	// refuse writes an error as a whole response.
	refuse func(http.ResponseWriter, error)
}

// name gives a response the id of its request, for all clients and for those of d.
func (d *dialect) name(w http.ResponseWriter, id string) {
	w.Header().Set("x-request-id", id)
	if d.idHeader != "" {
		w.Header().Set(d.idHeader, id)
	}
}

// newWriter makes the writer of one answer. The head's Fingerprint is set before
// the writer's first chunk.
type newWriter func(*api.Head) api.Writer

// openAI is the API of chat and text completions.
func openAI(endpoint api.Endpoint) dialect {
	return dialect{
		endpoint: endpoint,
		decode: func(body []byte) (*api.Request, newWriter, error) {
			q, err := openai.Decode(endpoint, body)
			if err != nil {
				return nil, nil, err
			}
			return q, func(h *api.Head) api.Writer { return openai.NewWriter(q, h) }, nil
		},
		refuse: openai.WriteError,
	}
}

// responsesAPI is OpenAI's other API of conversations.
func responsesAPI() dialect {
	return dialect{
		endpoint: api.Responses,
		decode: func(body []byte) (*api.Request, newWriter, error) {
			q, err := responses.Decode(body)
			if err != nil {
				return nil, nil, err
			}
			return q.Request, q.NewWriter, nil
		},
		refuse: openai.WriteError,
	}
}

// messagesAPI is Anthropic's.
func messagesAPI() dialect {
	return dialect{
		endpoint: api.Messages,
		decode: func(body []byte) (*api.Request, newWriter, error) {
			q, err := anthropic.Decode(body)
			if err != nil {
				return nil, nil, err
			}
			return q, func(h *api.Head) api.Writer { return anthropic.NewWriter(q, h) }, nil
		},
		idHeader: "request-id",
		refuse:   anthropic.WriteError,
	}
}
