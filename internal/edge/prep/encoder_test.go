package prep_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
)

// TestLocal: the encoder of this process answers as its pipeline does, and does
// no work after its caller has left.
func TestLocal(t *testing.T) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	local := prep.LocalEncoder{Pipeline: pipe}
	conversation := &prep.Chat{Messages: []prep.Message{{Role: "user", Content: "hi"}}, AddGenerationPrompt: true}
	want, err := pipe.EncodeChat(nil, conversation)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := local.EncodeChat(t.Context(), conversation); err != nil || !cmp.Equal(got, prep.Prompt{Tokens: want}) {
		t.Errorf("%v %v, not %v", got, err, want)
	}
	if got, err := local.EncodeText(t.Context(), "some text", prep.RawPrompt()); err != nil || !cmp.Equal(got, prep.Prompt{Tokens: pipe.EncodeText(nil, "some text")}) {
		t.Errorf("%v %v", got, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := local.EncodeChat(gone, conversation); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := local.EncodeText(gone, "some text", prep.RawPrompt()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
