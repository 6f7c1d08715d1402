package responses

import (
	"strconv"

	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/strictjson"
)

// status is how far a response or an item of it has come.
type status string

const (
	inProgress status = "in_progress"
	completed  status = "completed"
	incomplete status = "incomplete"
	failed     status = "failed"
)

// answer is one answer so far: the fold of its chunks, and the log-probabilities
// of its messages.
type answer struct {
	req  *Request
	head *api.Head
	id   []byte // the head's, as the inside of a JSON string
	fold api.Fold

	// logprobs are, by item, elements of a JSON array, each with a comma before it.
	logprobs [][]byte
	// waiting are the logprobs of tokens which came before their text.
	waiting []byte
	// fresh is how many bytes the last chunk added to the last item's.
	fresh int
}

// NewWriter returns what prints the answer of a request: as a stream, or whole.
func (q *Request) NewWriter(h *api.Head) api.Writer {
	a := answer{req: q, head: h}
	if q.Stream {
		return &stream{answer: a, run: -1, call: -1}
	}
	return &body{answer: a}
}

// body collects the chunks of one answer into the whole answer.
type body struct{ answer }

// Append implements api.Writer: a whole answer has nothing to say before its end.
func (b *body) Append(dst []byte, c *api.Chunk) []byte {
	b.add(c)
	return dst
}

// End implements api.Writer.
func (b *body) End(dst []byte) []byte { return b.appendResponse(dst, b.outcome(), nil) }

// Fail implements api.Writer: what is sent whole is not begun before it is complete.
func (b *body) Fail(dst []byte, err error) []byte { return openai.AppendError(dst, err) }

// items are the items of the answer so far.
func (a *answer) items() []api.AnswerItem {
	if len(a.fold.Choices) == 0 {
		return nil
	}
	return a.fold.Choices[0].Items
}

// add takes the next chunk.
func (a *answer) add(c *api.Chunk) {
	a.fold.AddChunk(c)
	if c.Kind == api.Text {
		a.addLogprobs(c)
		return
	}
	// Tokens that had no text were the marks of something else.
	a.waiting = a.waiting[:0]
}

// addLogprobs adds the logprobs of a chunk of text to the message that it is part of.
// Where no text of a message has come yet they wait for it.
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

// appendLogprobs appends elements with a comma before each.
func appendLogprobs(dst []byte, lps []api.Logprob) []byte {
	if len(lps) == 0 {
		return dst
	}
	return openai.AppendLogprobs(append(dst, ','), lps)
}

// elements is the inside of a JSON array of which each element has a comma before it.
func elements(list []byte) []byte {
	if len(list) == 0 {
		return nil
	}
	return list[1:]
}

// logprobsOf are the log-probabilities of an item as the inside of a JSON array.
func (a *answer) logprobsOf(i int) []byte {
	if i >= len(a.logprobs) {
		return nil
	}
	return elements(a.logprobs[i])
}

// outcome is the status of the answer at its end. One that only says where it
// would have gone has no choice, and is complete.
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

// itemStatus is the status of an item at the end of an answer of status s: calls
// know whether they are complete, and of the rest it is the last that was cut.
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

// appendResponse appends the object "response". Before the end it has no items and
// no usage; failure is the object "error" of one that failed.
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

// appendItem appends an item; one in progress is empty.
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

// appendPart appends the one part of a message's or of reasoning's content.
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

// appendItemID appends the id of an item as the inside of a JSON string. It depends
// on the request's id and the item's place alone.
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

// appendID appends the request's id as the inside of a JSON string.
func (a *answer) appendID(dst []byte) []byte {
	if a.id == nil {
		quoted := strictjson.AppendString(nil, a.head.ID)
		a.id = quoted[1 : len(quoted)-1]
	}
	return append(dst, a.id...)
}

// appendUsage appends what the answer cost. How many tokens a worker wrote to its
// cache is not told by request; clients require the field.
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
