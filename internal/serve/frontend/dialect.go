package frontend

import (
	"net/http"

	"penstock/internal/edge/anthropic"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/openai/responses"
)

// apiDialect is the API of a generation endpoint.
type apiDialect struct {
	endpoint api.Endpoint
	// decode reads a request, and returns with it the factory of its answer's writer.
	decode func(body []byte) (*api.Request, writerFactory, error)
	// idHeader is the header in which its clients expect the request id in addition to x-request-id; ""
	// if in none.
	idHeader string
	// refuse writes an error as a whole response. appendError appends the event that ends the broken
	// stream of a request's answer.
	refuse      func(http.ResponseWriter, error)
	appendError func(dst []byte, id string, err error) []byte
	// path is the path of its requests.
	path string
}

// setRequestID sets the id headers of a response, the common one and d's own.
func (d *apiDialect) setRequestID(w http.ResponseWriter, id string) {
	w.Header().Set("X-Request-Id", id)
	if d.idHeader != "" {
		w.Header().Set(d.idHeader, id)
	}
}

// writerFactory makes the writer of one answer. The head's Fingerprint is set before the writer's first
// chunk.
type writerFactory func(*api.Head) api.Writer

// openAI is the API of chat and text completions.
func openAI(endpoint api.Endpoint) apiDialect {
	return apiDialect{
		endpoint: endpoint,
		decode: func(body []byte) (*api.Request, writerFactory, error) {
			q, err := openai.Decode(endpoint, body)
			if err != nil {
				return nil, nil, err
			}
			return q, func(h *api.Head) api.Writer { return openai.NewWriter(q, h) }, nil
		},
		refuse:      openai.WriteError,
		appendError: func(dst []byte, _ string, err error) []byte { return openai.AppendErrorEvent(dst, err) },
		path:        map[api.Endpoint]string{api.Chat: "/v1/chat/completions", api.Completion: "/v1/completions"}[endpoint],
	}
}

// responsesAPI is OpenAI's Responses API.
func responsesAPI() apiDialect {
	return apiDialect{
		endpoint: api.Responses,
		decode: func(body []byte) (*api.Request, writerFactory, error) {
			q, err := responses.Decode(body)
			if err != nil {
				return nil, nil, err
			}
			return q.Request, q.NewWriter, nil
		},
		refuse:      openai.WriteError,
		appendError: func(dst []byte, _ string, err error) []byte { return responses.AppendErrorEvent(dst, err) },
		path:        "/v1/responses",
	}
}

// messagesAPI is Anthropic's Messages API.
func messagesAPI() apiDialect {
	return apiDialect{
		endpoint: api.Messages,
		decode: func(body []byte) (*api.Request, writerFactory, error) {
			q, err := anthropic.Decode(body)
			if err != nil {
				return nil, nil, err
			}
			return q, func(h *api.Head) api.Writer { return anthropic.NewWriter(q, h) }, nil
		},
		idHeader:    "request-id",
		refuse:      anthropic.WriteError,
		appendError: anthropic.AppendErrorEvent,
		path:        "/v1/messages",
	}
}
