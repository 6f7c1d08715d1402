package engine

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// kept returns the messages in testdata/messages-v1.txt, which earlier builds wrote. Each line is a name and
// bytes in hex.
func kept(t *testing.T) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/messages-v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		if all[name], err = hex.DecodeString(digits); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return all
}

// message is one kind of message: the bytes written, and how this build reads and writes it.
type message struct {
	said   any
	decode func([]byte) (any, error)
	encode func() []byte
}

func messages() map[string]message {
	request := func(change func(*Request)) message {
		r := fullRequest()
		change(r)
		return message{
			r, func(b []byte) (any, error) { got := new(Request); return got, DecodeRequest(b, got) },
			func() []byte { return AppendRequest(nil, r) },
		}
	}
	delta := func(d *Delta) message {
		return message{
			d, func(b []byte) (any, error) { got := new(Delta); return got, DecodeDelta(b, got) },
			func() []byte { return AppendDelta(nil, d) },
		}
	}
	embed := &EmbedRequest{ID: "r1", Attempt: 1, Model: "m", Prompt: []kv.Token{1, 70000}}
	embedding := &Embedding{Attempt: 1, Vector: []float32{-0.5, 1e-40, 3}}
	text := &PreprocessRequest{ID: "r1", Attempt: 2, Model: "m", Text: "häh", ParseSpecial: true, AddSpecial: true}
	conversation := &PreprocessRequest{ID: "r1", Attempt: 1, Model: "m", Chat: []byte(`{"messages":[]}`)}
	prompt := &Preprocessed{Attempt: 2, Tokens: []kv.Token{1, 70000}, Media: []kv.Media{{Hash: 7, Start: 1, End: 2}}}
	report := LoadReport{WorkerID: 7, Rank: 1, Epoch: 3, State: StateDraining, KVNext: 99, Load: Load{Running: 1, Waiting: 2, UsedBlocks: 3, CachedBlocks: 4, TotalBlocks: 5, PrefillTokens: 6}}
	pong := Pong{LoadReport: report, InFlight: 8}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return b
	}
	preprocess := func(r *PreprocessRequest) message {
		return message{
			r, func(b []byte) (any, error) {
				got := new(PreprocessRequest)
				return got, DecodePreprocessRequest(b, got)
			},
			func() []byte { return AppendPreprocessRequest(nil, r) },
		}
	}
	all := map[string]message{
		"request":        request(func(r *Request) { r.OutputSchema = nil }),
		"request-guided": request(func(*Request) {}),
		"request-first":  request(func(r *Request) { r.OutputSchema, r.Generated, r.Done, r.Attempt = nil, nil, nil, 1 }),
		"request-lent": request(func(r *Request) {
			r.OutputSchema, r.FeaturesAt = nil, Lent{Place: "tcp://127.0.0.1:7#0011", Size: 70000}
		}),
		"delta-accepted": delta(&Delta{Attempt: 1, Accepted: true}),
		"delta-token":    delta(&Delta{Attempt: 1, Pos: 100, Tokens: []kv.Token{50256}}),
		"delta":          delta(fullDelta()),
		"embed": {
			embed, func(b []byte) (any, error) { got := new(EmbedRequest); return got, DecodeEmbedRequest(b, got) },
			func() []byte { return AppendEmbedRequest(nil, embed) },
		},
		"embedding": {
			embedding, func(b []byte) (any, error) { got := new(Embedding); return got, DecodeEmbedding(b, got) },
			func() []byte { return AppendEmbedding(nil, embedding) },
		},
		"preprocess-text": preprocess(text),
		"preprocess-chat": preprocess(conversation),
		"preprocessed": {
			prompt, func(b []byte) (any, error) { got := new(Preprocessed); return got, DecodePreprocessed(b, got) },
			func() []byte { return AppendPreprocessed(nil, prompt) },
		},
		"load": {
			report, func(b []byte) (any, error) { return DecodeLoadReport(b) },
			func() []byte { return marshal(report) },
		},
		"pong": {
			pong, func(b []byte) (any, error) { return DecodePong(b) },
			func() []byte { return marshal(pong) },
		},
	}
	maps.Copy(all, legMessages())
	maps.Copy(all, splitMessages())
	return all
}

// TestMessagesAreReadForEver checks that this build understands the messages of older builds and vice versa:
// a message without new fields has the same bytes.
func TestMessagesAreReadForEver(t *testing.T) {
	all := kept(t)
	for name, m := range messages() {
		b := all[name]
		got, err := m.decode(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(m.said, got, sameBits); diff != "" {
			t.Errorf("%s reads otherwise than it was written:\n%s", name, diff)
		}
		if now := m.encode(); !bytes.Equal(now, b) {
			t.Errorf("%s is written as\n%x\nolder builds know\n%x", name, now, b)
		}
		delete(all, name)
	}
	for name := range all {
		t.Errorf("%s is kept and not read", name)
	}
}
