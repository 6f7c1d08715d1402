package interop

import (
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"
)

func chatTools(t *testing.T) (tools []openai.ChatCompletionToolUnionParam) {
	for _, f := range functions(t) {
		tools = append(tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: f.Name, Description: openai.String(f.Description), Parameters: f.Parameters,
		}))
	}
	return tools
}

func jsonSchema(t *testing.T) openai.ChatCompletionNewParamsResponseFormatUnion {
	return openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "weather", Schema: schema(t), Strict: openai.Bool(true)},
	}}
}

func chatChoice(name string) openai.ChatCompletionToolChoiceOptionUnionParam {
	if name == "required" {
		return openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String(name)}
	}
	return openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: name})
}

func chatParams(t *testing.T, r *recording) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: r.model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(r.prompt())}}
	if r.Schema {
		p.ResponseFormat = jsonSchema(t)
		return p
	}
	p.Tools = chatTools(t)
	if r.ToolChoice != "" {
		p.ToolChoice = chatChoice(r.ToolChoice)
	}
	if r.Parallel != nil {
		p.ParallelToolCalls = openai.Bool(*r.Parallel)
	}
	p.ReasoningEffort = shared.ReasoningEffort(r.Effort)
	return p
}

// extra returns a text that is not among the client's fields.
func extra(fields map[string]respjson.Field) (text string) {
	if raw := fields["reasoning_content"].Raw(); raw != "" && raw != "null" {
		if err := json.Unmarshal([]byte(raw), &text); err != nil {
			return "not a text: " + raw
		}
	}
	return text
}

func ofCompletion(c *openai.ChatCompletion) answer {
	m := c.Choices[0].Message
	a := answer{Reasoning: extra(m.JSON.ExtraFields), Content: m.Content, Finish: c.Choices[0].FinishReason}
	for _, t := range m.ToolCalls {
		a.Calls = append(a.Calls, call{t.Function.Name, t.Function.Arguments, t.ID})
	}
	return a
}

// ofStream reads a stream through the client's accumulator, and reasoning beside it.
func ofStream(t *testing.T, stream *ssestream.Stream[openai.ChatCompletionChunk]) (answer, openai.ChatCompletionAccumulator) {
	t.Helper()
	var acc openai.ChatCompletionAccumulator
	reasoning, finished := "", 0
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			t.Fatalf("a chunk that does not fit the ones before: %s", chunk.RawJSON())
		}
		for _, c := range chunk.Choices {
			reasoning += extra(c.Delta.JSON.ExtraFields)
		}
		if _, ok := acc.JustFinishedToolCall(); ok {
			finished++
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(acc.Choices) == 0 {
		t.Fatal("no choices")
	}
	a := ofCompletion(&acc.ChatCompletion)
	a.Reasoning = reasoning
	if finished != len(a.Calls) {
		t.Errorf("%d calls, the accumulator saw %d finish", len(a.Calls), finished)
	}
	return a, acc
}

func TestRecordedChat(t *testing.T) {
	client := recorded(t)
	eachRecording(t, func(t *testing.T, r *recording) {
		c, err := client.Chat.Completions.New(t.Context(), chatParams(t, r))
		if err != nil {
			t.Fatal(err)
		}
		whole := ofCompletion(c)
		r.check(t, whole)
		streamed, _ := ofStream(t, client.Chat.Completions.NewStreaming(t.Context(), chatParams(t, r)))
		wantSame(t, "stream", streamed, whole)
	})
}

