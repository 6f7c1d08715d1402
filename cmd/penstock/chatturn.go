package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// conversation is a series of questions to one model, each sent with the messages before it. It is not safe
// for concurrent use.
type conversation struct {
	client          *apiClient
	model           string
	options         map[string]any // further fields of each request
	initialMessages []chatMessage  // initial messages of every conversation
	messages        []chatMessage  // so far, with the initial ones
	out, errs       io.Writer
	asJSON          bool
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatAnswer is one response, as --json prints it.
type chatAnswer struct {
	Model            string  `json:"model"`
	Text             string  `json:"text"`
	Reasoning        string  `json:"reasoning,omitempty"`
	FinishReason     *string `json:"finish_reason"` // nil if the response was stopped
	WorkerID         uint64  `json:"worker_id,omitempty"`
	Attempts         int     `json:"attempts,omitempty"`
	PromptTokens     *int    `json:"prompt_tokens"` // this and the next two are nil if the server does not report them
	CachedTokens     *int    `json:"cached_tokens"`
	CompletionTokens *int    `json:"completion_tokens"`
	FirstMS          float64 `json:"ttft_ms"` // 0 if no token arrived
	TotalMS          float64 `json:"e2e_ms"`
}

// errOutput is the error of a failed write to standard output.
var errOutput = errors.New("standard output")

// errInterrupted is the error of a response which the user stopped.
var errInterrupted = errors.New("interrupted")

// askQuestion sends a question and prints the response. The text of a response which failed or was stopped
// stays in the conversation; a question without any response text does not.
func (c *conversation) askQuestion(ctx context.Context, question string) error {
	messages := append(slices.Clip(c.messages), chatMessage{"user", question})
	t := chatAnswer{Model: c.model}
	p := c.newPrinter()
	err := c.streamAnswer(ctx, messages, &t, p)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if t.Text != "" {
		c.messages = append(messages, chatMessage{"assistant", t.Text})
	}
	if endErr := p.finishLines(); err == nil {
		err = endErr
	}
	if err != nil {
		return err
	}
	if c.asJSON {
		return json.NewEncoder(c.out).Encode(&t)
	}
	fmt.Fprintln(c.errs, t.statsLine(p.dim))
	return nil
}

// chatChunk holds the fields which are read of one event of a response.
type chatChunk struct {
	Choices []struct {
		Delta struct {
			Content          string `json:"content"`
			ReasoningContent string `json:"reasoning_content"`
			Reasoning        string `json:"reasoning"` // other servers' name of the field
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     *int `json:"prompt_tokens"`
		CompletionTokens *int `json:"completion_tokens"`
		Details          struct {
			CachedTokens *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Ext struct {
		Workers []struct {
			WorkerID uint64 `json:"worker_id"`
		} `json:"workers"`
	} `json:"nvext"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// streamAnswer sends the messages and prints the response while it fills t.
func (c *conversation) streamAnswer(ctx context.Context, messages []chatMessage, t *chatAnswer, p *answerPrinter) error {
	began := time.Now()
	body := maps.Clone(c.options)
	body["model"], body["messages"], body["stream"] = c.model, messages, true
	body["stream_options"] = map[string]bool{"include_usage": true}
	resp, err := c.client.sendRequest(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	t.WorkerID, _ = strconv.ParseUint(resp.Header.Get("x-penstock-worker"), 10, 64)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventLine)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if data = strings.TrimSpace(data); !ok || data == "" {
			continue // comments and blank lines of the stream
		}
		t.TotalMS = milliseconds(time.Since(began))
		if data == "[DONE]" {
			return nil
		}
		var ch chatChunk
		if err := json.Unmarshal([]byte(data), &ch); err != nil {
			return fmt.Errorf("%s: the answer is not what this version expects: %s", c.client.server, describeDecodeError(err))
		}
		if err := t.applyChunk(&ch, p); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the answer of %s broke off: %w", c.client.server, err)
	}
	return fmt.Errorf("the answer of %s broke off: ask again", c.client.server)
}

// describeDecodeError says what is wrong with an event, without naming Go types.
func describeDecodeError(err error) string {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Sprintf("%s is a JSON %s", cmp.Or(wrong.Field, "an event"), wrong.Value)
	}
	return err.Error()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// applyChunk adds one event to the response.
func (t *chatAnswer) applyChunk(ch *chatChunk, p *answerPrinter) error {
	if ch.Error != nil {
		return errors.New(ch.Error.Message)
	}
	if u := ch.Usage; u != nil {
		t.PromptTokens, t.CompletionTokens, t.CachedTokens = u.PromptTokens, u.CompletionTokens, u.Details.CachedTokens
	}
	if n := len(ch.Ext.Workers); n > 0 {
		t.WorkerID, t.Attempts = ch.Ext.Workers[n-1].WorkerID, n
	}
	for i := range ch.Choices {
		choice := &ch.Choices[i]
		if choice.FinishReason != nil {
			t.FinishReason = choice.FinishReason
		}
		reasoning, text := choice.Delta.ReasoningContent+choice.Delta.Reasoning, choice.Delta.Content
		if t.FirstMS == 0 && reasoning+text != "" {
			t.FirstMS = t.TotalMS
		}
		if len(t.Reasoning)+len(t.Text)+len(reasoning)+len(text) > maxMessageBytes {
			return fmt.Errorf("the answer has more than %d bytes: limit it with --max-tokens", maxMessageBytes)
		}
		t.Reasoning += reasoning
		t.Text += text
		if err := p.printDelta(reasoning, text); err != nil {
			return err
		}
	}
	return nil
}

// statsLine returns the line which follows a response.
func (t *chatAnswer) statsLine(dim bool) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if t.WorkerID != 0 {
		add("worker %d", t.WorkerID)
	}
	if t.Attempts > 1 {
		add("%d attempts", t.Attempts)
	}
	if t.PromptTokens != nil {
		cached := "unknown how many"
		if t.CachedTokens != nil {
			cached = strconv.Itoa(*t.CachedTokens)
		}
		add("%s of %d prompt tokens cached", cached, *t.PromptTokens)
	}
	if t.CompletionTokens != nil {
		add("%d tokens in %.2f s, the first after %.2f s", *t.CompletionTokens, t.TotalMS/1000, t.FirstMS/1000)
	}
	if t.FinishReason != nil && *t.FinishReason == "length" {
		add("cut at the length limit")
	}
	line := "[" + strings.Join(parts, " · ") + "]"
	if dim {
		return "\x1b[2m" + line + "\x1b[0m"
	}
	return line
}

// answerPrinter prints a response as it arrives: text to standard output, reasoning to standard error.
type answerPrinter struct {
	out, errs     io.Writer
	quiet         bool // print nothing
	dim           bool // reasoning and remarks are dimmed
	outIsTerminal bool // out is a terminal: control characters are escaped
	inReasoning   bool // the last output was reasoning
	lineOpen      bool // the last line of text has no line end yet
}

func (c *conversation) newPrinter() *answerPrinter {
	return &answerPrinter{out: c.out, errs: c.errs, quiet: c.asJSON, dim: isTerminal(c.errs), outIsTerminal: isTerminal(c.out)}
}

// printDelta prints new reasoning and text. The error is that of standard output.
func (p *answerPrinter) printDelta(reasoning, text string) error {
	if p.quiet {
		return nil
	}
	if reasoning != "" {
		if !p.inReasoning {
			p.inReasoning = true
			p.printStyled("\x1b[2m", "(reasoning) ")
		}
		if p.dim {
			reasoning = escapeControls(reasoning)
		}
		fmt.Fprint(p.errs, reasoning)
	}
	if text == "" {
		return nil
	}
	p.endReasoning()
	if p.outIsTerminal {
		text = escapeControls(text)
	}
	p.lineOpen = !strings.HasSuffix(text, "\n")
	return p.writeText(text)
}

func (p *answerPrinter) writeText(text string) error {
	if _, err := io.WriteString(p.out, text); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

// finishLines ends the lines which are open.
func (p *answerPrinter) finishLines() error {
	p.endReasoning()
	if !p.lineOpen {
		return nil
	}
	p.lineOpen = false
	return p.writeText("\n")
}

func (p *answerPrinter) endReasoning() {
	if p.inReasoning {
		p.inReasoning = false
		p.printStyled("\x1b[0m\n\n", "\n")
	}
}

// printStyled writes one of two strings to standard error: the first on a terminal, the second elsewhere.
func (p *answerPrinter) printStyled(terminal, elsewhere string) {
	if p.dim {
		elsewhere = terminal
	}
	fmt.Fprint(p.errs, elsewhere)
}

// escapeControls returns s with its control characters, except line feeds and tabs, escaped: a model's output
// must not control the terminal.
func escapeControls(s string) string {
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	if strings.IndexFunc(s, control) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !control(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
