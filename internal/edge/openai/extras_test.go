package openai

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/edge/api"
)

// otherDecoder is the decoder of an API which has only the extra fields.
type otherDecoder struct{ Extras }

// TestExtras: every listed field is read as in a chat request, and no other is.
func TestExtras(t *testing.T) {
	table := api.NewTable(ExtraRows[*otherDecoder]())
	for _, f := range table.Fields() {
		taken := samples[f.Name][0]
		want, err := Decode(api.Chat, []byte(bodyWith(api.Chat, f.Name, taken)))
		if err != nil {
			t.Fatal(f.Name, err)
		}
		d := &otherDecoder{}
		d.Req = &api.Request{
			Endpoint: want.Endpoint, Model: want.Model, Messages: want.Messages,
			AddGenerationPrompt: true, N: 1, Logprobs: -1,
		}
		if err := table.DecodeBody(d, []byte(`{"`+f.Name+`":`+taken+`}`)); err != nil || d.CheckExtras() != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if diff := cmp.Diff(want, d.Req); diff != "" {
			t.Errorf("%s (-chat +extras)\n%s", f.Name, diff)
		}
	}
	if err := table.DecodeBody(&otherDecoder{}, []byte(`{"model":"x"}`)); api.AsFault(err).Param != "model" {
		t.Errorf("model is read: %v", err)
	}
	if n := len(table.Fields()); n != 19 {
		t.Errorf("%d fields are listed", n)
	}
}
