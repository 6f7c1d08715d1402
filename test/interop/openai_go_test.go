package interop

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// server returns the URL of the Penstock under test.
func server(t *testing.T) string {
	t.Helper()
	url := os.Getenv("PENSTOCK_URL")
	if url == "" {
		t.Fatal("PENSTOCK_URL is not set: run test/interop/run.sh, which starts a server")
	}
	return url
}

func newClient(t *testing.T) openai.Client {
	return openai.NewClient(option.WithBaseURL(server(t)+"/v1"), option.WithAPIKey("unused"), option.WithMaxRetries(0))
}

func TestStreamedConversation(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := newClient(t)

	models, err := client.Models.List(ctx)
	if err != nil || len(models.Data) == 0 {
		t.Fatalf("models: %v, %v", models, err)
	}
	model := models.Data[0].ID

	// A long opening makes the second turn's shared prefix span many blocks.
	opening := strings.Repeat("The gate opens, the water falls, and the wheel turns. ", 20)
	messages := []openai.ChatCompletionMessageParamUnion{
		openai.SystemMessage("You speak of rivers."),
		openai.UserMessage(opening),
	}
	var cached []int64
	for turn := range 3 {
		stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
			Model:         model,
			Messages:      messages,
			MaxTokens:     openai.Int(32),
			StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		})
		var acc openai.ChatCompletionAccumulator
		chunks := 0
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("turn %d: chunk does not fit the ones before: %s", turn, stream.Current().RawJSON())
			}
			chunks++
		}
		if err := stream.Err(); err != nil {
			t.Fatalf("turn %d: %v", turn, err)
		}
		if len(acc.Choices) != 1 || acc.Choices[0].Message.Content == "" || acc.Choices[0].FinishReason == "" {
			t.Fatalf("turn %d: %+v", turn, acc.Choices)
		}
		if acc.Usage.CompletionTokens < 1 || acc.Usage.CompletionTokens > 32 || chunks < 3 {
			t.Errorf("turn %d: %d chunks, usage %+v", turn, chunks, acc.Usage)
		}
		cached = append(cached, acc.Usage.PromptTokensDetails.CachedTokens)
		messages = append(messages, openai.AssistantMessage(acc.Choices[0].Message.Content),
			openai.UserMessage("Go on."))
	}
	if cached[1] == 0 || cached[2] < cached[1] {
		t.Errorf("cached tokens by turn = %v, want them to grow from the second turn on", cached)
	}
}

func TestWholeEqualsStream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := newClient(t)
	params := openai.ChatCompletionNewParams{
		Model:       "penstock-tiny",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Tell me of the dam.")},
		MaxTokens:   openai.Int(24),
		Temperature: openai.Float(0.8),
		Seed:        openai.Int(7),
	}
	whole, err := client.Chat.Completions.New(ctx, params)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := text.String(), whole.Choices[0].Message.Content; got != want {
		t.Errorf("streamed %q, whole %q", got, want)
	}
}

func TestEmbeddings(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := newClient(t)
	params := openai.EmbeddingNewParams{
		Model: "penstock-tiny",
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"the mill", "the sluice", "the mill"}},
	}
	got, err := client.Embeddings.New(ctx, params)
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
	_, err = client.Embeddings.New(ctx, params)
	var apiErr *openai.Error
	if !errors.As(err, &apiErr) || apiErr.StatusCode != 400 || apiErr.Param != "dimensions" {
		t.Errorf("dimensions: %v", err)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	client := newClient(t)
	_, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model:    "no-such-model",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	})
	var apiErr *openai.Error
	if !errors.As(err, &apiErr) || apiErr.StatusCode != 404 || !strings.Contains(apiErr.Message, "no-such-model") {
		t.Errorf("err = %v", err)
	}
}
