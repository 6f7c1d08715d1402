package openai

import (
	"strconv"

	"penstock/internal/edge/api"
)

// AppendErrorEvent appends the event that ends a broken stream.
func AppendErrorEvent(dst []byte, err error) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, err)
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
