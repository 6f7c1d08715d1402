package openai

import (
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// AppendErrorEvent appends the event that ends a broken stream.
func AppendErrorEvent(dst []byte, err error) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, err)
	return append(dst, "\n\n"...)
}

// AppendAnnotationEvents appends the events that open a stream whose request has annotations: each
// has the annotation's name, and its value as a comment. The value of each is a JSON string, also of
// token_ids, whose text is an array: so Dynamo writes them.
func AppendAnnotationEvents(dst []byte, a *api.Annotated) []byte {
	if a.RequestID != "" {
		dst = appendAnnotation(dst, api.RequestID, a.RequestID)
	}
	if a.Prompt != nil {
		dst = appendAnnotation(dst, api.FormattedPrompt, *a.Prompt)
	}
	if a.Tokens != nil {
		dst = appendAnnotation(dst, api.TokenIDs, string(api.AppendTokens(nil, a.Tokens)))
	}
	return dst
}

func appendAnnotation(dst []byte, name, value string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = strictjson.AppendString(append(dst, "\n: "...), value)
	return append(dst, "\n\n"...)
}

// AppendMetricsEvent appends the event that answers llm_metrics after all else.
func AppendMetricsEvent(dst []byte, m *api.Metrics) []byte {
	dst = m.Append(append(dst, "event: "+api.LLMMetrics+"\n: "...))
	return append(dst, "\n\n"...)
}

// AppendQueryEvents appends the two events that answer the annotation
// query_instance_id in a stream: the worker and the prompt's tokens, each as a
// named event whose value is a comment, which is the form that clients of the
// annotation read.
func AppendQueryEvents(dst []byte, q *api.QueryAnswer) []byte {
	dst = append(dst, "event: worker_instance_id\n: \""...)
	dst = strconv.AppendUint(dst, uint64(q.Worker.ID), 10)
	dst = append(dst, "\"\n\nevent: token_data\n: "...)
	dst = api.AppendTokens(dst, q.Tokens)
	return append(dst, "\n\n"...)
}
