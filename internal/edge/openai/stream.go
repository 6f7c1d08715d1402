package openai

import (
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// answerOptions says how the answer of one request is printed.
type answerOptions struct {
	head     *api.Head
	endpoint api.Endpoint
	// includeUsage says that the stream ends with a usage chunk. With eachUsage, every other chunk has the
	// usage of its choice so far, else null.
	includeUsage, eachUsage bool
	// alternatives is the number of alternatives requested for each token; 0 also if no log-probabilities
	// were requested.
	alternatives int
}

// NewWriter returns a writer of the answer to a request, streamed or whole.
func NewWriter(q *api.Request, h *api.Head) api.Writer {
	f := answerOptions{head: h, endpoint: q.Endpoint, includeUsage: q.IncludeUsage, eachUsage: q.ContinuousUsage, alternatives: max(0, q.Logprobs)}
	if q.Stream {
		return &streamWriter{answerOptions: f}
	}
	return &bodyWriter{answerOptions: f}
}

// streamWriter prints an answer chunk by chunk.
type streamWriter struct {
	answerOptions
	opening []byte // start of every chunk, built by the first
}

// Append implements api.Writer. It allocates only if dst must grow.
func (s *streamWriter) Append(dst []byte, c *api.Chunk) []byte {
	if c.Kind == api.CallEnd || c.Kind == api.Usage && !s.includeUsage && !c.Ext.IsQuery() {
		return dst // these have no chunk in this API
	}
	dst = append(dst, "data: "...)
	dst = s.appendChunk(dst, c)
	return append(dst, "\n\n"...)
}

// End implements api.Writer.
func (s *streamWriter) End(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

// Fail implements api.Writer.
func (s *streamWriter) Fail(dst []byte, err error) []byte { return AppendErrorEvent(dst, err) }

// appendChunk appends c as one JSON object.
func (s *streamWriter) appendChunk(dst []byte, c *api.Chunk) []byte {
	if s.opening == nil {
		object := "chat.completion.chunk"
		if s.endpoint == api.Completion {
			object = "text_completion"
		}
		s.opening = s.appendOpening(nil, object)
	}
	dst = append(dst, s.opening...)
	switch {
	case c.Kind == api.Usage:
		dst = append(dst, ']')
		if s.includeUsage {
			dst = appendUsage(append(dst, `,"usage":`...), c.Tokens)
		}
		dst = api.AppendExt(dst, c.Ext)
	case s.includeUsage: // the usage chunk has the ext
		dst = s.appendChoice(dst, c)
		dst = append(dst, `],"usage":`...)
		dst = s.appendUsageSoFar(dst, c)
	default:
		dst = s.appendChoice(dst, c)
		dst = append(dst, ']')
		dst = api.AppendExt(dst, c.Ext)
	}
	return append(dst, '}')
}

// appendOpening appends the start of an answer, up to and including the bracket which opens its choices.
func (f *answerOptions) appendOpening(dst []byte, object string) []byte {
	prefix := "chatcmpl-"
	if f.endpoint == api.Completion {
		prefix = "cmpl-"
	}
	dst = strictjson.AppendMember(dst, `{"id":`, prefix+f.head.ID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = strictjson.AppendInt(dst, `","created":`, int(f.head.Created))
	dst = strictjson.AppendMember(dst, `,"model":`, f.head.Model)
	dst = strictjson.AppendOptional(dst, `,"system_fingerprint":`, f.head.Fingerprint)
	return append(dst, `,"choices":[`...)
}

func (f *answerOptions) appendChoice(dst []byte, c *api.Chunk) []byte {
	dst = strictjson.AppendInt(dst, `{"index":`, c.Choice)
	if f.endpoint == api.Completion {
		dst = strictjson.AppendMember(dst, `,"text":`, c.Text)
	} else {
		dst = append(dst, `,"delta":{`...)
		dst = appendDelta(dst, c)
		dst = append(dst, '}')
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case c.Logprobs == nil:
		dst = append(dst, "null"...)
	case f.endpoint == api.Completion:
		dst = f.appendCompletionLogprobs(dst, c.Logprobs)
	default:
		dst = append(dst, `{"content":[`...)
		dst = appendChatLogprobs(dst, c.Logprobs)
		dst = append(dst, `],"refusal":null}`...)
	}
	dst = append(dst, `,"finish_reason":`...)
	dst = appendFinishReason(dst, c.Reason)
	return append(dst, '}')
}

// appendDelta appends the members of a chat chunk's delta.
func appendDelta(dst []byte, c *api.Chunk) []byte {
	switch c.Kind {
	case api.Role:
		return append(dst, `"role":"assistant","content":""`...)
	case api.Text:
		return strictjson.AppendMember(dst, `"content":`, c.Text)
	case api.Reasoning:
		return strictjson.AppendMember(dst, `"reasoning_content":`, c.Text)
	case api.CallBegin:
		dst = appendCallIndex(dst, c.Call)
		dst = strictjson.AppendMember(dst, `,"id":`, c.CallID)
		dst = strictjson.AppendMember(dst, `,"type":"function","function":{"name":`, c.Name)
		return append(dst, `,"arguments":""}}]`...)
	case api.Arguments:
		dst = appendCallIndex(dst, c.Call)
		dst = strictjson.AppendMember(dst, `,"function":{"arguments":`, c.Text)
		return append(dst, `}}]`...)
	}
	return dst
}

func appendCallIndex(dst []byte, call int) []byte {
	return strictjson.AppendInt(dst, `"tool_calls":[{"index":`, call)
}

func appendFinishReason(dst []byte, r api.FinishReason) []byte {
	switch r {
	case api.ReasonStop:
		return append(dst, `"stop"`...)
	case api.ReasonLength:
		return append(dst, `"length"`...)
	case api.ReasonCalls:
		return append(dst, `"tool_calls"`...)
	}
	return append(dst, "null"...)
}

// appendUsageSoFar appends the token counts of c's choice. As in vLLM, only the usage chunk has the cached
// tokens: an engine may report them last.
func (s *streamWriter) appendUsageSoFar(dst []byte, c *api.Chunk) []byte {
	if !s.eachUsage {
		return append(dst, "null"...)
	}
	t := c.Tokens
	t.Cached = api.CachedUnknown
	return appendUsage(dst, t)
}

func appendUsage(dst []byte, t api.TokenCounts) []byte {
	dst = strictjson.AppendInt(dst, `{"prompt_tokens":`, t.Prompt)
	dst = strictjson.AppendInt(dst, `,"completion_tokens":`, t.Completion)
	dst = strictjson.AppendInt(dst, `,"total_tokens":`, t.Prompt+t.Completion)
	if t.Cached != api.CachedUnknown {
		dst = strictjson.AppendInt(dst, `,"prompt_tokens_details":{"cached_tokens":`, t.Cached)
		dst = append(dst, '}')
	}
	dst = strictjson.AppendInt(dst, `,"completion_tokens_details":{"reasoning_tokens":`, t.Reasoning)
	return append(dst, `}}`...)
}

// AppendErrorEvent appends the event which ends a failed stream.
func AppendErrorEvent(dst []byte, err error) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, err)
	return append(dst, "\n\n"...)
}

// AppendAnnotationEvents appends the events at the start of a stream whose request has annotations. Each has
// the annotation's name, and its value in a comment. As in Dynamo, each value is a JSON string, even that of
// token_ids, whose text is an array.
func AppendAnnotationEvents(dst []byte, a *api.Annotated) []byte {
	if a.RequestID != "" {
		dst = appendAnnotation(dst, api.RequestID, a.RequestID)
	}
	if a.Prompt != nil {
		dst = appendAnnotation(dst, api.FormattedPrompt, *a.Prompt)
	}
	if a.Tokens != nil {
		dst = appendAnnotation(dst, api.TokenIDs, string(strictjson.AppendTokens(nil, a.Tokens)))
	}
	return dst
}

func appendAnnotation(dst []byte, name, value string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = strictjson.AppendString(append(dst, "\n: "...), value)
	return append(dst, "\n\n"...)
}

// AppendMetricsEvent appends the event for llm_metrics, the last one of a stream.
func AppendMetricsEvent(dst []byte, m *api.Metrics) []byte {
	dst = m.Append(append(dst, "event: "+api.LLMMetrics+"\n: "...))
	return append(dst, "\n\n"...)
}

// AppendQueryEvents appends the two events which answer the annotation query_instance_id in a stream: the
// worker and the prompt's tokens. Each is a named event with its value in a comment, as Dynamo's clients read
// it.
func AppendQueryEvents(dst []byte, q *api.QueryAnswer) []byte {
	dst = append(dst, "event: worker_instance_id\n: \""...)
	dst = strconv.AppendUint(dst, uint64(q.Worker.ID), 10)
	dst = append(dst, "\"\n\nevent: token_data\n: "...)
	dst = strictjson.AppendTokens(dst, q.Tokens)
	return append(dst, "\n\n"...)
}
