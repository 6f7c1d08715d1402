package openai

import "strconv"

// AppendEvent appends c as one server-sent event. It allocates only if dst must
// grow.
func (h *Head) AppendEvent(dst []byte, c *Chunk) []byte {
	dst = append(dst, "data: "...)
	dst = h.AppendChunk(dst, c)
	return append(dst, "\n\n"...)
}

// AppendDone appends the event that ends a complete stream.
func AppendDone(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

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
func AppendQueryEvents(dst []byte, q *QueryAnswer) []byte {
	dst = append(dst, "event: worker_instance_id\n: \""...)
	dst = strconv.AppendUint(dst, uint64(q.Worker.ID), 10)
	dst = append(dst, "\"\n\nevent: token_data\n: "...)
	dst = appendTokens(dst, q.Tokens)
	return append(dst, "\n\n"...)
}
