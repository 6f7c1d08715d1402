package interop

import (
	"reflect"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func responseTools(t *testing.T) (tools []responses.ToolUnionParam) {
	for _, f := range functions(t) {
		tools = append(tools, responses.ToolParamOfFunction(f.Name, f.Parameters, false))
	}
	return tools
}

func textFormat(t *testing.T) responses.ResponseTextConfigParam {
	return responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigParamOfJSONSchema("weather", schema(t))}
}

func responseParams(t *testing.T, r *recording) responses.ResponseNewParams {
	p := responses.ResponseNewParams{Model: r.model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(r.prompt())}}
	if r.Schema {
		p.Text = textFormat(t)
		return p
	}
	p.Tools = responseTools(t)
	switch r.ToolChoice {
	case "":
	case "required":
		p.ToolChoice.OfToolChoiceMode = openai.Opt(responses.ToolChoiceOptionsRequired)
	default:
		p.ToolChoice.OfFunctionTool = &responses.ToolChoiceFunctionParam{Name: r.ToolChoice}
	}
	if r.Parallel != nil {
		p.ParallelToolCalls = openai.Bool(*r.Parallel)
	}
	p.Reasoning.Effort = shared.ReasoningEffort(r.Effort)
	return p
}

func ofResponse(t *testing.T, r *responses.Response) answer {
	t.Helper()
	a := answer{Finish: "stop"}
	for _, item := range r.Output {
		switch item.Type {
		case "reasoning":
			for _, part := range item.AsReasoning().Content {
				a.Reasoning += part.Text
			}
		case "message":
			for _, part := range item.AsMessage().Content {
				a.Content += part.Text
			}
		case "function_call":
			c := item.AsFunctionCall()
			a.Calls, a.Finish = append(a.Calls, call{c.Name, c.Arguments, c.CallID}), "tool_calls"
		default:
			t.Errorf("an item of type %q", item.Type)
		}
	}
	switch {
	case r.Status == responses.ResponseStatusIncomplete && r.IncompleteDetails.Reason == "max_output_tokens":
		a.Finish = "length"
	case r.Status != responses.ResponseStatusCompleted:
		t.Errorf("status %q, %+v", r.Status, r.IncompleteDetails)
	}
	return a
}

// ofResponseStream puts the deltas together. The last event has the whole response,
// which must say the same.
func ofResponseStream(t *testing.T, stream *ssestream.Stream[responses.ResponseStreamEventUnion]) answer {
	t.Helper()
	var a answer
	var last responses.ResponseStreamEventUnion
	for n := int64(0); stream.Next(); n++ {
		last = stream.Current()
		if last.SequenceNumber != n {
			t.Errorf("event %s has number %d, want %d", last.Type, last.SequenceNumber, n)
		}
		switch last.Type {
		case "response.output_text.delta":
			a.Content += last.Delta
		case "response.reasoning_text.delta":
			a.Reasoning += last.Delta
		case "response.output_item.added":
			if last.Item.Type == "function_call" {
				a.Calls = append(a.Calls, call{Name: last.Item.Name, ID: last.Item.CallID})
			}
		case "response.function_call_arguments.delta":
			a.Calls[len(a.Calls)-1].Arguments += last.Delta
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	whole := ofResponse(t, &last.Response)
	a.Finish = whole.Finish
	if !reflect.DeepEqual(a, whole) {
		t.Errorf("the deltas say %+v,\nthe last event %+v", a, whole)
	}
	return a
}

func TestRecordedResponses(t *testing.T) {
	client := recorded(t)
	eachRecording(t, func(t *testing.T, r *recording) {
		response, err := client.Responses.New(t.Context(), responseParams(t, r))
		if err != nil {
			t.Fatal(err)
		}
		whole := ofResponse(t, response)
		r.check(t, whole)
		wantSame(t, "stream", ofResponseStream(t, client.Responses.NewStreaming(t.Context(), responseParams(t, r))), whole)
	})
}

func TestRecordedResponseTruncated(t *testing.T) {
	client := recorded(t)
	p := responseParams(t, recordingOf(t, "hermes", "parallel"))
	p.MaxOutputTokens = openai.Int(150)
	response, err := client.Responses.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	whole := ofResponse(t, response)
	if whole.Finish != "length" || len(whole.Calls) != 2 || !strings.HasPrefix(whole.Calls[1].Arguments, `{"steps": ["open`) {
		t.Errorf("%+v", whole)
	}
	wantSame(t, "stream", ofResponseStream(t, client.Responses.NewStreaming(t.Context(), p)), whole)
}

// TestRecordedResponseToolResult: the result goes back, and says what is played next.
func TestRecordedResponseToolResult(t *testing.T) {
	client := recorded(t)
	for _, model := range []string{"hermes", "qwen3", "deepseek-r1", "gpt-oss", "llama3"} {
		t.Run(model, func(t *testing.T) {
			p := responseParams(t, recordingOf(t, model, "call"))
			response, err := client.Responses.New(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			turn := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage("play:call", responses.EasyInputMessageRoleUser)}
			for _, item := range response.Output {
				switch item.Type {
				case "reasoning":
					reasoning := item.AsReasoning().ToParam()
					turn = append(turn, responses.ResponseInputItemUnionParam{OfReasoning: &reasoning})
				case "message":
					message := item.AsMessage().ToParam()
					turn = append(turn, responses.ResponseInputItemUnionParam{OfOutputMessage: &message})
				case "function_call":
					called := item.AsFunctionCall().ToParam()
					output := responses.ResponseInputItemParamOfFunctionCallOutput("22 °C; play:text")
					output.OfFunctionCallOutput.CallID = openai.Opt(called.CallID)
					turn = append(turn, responses.ResponseInputItemUnionParam{OfFunctionCall: &called}, output)
				}
			}
			p.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: turn}
			if response, err = client.Responses.New(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			recordingOf(t, model, "text").check(t, ofResponse(t, response))
		})
	}
}

func TestRecordedResponseFailures(t *testing.T) {
	client := recorded(t)
	ask := func(name string) responses.ResponseNewParams {
		return responses.ResponseNewParams{Model: "hermes", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("play:" + name)}}
	}
	for name, status := range map[string]int{"broken": 500, "lost": 503, "refused": 503} {
		_, err := client.Responses.New(t.Context(), ask(name))
		wantError(t, err, status)
	}
	stream := client.Responses.NewStreaming(t.Context(), ask("broken"))
	var failed, last string
	for stream.Next() {
		e := stream.Current()
		if last = e.Type; last == "response.failed" {
			failed = string(e.Response.Status)
		}
	}
	if stream.Err() == nil && last != "response.failed" && last != "error" || failed != "" && failed != "failed" {
		t.Errorf("last event %q, status %q, %v", last, failed, stream.Err())
	}
	p := ask("text")
	p.PreviousResponseID = openai.String("resp_1")
	_, err := client.Responses.New(t.Context(), p)
	if e := wantError(t, err, 400); e.Param != "previous_response_id" {
		t.Errorf("param %q", e.Param)
	}
}
