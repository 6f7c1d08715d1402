package frontend

import (
	"net/http"
	"strings"

	"penstock/internal/edge/anthropic"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/openai/responses"
	"penstock/internal/edge/readiness"
)

// apiEndpoint is a path which the frontend itself serves, with its description for /openapi.json.
type apiEndpoint struct {
	pattern string // of ServeMux
	handler http.Handler
	// audience says which clients may use it while keys are in force. refuse answers the others.
	audience audience
	refuse   func(http.ResponseWriter, error)
	openai.Operation
}

// allowedMethods are the methods of the path: GET implies HEAD.
func (e *apiEndpoint) allowedMethods() []string {
	if e.Method == "get" {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{strings.ToUpper(e.Method)}
}

// endpointTable is the table of all that the frontend itself serves.
func (f *Frontend) endpointTable() []apiEndpoint {
	const get, post, anyJSON = "get", "post", "application/json"
	at := func(path string, h http.HandlerFunc, method, summary string, fields []api.Field) apiEndpoint {
		return apiEndpoint{pattern: path, handler: h, refuse: openai.WriteError, Operation: openai.Operation{
			Path: path, Method: method, Summary: summary, Fields: fields, Answer: anyJSON,
		}}
	}
	plain := apiDialect{refuse: openai.WriteError}
	table := []apiEndpoint{
		at("/v1/chat/completions", f.serveGeneration(openAI(api.Chat)), post, "Continue a conversation", openai.Fields(api.Chat)),
		at("/v1/completions", f.serveGeneration(openAI(api.Completion)), post, "Continue a text", openai.Fields(api.Completion)),
		at("/v1/responses", f.serveGeneration(responsesAPI()), post, "Continue a conversation of items", responses.Fields()),
		at("/v1/messages", f.serveGeneration(messagesAPI()), post, "Continue a conversation, as Anthropic's API has it", anthropic.Fields()),
		at("/v1/messages/count_tokens", f.serveText("count_tokens", messagesAPI(), (*apiCall).serveCountTokens), post, "How many tokens a conversation has", anthropic.CountFields()),
		at("/v1/embeddings", f.withAccounting(openAI(api.Embeddings), (*apiCall).serveEmbeddings), post, "Vectors of texts", openai.EmbeddingsFields()),
		at("/tokenize", f.serveText("tokenize", plain, (*apiCall).serveTokenize), post, "The tokens of a prompt or a conversation", openai.TokenizeFields()),
		at("/detokenize", f.serveText("detokenize", plain, (*apiCall).serveDetokenize), post, "The text of tokens", openai.DetokenizeFields()),
		at("/v1/models", f.serveModels, get, "The models that can be asked for", nil),
		at("/v1/models/{id}", f.serveModel, get, "One model", nil),
		at("/health", f.serveHealth, get, "Whether requests can be served, each model's status and reason, and by which workers", nil),
		at("/ready", f.serveReady, get, "Whether requests can be served, each model's status and reason", nil),
		at("/live", readiness.ServeLive, get, "Whether the process runs", nil),
		at("/metrics", f.deps.Metrics.Handler().ServeHTTP, get, "Metrics for Prometheus", nil),
		at("/openapi.json", f.serveOpenAPI, get, "This description", nil),
	}
	for i := range table {
		switch e := &table[i]; e.Path {
		case "/v1/models/{id}":
			e.pattern, e.Params = "/v1/models/{id...}", []string{"id"}
		case "/v1/responses":
			e.Schema, e.Events = responses.Schema(), responses.EventSchema()
		case "/v1/messages", "/v1/messages/count_tokens":
			e.Error, e.refuse = anthropic.ErrorSchema, anthropic.WriteError
			if e.Schema, e.Events = anthropic.MessageSchema(), anthropic.EventSchema(); e.Path != "/v1/messages" {
				e.Schema, e.Events = anthropic.CountSchema(), ""
			}
		case "/metrics":
			e.Answer = "text/plain"
			if e.audience = keyAdmins; f.cfg.OpenMetrics {
				e.audience = allClients
			}
		case "/health", "/ready", "/live":
			e.audience = allClients
		}
	}
	return table
}

// serveOpenAPI describes the frontend's own endpoints; mounted handlers have documents of their own.
func (f *Frontend) serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	table := f.endpointTable()
	ops := make([]openai.Operation, len(table))
	for i := range table {
		ops[i] = table[i].Operation
	}
	writeJSON(w, http.StatusOK, append(openai.AppendOpenAPI(nil, "1", ops), '\n'))
}
