package responses

import (
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// status is the state of a response or of one of its items.
type status string

const (
	inProgress status = "in_progress"
	completed  status = "completed"
	incomplete status = "incomplete"
	failed     status = "failed"
)

// answer is one answer so far: the fold of its chunks, and the log-probabilities of its messages.
type answer struct {
	req  *Request
	head *api.Head
	id   []byte // the id of head as a JSON string without its quotes; nil if not built yet
	fold api.Fold

	// logprobs has for each item the elements of a JSON array, each preceded by a comma.
	logprobs [][]byte
	// waiting are the logprobs of tokens whose text has not come yet.
	waiting []byte
	// fresh is the number of bytes which the last chunk added to the logprobs of the last item.
	fresh int
}

// NewWriter returns a writer of the answer to the request, streamed or whole.
func (q *Request) NewWriter(h *api.Head) api.Writer {
	a := answer{req: q, head: h}
	if q.Stream {
		return &stream{answer: a, run: -1, call: -1}
	}
	return &body{answer: a}
}

// body collects the chunks of one answer and prints the whole answer at its end.
type body struct{ answer }

// Append implements api.Writer. It prints nothing: a whole answer is printed by End.
func (b *body) Append(dst []byte, c *api.Chunk) []byte {
	b.addChunk(c)
	return dst
}

// End implements api.Writer.
func (b *body) End(dst []byte) []byte { return b.appendResponse(dst, b.outcome(), nil) }

// Fail implements api.Writer. Nothing has been printed yet, so the error is the whole answer.
func (b *body) Fail(dst []byte, err error) []byte { return openai.AppendError(dst, err) }

// items returns the items of the answer so far.
func (a *answer) items() []api.AnswerItem {
	if len(a.fold.Choices) == 0 {
		return nil
	}
	return a.fold.Choices[0].Items
}

// addChunk adds the next chunk.
func (a *answer) addChunk(c *api.Chunk) {
	a.fold.AddChunk(c)
	if c.Kind == api.Text {
		a.addLogprobs(c)
		return
	}
	// Tokens without a text were markers, of a tool call for instance.
	a.waiting = a.waiting[:0]
}

// addLogprobs adds the logprobs of a chunk of text to its message. If the message has no text yet, they are kept
// in waiting.
func (a *answer) addLogprobs(c *api.Chunk) {
	a.fresh = 0
	if len(c.Logprobs) == 0 && len(a.waiting) == 0 {
		return
	}
	items := a.items()
	last := len(items) - 1
	if last < 0 || items[last].Kind != api.Text {
		a.waiting = appendLogprobs(a.waiting, c.Logprobs)
		return
	}
	for len(a.logprobs) <= last {
		a.logprobs = append(a.logprobs, nil)
	}
	had := len(a.logprobs[last])
	a.logprobs[last] = append(a.logprobs[last], a.waiting...)
	a.logprobs[last] = appendLogprobs(a.logprobs[last], c.Logprobs)
	a.waiting = a.waiting[:0]
	a.fresh = len(a.logprobs[last]) - had
}

// appendLogprobs appends elements of a JSON array, each preceded by a comma.
func appendLogprobs(dst []byte, lps []api.Logprob) []byte {
	if len(lps) == 0 {
		return dst
	}
	return openai.AppendLogprobs(append(dst, ','), lps)
}

// trimComma returns list, elements of a JSON array each preceded by a comma, without the first comma.
func trimComma(list []byte) []byte {
	if len(list) == 0 {
		return nil
	}
	return list[1:]
}

// logprobsOf returns the log-probabilities of an item as the elements of a JSON array.
func (a *answer) logprobsOf(i int) []byte {
	if i >= len(a.logprobs) {
		return nil
	}
	return trimComma(a.logprobs[i])
}

// outcome returns the status of the answer at its end. The answer to a query has no choice, and is complete.
func (a *answer) outcome() status {
	if len(a.fold.Choices) == 0 {
		return completed
	}
	switch a.fold.Choices[0].Reason {
	case api.ReasonStop, api.ReasonCalls:
		return completed
	}
	return incomplete
}

// itemStatus returns the status of an item at the end of an answer of status s. A call has its own state; of
// the other items, only the last can be incomplete.
func (a *answer) itemStatus(i int, s status) status {
	items := a.items()
	switch {
	case items[i].Kind == api.CallBegin && !items[i].Complete:
		return incomplete
	case items[i].Kind != api.CallBegin && i == len(items)-1 && s != completed:
		return incomplete
	}
	return completed
}

// appendResponse appends the object "response". Before the end it has no items and no usage. failure is its
// object "error"; nil if the answer did not fail.
func (a *answer) appendResponse(dst []byte, s status, failure []byte) []byte {
	dst = append(dst, `{"id":"resp_`...)
	dst = a.appendID(dst)
	dst = strictjson.AppendInt(dst, `","object":"response","created_at":`, int(a.head.Created))
	dst = strictjson.AppendMember(dst, `,"model":`, a.head.Model)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, s...)
	dst = append(dst, `","background":false,"error":`...)
	if failure == nil {
		dst = append(dst, "null"...)
	}
	dst = append(dst, failure...)
	dst = append(dst, `,"incomplete_details":`...)
	if s == incomplete && a.fold.Choices[0].Reason == api.ReasonLength {
		dst = append(dst, `{"reason":"max_output_tokens"}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"output":[`...)
	if s != inProgress {
		dst = a.appendItems(dst, s)
	}
	dst = append(dst, ']')
	dst = a.req.appendEcho(dst)
	dst = append(dst, `,"usage":`...)
	if s == inProgress || s == failed {
		return append(dst, "null}"...)
	}
	dst = appendUsage(dst, a.fold.Tokens)
	dst = api.AppendExt(dst, a.fold.Ext)
	return append(dst, '}')
}

// appendItems appends the items at the end of an answer of status s.
func (a *answer) appendItems(dst []byte, s status) []byte {
	for i := range a.items() {
		dst = strictjson.AppendComma(dst, i)
		dst = a.appendItem(dst, i, a.itemStatus(i, s))
	}
	return dst
}

// appendItem appends an item; an item in progress is empty.
func (a *answer) appendItem(dst []byte, i int, s status) []byte {
	it := &a.items()[i]
	dst = append(dst, `{"id":"`...)
	dst = a.appendItemID(dst, i)
	switch it.Kind {
	case api.Text:
		dst = append(dst, `","type":"message","role":"assistant","content":[`...)
	case api.Reasoning:
		dst = append(dst, `","type":"reasoning","summary":[],"content":[`...)
	default:
		dst = strictjson.AppendMember(dst, `","type":"function_call","call_id":`, it.CallID)
		dst = strictjson.AppendMember(dst, `,"name":`, it.Name)
		dst = append(dst, `,"arguments":`...)
	}
	switch {
	case it.Kind != api.CallBegin:
		if s != inProgress {
			dst = a.appendPart(dst, i, s)
		}
		dst = append(dst, ']')
	case s == inProgress:
		dst = append(dst, `""`...)
	default:
		dst = strictjson.AppendString(dst, it.Text)
	}
	dst = append(dst, `,"status":"`...)
	dst = append(dst, s...)
	return append(dst, `"}`...)
}

// appendPart appends the content of a message or of reasoning, which has one part.
func (a *answer) appendPart(dst []byte, i int, s status) []byte {
	it := &a.items()[i]
	var text, lps []byte
	if s != inProgress {
		text, lps = it.Text, a.logprobsOf(i)
	}
	if it.Kind == api.Reasoning {
		dst = strictjson.AppendMember(dst, `{"type":"reasoning_text","text":`, text)
		return append(dst, '}')
	}
	dst = strictjson.AppendMember(dst, `{"type":"output_text","text":`, text)
	dst = append(dst, `,"annotations":[],"logprobs":[`...)
	dst = append(dst, lps...)
	return append(dst, `]}`...)
}

// appendItemID appends the id of an item, without quotes. It depends only on the id of the request and the
// index of the item.
func (a *answer) appendItemID(dst []byte, i int) []byte {
	switch a.items()[i].Kind {
	case api.Text:
		dst = append(dst, "msg_"...)
	case api.Reasoning:
		dst = append(dst, "rs_"...)
	default:
		dst = append(dst, "fc_"...)
	}
	dst = a.appendID(dst)
	dst = append(dst, '_')
	return strconv.AppendInt(dst, int64(i), 10)
}

// appendID appends the id of the request as a JSON string without its quotes.
func (a *answer) appendID(dst []byte) []byte {
	if a.id == nil {
		quoted := strictjson.AppendString(nil, a.head.ID)
		a.id = quoted[1 : len(quoted)-1]
	}
	return append(dst, a.id...)
}

// appendUsage appends the token counts. cache_write_tokens is 0, since workers do not report it by request;
// clients require the field.
func appendUsage(dst []byte, t api.TokenCounts) []byte {
	dst = strictjson.AppendInt(dst, `{"input_tokens":`, t.Prompt)
	dst = append(dst, `,"input_tokens_details":{`...)
	if t.Cached != api.CachedUnknown {
		dst = strictjson.AppendInt(dst, `"cached_tokens":`, t.Cached)
		dst = append(dst, ',')
	}
	dst = strictjson.AppendInt(dst, `"cache_write_tokens":0},"output_tokens":`, t.Completion)
	dst = strictjson.AppendInt(dst, `,"output_tokens_details":{"reasoning_tokens":`, t.Reasoning)
	dst = strictjson.AppendInt(dst, `},"total_tokens":`, t.Prompt+t.Completion)
	return append(dst, '}')
}
