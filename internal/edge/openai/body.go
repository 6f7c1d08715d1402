package openai

import (
	"net/http"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// bodyWriter collects the chunks of one answer and prints the whole answer at its end.
type bodyWriter struct {
	answerOptions
	fold     api.Fold
	logprobs []choiceLogprobs // by choice
}

// choiceLogprobs holds the log-probabilities of one choice as JSON array elements: of chat's one array, or of
// the four arrays of completions.
type choiceLogprobs struct {
	given  bool
	arrays [4][]byte
}

// Append implements api.Writer. It prints nothing: a whole answer is printed by End.
func (b *bodyWriter) Append(dst []byte, c *api.Chunk) []byte {
	b.fold.AddChunk(c)
	if c.Logprobs == nil {
		return dst
	}
	for len(b.logprobs) <= c.Choice {
		b.logprobs = append(b.logprobs, choiceLogprobs{})
	}
	b.logprobs[c.Choice].addLogprobs(b.endpoint, c.Logprobs)
	return dst
}

// Fail implements api.Writer. Nothing has been printed yet, so the error is the whole answer.
func (b *bodyWriter) Fail(dst []byte, err error) []byte { return AppendError(dst, err) }

func (c *choiceLogprobs) addLogprobs(endpoint api.Endpoint, lps []api.Logprob) {
	c.given = true
	if endpoint.IsConversation() {
		c.extendArray(0, lps, appendChatLogprobs)
		return
	}
	appenders := [...]func([]byte, []api.Logprob) []byte{appendTokenTexts, appendTokenLogprobs, appendTopLogprobs, appendOffsets}
	for i, appender := range appenders {
		c.extendArray(i, lps, appender)
	}
}

func (c *choiceLogprobs) extendArray(i int, lps []api.Logprob, appender func([]byte, []api.Logprob) []byte) {
	if len(lps) == 0 {
		return
	}
	if len(c.arrays[i]) > 0 {
		c.arrays[i] = append(c.arrays[i], ',')
	}
	c.arrays[i] = appender(c.arrays[i], lps)
}

// End implements api.Writer. A choice without a Finish chunk has a finish_reason of null.
func (b *bodyWriter) End(dst []byte) []byte {
	object := "chat.completion"
	if b.endpoint == api.Completion {
		object = "text_completion"
	}
	dst = b.appendOpening(dst, object)
	for i := range b.fold.Choices {
		dst = strictjson.AppendComma(dst, i)
		dst = b.appendChoice(dst, i)
	}
	dst = append(dst, `],"usage":`...)
	dst = appendUsage(dst, b.fold.Tokens)
	dst = api.AppendExt(dst, b.fold.Ext)
	return append(dst, '}')
}

func (b *bodyWriter) appendChoice(dst []byte, i int) []byte {
	choice := &b.fold.Choices[i]
	dst = strictjson.AppendInt(dst, `{"index":`, i)
	if b.endpoint == api.Completion {
		dst = strictjson.AppendMember(dst, `,"text":`, choice.AppendText(nil, api.Text))
	} else {
		dst = append(dst, `,"message":`...)
		dst = appendMessage(dst, choice)
	}
	dst = append(dst, `,"logprobs":`...)
	if i < len(b.logprobs) && b.logprobs[i].given {
		dst = b.appendLogprobs(dst, &b.logprobs[i])
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":`...)
	dst = appendFinishReason(dst, choice.Reason)
	return append(dst, '}')
}

// appendMessage appends the assistant's message. Its content is null if there are only tool calls.
func appendMessage(dst []byte, choice *api.FoldedChoice) []byte {
	dst = append(dst, `{"role":"assistant","content":`...)
	text := choice.AppendText(nil, api.Text)
	calls := 0
	for i := range choice.Items {
		if choice.Items[i].Kind == api.CallBegin {
			calls++
		}
	}
	if len(text) == 0 && calls > 0 {
		dst = append(dst, "null"...)
	} else {
		dst = strictjson.AppendString(dst, text)
	}
	dst = append(dst, `,"refusal":null`...)
	if thought := choice.AppendText(nil, api.Reasoning); len(thought) > 0 {
		dst = strictjson.AppendMember(dst, `,"reasoning_content":`, thought)
	}
	if calls > 0 {
		dst = append(dst, `,"tool_calls":[`...)
		dst = appendCalls(dst, choice.Items)
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendCalls appends the tool calls among items. Arguments may be incomplete.
func appendCalls(dst []byte, items []api.AnswerItem) []byte {
	n := 0
	for i := range items {
		it := &items[i]
		if it.Kind != api.CallBegin {
			continue
		}
		dst = strictjson.AppendComma(dst, n)
		n++
		dst = api.AppendCall(dst, it.CallID, it.Name, it.Text)
	}
	return dst
}

func (b *bodyWriter) appendLogprobs(dst []byte, c *choiceLogprobs) []byte {
	if b.endpoint.IsConversation() {
		dst = append(dst, `{"content":[`...)
		dst = append(dst, c.arrays[0]...)
		return append(dst, `],"refusal":null}`...)
	}
	dst = append(dst, `{"tokens":[`...)
	dst = append(dst, c.arrays[0]...)
	dst = append(dst, `],"token_logprobs":[`...)
	dst = append(dst, c.arrays[1]...)
	dst = append(dst, `],"top_logprobs":`...)
	if b.alternatives == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '[')
		dst = append(dst, c.arrays[2]...)
		dst = append(dst, ']')
	}
	dst = append(dst, `,"text_offset":[`...)
	dst = append(dst, c.arrays[3]...)
	return append(dst, `]}`...)
}

// AppendError appends err as the API's error object. An error without a *fault.Error in its chain is a
// defect: the client learns only that.
func AppendError(dst []byte, err error) []byte {
	f := api.AsFault(err)
	class := f.Code.Class()
	dst = strictjson.AppendMember(dst, `{"error":{"message":`, f.Message)
	dst = strictjson.AppendMember(dst, `,"type":`, class.Type)
	dst = strictjson.AppendOptional(dst, `,"param":`, f.Param)
	dst = strictjson.AppendMember(dst, `,"code":`, class.Name)
	return append(dst, `}}`...)
}

// WriteError writes err as a whole response: the error object, and its status, from which the official
// clients derive the exception which they raise.
func WriteError(w http.ResponseWriter, err error) {
	f := api.AsFault(err)
	class := f.Code.Class()
	api.SetErrorHeaders(w.Header(), f)
	w.WriteHeader(class.Status)
	// An error here means that the client has disconnected.
	_, _ = w.Write(append(AppendError(nil, f), '\n'))
}

// WriteMethodNotAllowed answers a request whose method the path does not support. The status is 405, which
// has no fault.Code because it concerns only HTTP. allow lists the supported methods.
func WriteMethodNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	h := w.Header()
	h.Set("Allow", allow)
	h.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusMethodNotAllowed)
	err := fault.New(fault.Invalid, "the method %.20s is not allowed here: use %s", r.Method, allow)
	_, _ = w.Write(append(AppendError(nil, err), '\n'))
}
