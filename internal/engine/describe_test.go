package engine

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"penstock/core/kv"
)

func goodDescription(t testing.TB) Description {
	card, err := EncodeCard(Card{Name: "m", BlockSize: 16, Ranks: 1, ContextLength: 100, VocabSize: 32, Tokenizer: TokenizerRef{Kind: "builtin"}})
	if err != nil {
		t.Fatal(err)
	}
	return Description{ID: 7, Epoch: 3, Namespace: "penstock", Component: "backend", Endpoint: "generate", Host: "node-1", PID: 4242, Card: card}
}

// TestDescriptionBytes pins the bytes of docs/format/engine.md to the code.
func TestDescriptionBytes(t *testing.T) {
	want := goodDescription(t)
	got, err := EncodeDescription(want)
	head := `{"id":7,"epoch":3,"namespace":"penstock","component":"backend","endpoint":"generate","host":"node-1","pid":4242,"card":{"name":"m",`
	if err != nil || !strings.HasPrefix(string(got), head) {
		t.Fatalf("%s, %v", got, err)
	}
	back, err := DecodeDescription(bytes.Replace(got, []byte("{"), []byte(`{"later":[1],`), 1))
	if err != nil || !reflect.DeepEqual(back, want) {
		t.Errorf("read back as %+v, %v", back, err)
	}
}

func TestDescriptionRefuses(t *testing.T) {
	good := goodDescription(t)
	for name, change := range map[string]func(*Description){
		"no id":     func(d *Description) { d.ID = 0 },
		"huge id":   func(d *Description) { d.ID = kv.MaxWorkerID + 1 },
		"no card":   func(d *Description) { d.Card = nil },
		"bad card":  func(d *Description) { d.Card = []byte(`{"name":"m"}`) },
		"long name": func(d *Description) { d.Host = strings.Repeat("x", maxDescription) },
	} {
		d := good
		change(&d)
		if _, err := EncodeDescription(d); err == nil {
			t.Errorf("%s was encoded", name)
		}
	}
	for _, bad := range []string{"", "null", "[]", `{"id":7}`, `{"id":-1}`, `{"id":7,"card":"x"}`, strings.Repeat(" ", maxDescription+1)} {
		if _, err := DecodeDescription([]byte(bad)); err == nil {
			t.Errorf("%.20q was decoded", bad)
		}
	}
}

func FuzzDecodeDescription(f *testing.F) {
	b, err := EncodeDescription(goodDescription(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeDescription(b)
		if err != nil {
			return
		}
		out, err := EncodeDescription(d)
		if err != nil {
			return // escapes may make it longer
		}
		again, err := DecodeDescription(out)
		if err != nil || again.ID != d.ID || again.Epoch != d.Epoch || again.Host != d.Host {
			t.Fatalf("%+v became %+v, %v", d, again, err)
		}
	})
}
