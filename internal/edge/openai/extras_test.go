package openai

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// TestExtras: every listed field is read as in a chat request, and no other is.
func TestExtras(t *testing.T) {
	fields := ExtraFields()
	for _, f := range fields {
		taken := samples[f.Name][0]
		want, err := Decode(api.Chat, []byte(bodyWith(api.Chat, f.Name, taken)))
		if err != nil {
			t.Fatal(f.Name, err)
		}
		got := &api.Request{
			Endpoint: want.Endpoint, Model: want.Model, Messages: want.Messages,
			AddGenerationPrompt: true, N: 1, Logprobs: -1,
		}
		r, err := strictjson.NewReader([]byte(taken))
		if err != nil {
			t.Fatal(err)
		}
		x := NewExtras(r, got)
		if known, err := x.ReadField(f.Name); !known || err != nil || x.Check() != nil {
			t.Errorf("%s: known %v, %v", f.Name, known, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-chat +extras)\n%s", f.Name, diff)
		}
	}
	r, _ := strictjson.NewReader([]byte(`"x"`))
	if known, err := NewExtras(r, &api.Request{}).ReadField("model"); known || err != nil {
		t.Errorf("model is read: %v", err)
	}
	if len(fields) != 19 {
		t.Errorf("%d fields are listed", len(fields))
	}
}