func TestRecordedChatTruncated(t *testing.T) {
	client := recorded(t)
	p := chatParams(t, recordingOf(t, "hermes", "parallel"))
	p.MaxCompletionTokens = openai.Int(150)
	c, err := client.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	whole := ofCompletion(c)
	if whole.Finish != "length" || len(whole.Calls) != 2 || !strings.HasPrefix(whole.Calls[1].Arguments, `{"steps": ["open`) || strings.HasSuffix(whole.Calls[1].Arguments, "}") {
		t.Errorf("%+v", whole)
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	wantSame(t, "stream", ofCompletion(&acc.ChatCompletion), whole)
}

// TestRecordedChatToolResult: the result goes back, and says what is played next.
func TestRecordedChatToolResult(t *testing.T) {
	client := recorded(t)
	for _, model := range []string{"hermes", "qwen3", "deepseek-r1", "gpt-oss", "llama3"} {
		t.Run(model, func(t *testing.T) {
			p := chatParams(t, recordingOf(t, model, "call"))
			c, err := client.Chat.Completions.New(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			m := c.Choices[0].Message
			p.Messages = append(p.Messages, m.ToParam())
			for _, called := range m.ToolCalls {
				p.Messages = append(p.Messages, openai.ToolMessage("22 °C; play:text", called.ID))
			}
			if c, err = client.Chat.Completions.New(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			recordingOf(t, model, "text").check(t, ofCompletion(c))
		})
	}
}

func TestRecordedCompletions(t *testing.T) {
	client := recorded(t)
	p := openai.CompletionNewParams{Model: "hermes", MaxTokens: openai.Int(500), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("play:markup")}}
	want := recordingOf(t, "hermes", "markup").Content
	c, err := client.Completions.New(t.Context(), p)
	if err != nil || c.Choices[0].Text != want {
		t.Fatalf("%+v, %v", c, err)
	}
	var text strings.Builder
	stream := client.Completions.NewStreaming(t.Context(), p)
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			text.WriteString(choice.Text)
		}
	}
	if err := stream.Err(); err != nil || text.String() != want {
		t.Errorf("streamed %q, %v", text.String(), err)
	}
}

// TestRecordedFailures: before the answer has begun an error has a status, behind
// that it is an event of the stream.
func TestRecordedFailures(t *testing.T) {
	client := recorded(t)
	for name, want := range map[string]struct {
		status int
		code   string
	}{"broken": {500, "internal_error"}, "lost": {503, "unavailable"}, "refused": {503, "overloaded"}} {
		t.Run(name, func(t *testing.T) {
			p := openai.ChatCompletionNewParams{Model: "hermes", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("play:" + name)}}
			_, err := client.Chat.Completions.New(t.Context(), p)
			if e := wantError(t, err, want.status); e.Code != want.code {
				t.Errorf("code %q, want %q", e.Code, want.code)
			}
			text := ""
			stream := client.Chat.Completions.NewStreaming(t.Context(), p)
			for stream.Next() {
				text += stream.Current().Choices[0].Delta.Content
			}
			if name == "refused" {
				wantError(t, stream.Err(), want.status)
				return
			}
			var broken *ssestream.StreamError
			if !errors.As(stream.Err(), &broken) || !strings.Contains(broken.Message, want.code) || !strings.HasPrefix(text, "This a") {
				t.Errorf("text %q, then %v", text, stream.Err())
			}
		})
	}
}

func TestErrorsAreTyped(t *testing.T) {
	for name, server := range map[string]struct {
		client openai.Client
		model  string
	}{"up": {up(t), upModel}, "recorded": {recorded(t), "hermes"}} {
		t.Run(name, func(t *testing.T) {
			ask := func(change func(*openai.ChatCompletionNewParams)) error {
				p := openai.ChatCompletionNewParams{Model: server.model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("play:text")}, MaxTokens: openai.Int(4)}
				change(&p)
				_, err := server.client.Chat.Completions.New(t.Context(), p)
				return err
			}
			err := ask(func(p *openai.ChatCompletionNewParams) { p.Model = "no-such-model" })
			if e := wantError(t, err, 404); !strings.Contains(e.Message, "no-such-model") {
				t.Errorf("message %q", e.Message)
			}
			for param, change := range map[string]func(*openai.ChatCompletionNewParams){
				"temperature": func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(9) },
				"messages":    func(p *openai.ChatCompletionNewParams) { p.Messages = []openai.ChatCompletionMessageParamUnion{} },
				"tool_choice.function.name": func(p *openai.ChatCompletionNewParams) {
					p.Tools, p.ToolChoice = chatTools(t), chatChoice("no_such_tool")
				},
				"tool_choice": func(p *openai.ChatCompletionNewParams) { p.ToolChoice = chatChoice("required") },
			} {
				if e := wantError(t, ask(change), 400); e.Param != param || e.Type != "invalid_request_error" {
					t.Errorf("param %q of type %q, want %q", e.Param, e.Type, param)
				}
			}
			wantError(t, ask(func(p *openai.ChatCompletionNewParams) {
				p.Messages[0] = openai.UserMessage(strings.Repeat("water ", 200_000))
			}), 413)
		})
	}
}

// TestNoConnection: nothing listens on port 1.
func TestNoConnection(t *testing.T) {
	client := openai.NewClient(option.WithBaseURL("http://127.0.0.1:1/v1"), option.WithAPIKey("unused"), option.WithMaxRetries(0))
	_, err := client.Models.List(t.Context())
	var refused *net.OpError
	if !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}
