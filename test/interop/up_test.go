package interop

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

func TestUpConversation(t *testing.T) {
	client := up(t)
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) == 0 || models.Data[0].ID != upModel {
		t.Fatalf("models: %v, %v", models, err)
	}
	// A long opening makes the second turn's shared prefix span many blocks.
	messages := []openai.ChatCompletionMessageParamUnion{
		openai.SystemMessage("You speak of rivers."),
		openai.UserMessage(strings.Repeat("The gate opens, the water falls, and the wheel turns. ", 20)),
	}
	var cached []int64
	for turn := range 3 {
		a, acc := ofStream(t, client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
			Model: upModel, Messages: messages, MaxTokens: openai.Int(32),
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		}))
		if a.Content == "" || a.Finish == "" || acc.Usage.CompletionTokens < 1 || acc.Usage.CompletionTokens > 32 {
			t.Errorf("turn %d: %+v, usage %+v", turn, a, acc.Usage)
		}
		cached = append(cached, acc.Usage.PromptTokensDetails.CachedTokens)
		messages = append(messages, openai.AssistantMessage(a.Content), openai.UserMessage("Go on."))
	}
	if cached[1] == 0 || cached[2] < cached[1] {
		t.Errorf("cached tokens by turn = %v, want them to grow from the second turn on", cached)
	}
}

func TestUpWholeEqualsStream(t *testing.T) {
	client := up(t)
	p := openai.ChatCompletionNewParams{
		Model: upModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Tell me of the dam.")},
		MaxTokens: openai.Int(24), Temperature: openai.Float(0.8), Seed: openai.Int(7), Tools: chatTools(t),
	}
	c, err := client.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	streamed, _ := ofStream(t, client.Chat.Completions.NewStreaming(t.Context(), p))
	wantSame(t, "stream", streamed, ofCompletion(c))

	r := responses.ResponseNewParams{
		Model: upModel, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Tell me of the dam.")},
		MaxOutputTokens: openai.Int(24), Temperature: openai.Float(0), Tools: responseTools(t),
	}
	response, err := client.Responses.New(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, "response stream", ofResponseStream(t, client.Responses.NewStreaming(t.Context(), r)), ofResponse(t, response))
}

func TestUpEmbeddings(t *testing.T) {
	client := up(t)
	params := openai.EmbeddingNewParams{
		Model: upModel,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"the mill", "the sluice", "the mill"}},
	}
	got, err := client.Embeddings.New(t.Context(), params)
	if err != nil || len(got.Data) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, e := range got.Data {
		if e.Index != int64(i) || len(e.Embedding) == 0 || slices.Equal(e.Embedding, got.Data[0].Embedding) != (i != 1) {
			t.Errorf("embedding %d: index %d, %d elements", i, e.Index, len(e.Embedding))
		}
	}
	if got.Usage.PromptTokens < 3 || got.Usage.PromptTokens != got.Usage.TotalTokens {
		t.Errorf("usage %+v", got.Usage)
	}
	params.Dimensions = openai.Int(8)
	_, err = client.Embeddings.New(t.Context(), params)
	if e := wantError(t, err, 400); e.Param != "dimensions" {
		t.Errorf("param %q", e.Param)
	}
}

// TestUpCalls: with random weights, calls are valid because the engine is guided.
func TestUpCalls(t *testing.T) {
	client := up(t)
	p := openai.ChatCompletionNewParams{
		Model: upModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the weather?")},
		MaxTokens: openai.Int(1500), Temperature: openai.Float(1), Seed: openai.Int(3), Tools: chatTools(t), ToolChoice: chatChoice("required"),
	}
	c, err := client.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	whole := ofCompletion(c)
	wantCalls(t, whole.Calls)
	if whole.Finish != "tool_calls" || whole.Content != "" {
		t.Errorf("%+v", whole)
	}
	streamed, _ := ofStream(t, client.Chat.Completions.NewStreaming(t.Context(), p))
	wantSame(t, "stream", streamed, whole)

	p.ToolChoice = chatChoice("get_weather")
	if c, err = client.Chat.Completions.New(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	named := ofCompletion(c)
	if wantCalls(t, named.Calls); len(named.Calls) != 1 || named.Calls[0].Name != "get_weather" {
		t.Errorf("%+v", named)
	}

	r := responses.ResponseNewParams{
		Model: upModel, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What is the weather?")},
		MaxOutputTokens: openai.Int(1500), Tools: responseTools(t),
	}
	r.ToolChoice.OfToolChoiceMode = openai.Opt(responses.ToolChoiceOptionsRequired)
	wantCalls(t, ofResponseStream(t, client.Responses.NewStreaming(t.Context(), r)).Calls)
}

func TestUpSchema(t *testing.T) {
	client := up(t)
	check := func(text string) {
		t.Helper()
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		wantMembers(t, object, schema(t))
	}
	c, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: upModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the weather?")}, ResponseFormat: jsonSchema(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	check(c.Choices[0].Message.Content)
	response, err := client.Responses.New(t.Context(), responses.ResponseNewParams{
		Model: upModel, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What is the weather?")}, Text: textFormat(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	check(response.OutputText())
}
