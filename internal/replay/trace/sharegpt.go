package trace

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"penstock/internal/replay"
	"penstock/internal/strictjson"
)

// maxTurns bounds the turns of a conversation: the prompt of each is the whole conversation before it.
const maxTurns = 1 << 14

// shareGPTDecoder reads the ShareGPT files. Each assistant turn is the response of a request whose prompt is
// the conversation before it; the requests of a conversation are a session without times. It keeps one
// conversation in memory.
type shareGPTDecoder struct {
	stream  elementReader
	skipped int

	session  string
	line     int // first line of the conversation
	turns    []chatTurn
	at       int    // index of the next turn
	given    bool   // it is a response whose request was returned
	asked    bool   // there is a user turn
	messages []byte // the conversation before that turn, as a JSON array without its end
	number   int    // of conversations so far
}

// chatTurn is one message.
type chatTurn struct {
	role, text string
}

func (d *shareGPTDecoder) failedRows() int { return d.skipped }

func (d *shareGPTDecoder) nextRow(r *replay.Request) error {
	for {
		for ; d.at < len(d.turns); d.at++ {
			if d.isAnswer() {
				d.makeRequest(r)
				return nil
			}
			d.appendTurn()
		}
		if err := d.readConversation(); err == io.EOF {
			return err
		} else if err != nil {
			return errorAtLine(d.line, fmt.Errorf("conversation %d: %w", d.number, jsonError("it", err)))
		}
	}
}

// isAnswer reports whether the next turn is a response which makes a request.
func (d *shareGPTDecoder) isAnswer() bool {
	t := &d.turns[d.at]
	switch {
	case t.role != "assistant" || !d.asked || d.given:
		return false
	case t.text == "":
		d.skipped++
		return false
	}
	return true
}

// makeRequest makes the request whose response is the next turn. That turn overwrites the end of its messages
// when the next request is read.
func (d *shareGPTDecoder) makeRequest(r *replay.Request) {
	d.messages = append(d.messages, ']')
	*r = replay.Request{
		Line:     d.line,
		At:       unknownTime,
		Session:  d.session,
		Input:    replay.CountTextTokens(len(d.messages)),
		Output:   replay.CountTextTokens(len(d.turns[d.at].text)),
		Messages: d.messages,
	}
	d.messages = d.messages[:len(d.messages)-1]
	d.given = true
}

// appendTurn appends the next turn to the messages. Leading assistant turns, whose question is missing, are
// dropped: no model was asked to continue from them.
func (d *shareGPTDecoder) appendTurn() {
	t := &d.turns[d.at]
	d.given = false
	if t.role == "assistant" && !d.asked {
		return
	}
	d.asked = d.asked || t.role == "user"
	separator := byte(',')
	if len(d.messages) == 0 {
		separator = '['
	}
	d.messages = append(d.messages, separator)
	d.messages = append(d.messages, `{"role":"`...)
	d.messages = append(d.messages, t.role...)
	d.messages = append(d.messages, `","content":`...)
	d.messages = strictjson.AppendString(d.messages, t.text)
	d.messages = append(d.messages, '}')
}

// readConversation reads the next conversation.
func (d *shareGPTDecoder) readConversation() error {
	clear(d.turns)
	d.turns, d.messages = d.turns[:0], d.messages[:0]
	d.at, d.given, d.asked = 0, false, false
	d.number++
	element, line, err := d.stream.nextElement()
	if d.line = line; err != nil {
		return err
	}
	d.session = "conversation " + strconv.Itoa(d.number)
	json, err := strictjson.NewReader(element)
	if err != nil {
		return err
	}
	there := false
	err = json.ReadObject(func(key string) error {
		if key != "conversations" {
			return json.SkipValue() // variants of the format have other, undocumented keys
		}
		there = true
		return json.ReadArray("an array of turns", func(int) error { return d.readTurn(json) })
	})
	if err == nil && !there {
		err = errors.New("lacks 'conversations', its turns")
	}
	return err
}

// readTurn reads one message.
func (d *shareGPTDecoder) readTurn(json *strictjson.Reader) error {
	if len(d.turns) == maxTurns {
		return json.ParentInvalidError("has more than %d turns", maxTurns)
	}
	var t chatTurn
	var from, value bool
	err := json.ReadObject(func(key string) (err error) {
		switch key {
		case "from":
			from = true
			t.role, err = readRole(json)
		case "value":
			value = true
			t.text, err = json.ReadString()
		default:
			err = json.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !from || !value:
		return json.InvalidError("must have 'from' and 'value'")
	}
	d.turns = append(d.turns, t)
	return nil
}

// readRole reads the speaker, as a role of the Chat Completions API.
func readRole(json *strictjson.Reader) (string, error) {
	speaker, err := json.ReadString()
	if err != nil {
		return "", err
	}
	switch speaker {
	case "human", "user":
		return "user", nil
	case "gpt", "assistant", "chatgpt", "bing", "bard", "model":
		return "assistant", nil
	case "system":
		return "system", nil
	}
	return "", fmt.Errorf("'%s' must be human, gpt or system (or user, assistant, chatgpt, bing, bard, model), not a text of %d characters", json.ParamPath(), len(speaker))
}
