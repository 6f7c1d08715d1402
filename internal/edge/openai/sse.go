package openai

import (
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

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
