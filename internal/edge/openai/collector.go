package openai

import "strconv"

// Collector folds the chunks of one answer into the whole answer. Its zero value
// with a Head is empty and ready.
type Collector struct {
	Head    Head
	choices []collected
	tokens  TokenCounts
	ext     *AnswerExt
}

// collected is one choice so far. Log-probabilities are kept as the JSON that
// they become: elements of chat's one array, or of the four of completions.
type collected struct {
	text     []byte
	reason   string
	logprobs bool
	arrays   [4][]byte
}

// Add takes the next chunk. It keeps nothing of it but its Ext.
func (c *Collector) Add(k *Chunk) {
	if k.Ext != nil {
		c.ext = k.Ext
	}
	if k.Kind == Usage {
		c.tokens = k.Tokens
		return
	}
	for len(c.choices) <= k.Choice {
		c.choices = append(c.choices, collected{})
	}
	choice := &c.choices[k.Choice]
	choice.text = append(choice.text, k.Text...)
	if k.Kind == Finish {
		choice.reason = k.Reason
	}
	if k.Logprobs != nil {
		choice.addLogprobs(c.Head.Endpoint, k.Logprobs)
	}
}

func (c *collected) addLogprobs(endpoint Endpoint, lps []Logprob) {
	c.logprobs = true
	appenders := [...]func([]byte, []Logprob) []byte{appendTokenTexts, appendTokenLogprobs, appendTops, appendOffsets}
	if endpoint == Chat {
		c.extend(0, lps, appendChatLogprobs)
		return
	}
	for i, appender := range appenders {
		c.extend(i, lps, appender)
	}
}

func (c *collected) extend(i int, lps []Logprob, appender func([]byte, []Logprob) []byte) {
	if len(lps) == 0 {
		return
	}
	if len(c.arrays[i]) > 0 {
		c.arrays[i] = append(c.arrays[i], ',')
	}
	c.arrays[i] = appender(c.arrays[i], lps)
}

// AppendBody appends the whole answer as JSON. A choice whose Finish has not been
// added has a finish_reason of null.
func (c *Collector) AppendBody(dst []byte) []byte {
	object := "chat.completion"
	if c.Head.Endpoint == Completion {
		object = "text_completion"
	}
	dst = c.Head.appendOpening(dst, object)
	for i := range c.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = c.appendChoice(dst, i)
	}
	dst = append(dst, `],"usage":`...)
	dst = appendUsage(dst, c.tokens)
	dst = appendExt(dst, c.ext)
	return append(dst, '}')
}

func (c *Collector) appendChoice(dst []byte, i int) []byte {
	choice := &c.choices[i]
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	if c.Head.Endpoint == Completion {
		dst = append(dst, `,"text":`...)
		dst = appendString(dst, choice.text)
	} else {
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = appendString(dst, choice.text)
		dst = append(dst, `,"refusal":null}`...)
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case !choice.logprobs:
		dst = append(dst, "null"...)
	case c.Head.Endpoint == Chat:
		dst = append(dst, `{"content":[`...)
		dst = append(dst, choice.arrays[0]...)
		dst = append(dst, `],"refusal":null}`...)
	default:
		dst = append(dst, `{"tokens":[`...)
		dst = append(dst, choice.arrays[0]...)
		dst = append(dst, `],"token_logprobs":[`...)
		dst = append(dst, choice.arrays[1]...)
		dst = append(dst, `],"top_logprobs":`...)
		dst = c.appendTops(dst, choice)
		dst = append(dst, `,"text_offset":[`...)
		dst = append(dst, choice.arrays[3]...)
		dst = append(dst, `]}`...)
	}
	dst = append(dst, `,"finish_reason":`...)
	if choice.reason == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, choice.reason)
	}
	return append(dst, '}')
}

func (c *Collector) appendTops(dst []byte, choice *collected) []byte {
	if c.Head.Alternatives == 0 {
		return append(dst, "null"...)
	}
	dst = append(dst, '[')
	dst = append(dst, choice.arrays[2]...)
	return append(dst, ']')
}
