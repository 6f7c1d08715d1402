package enginemock_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/enginemock"
)

// ecBody is what is compared of an answer.
type ecBody struct {
	Choices []struct {
		Finish  string `json:"finish_reason"`
		Tokens  []int  `json:"token_ids"`
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage struct {
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Transfer map[string]any `json:"ec_transfer_params"`
	Error    any            `json:"error"`
}

// TestCapturedEncodings sends the mock the requests which a real producer and a real consumer of encoder outputs
// received (test/interop/engines/capture.py). Statuses, what was encoded, and how much was generated must be the same.
func TestCapturedEncodings(t *testing.T) {
	for _, role := range []enginemock.ECRole{enginemock.ECProducer, enginemock.ECConsumer} {
		t.Run(string(role), func(t *testing.T) {
			s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3, Models: []string{"tiny"}, ECRole: role, ECStore: t.TempDir()})
			dir := filepath.Join("testdata", "captured", "vllm-0.32.0-encodings", string(role))
			files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
			if err != nil || len(files) < 15 {
				t.Fatalf("%d recordings, %v", len(files), err)
			}
			first := filepath.Join(dir, "one.txt") // of which "name" shows the name alone
			files = append([]string{first}, slices.DeleteFunc(files, func(f string) bool { return f == first })...)
			for _, file := range files {
				compareCaptured(t, s, file)
			}
		})
	}
}

// compareCaptured asks what was recorded in a file and compares the answers.
func compareCaptured(t *testing.T, s *enginemock.Server, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(file)
	head, rest, _ := strings.Cut(string(text), "\n")
	body, said, _ := strings.Cut(rest, "\n\n")
	var method, path string
	fields := strings.Fields(head)
	method, path = fields[1], fields[2]
	status, _, answer := ask(t, s, method, path, body)
	if fields[0] != map[int]string{http.StatusOK: "200", http.StatusBadRequest: "400"}[status] {
		t.Errorf("%s: status %d, recorded %s", name, status, fields[0])
		return
	}
	switch {
	case name == "metrics.txt":
		for _, label := range []string{`enable_prefix_caching="True"`, `enable_prefix_caching="False"`} {
			if strings.Contains(said, label) != strings.Contains(answer, label) {
				t.Errorf("%s: %s", name, label)
			}
		}
		return
	case name == "stream.txt":
		if got, want := strings.Count(answer, "data: "), strings.Count(said, "data: "); got < want || strings.Contains(said, "length") != strings.Contains(answer, "length") {
			t.Errorf("%s: %s", name, answer)
		}
		return
	}
	got, want := decodeEC(t, answer), decodeEC(t, said)
	if name == "unnamed.txt" { // the engine's own name of it
		got.Transfer, want.Transfer = byName(got.Transfer), byName(want.Transfer)
	}
	if diff := cmp.Diff(want.Transfer, got.Transfer); diff != "" || (got.Error == nil) != (want.Error == nil) || len(got.Choices) != len(want.Choices) {
		t.Errorf("%s: %s\n%s", name, diff, answer)
		return
	}
	for i, c := range got.Choices {
		w := want.Choices[i]
		if c.Finish != w.Finish || (c.Text+c.Message.Content == "") != (w.Text+w.Message.Content == "") || (c.Tokens == nil) != (w.Tokens == nil) || len(c.Tokens) != len(w.Tokens) {
			t.Errorf("%s: %+v, recorded %+v", name, c, w)
		}
	}
	if got.Usage != want.Usage && path != "/inference/v1/generate" {
		t.Errorf("%s: usage %+v, recorded %+v", name, got.Usage, want.Usage)
	}
}

func decodeEC(t *testing.T, b string) (e ecBody) {
	t.Helper()
	if err := json.Unmarshal([]byte(b), &e); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return e
}

// byName replaces the names of entries.
func byName(entries map[string]any) map[string]any {
	out := map[string]any{}
	for i, key := range slices.Sorted(maps.Keys(entries)) {
		out[string(rune('a'+i))] = entries[key]
	}
	return out
}

// TestEncodings: a producer encodes an object once and stores its output, of which a consumer makes use; what is not
// there it encodes itself.
func TestEncodings(t *testing.T) {
	store := t.TempDir()
	open := func(role enginemock.ECRole) *enginemock.Server {
		return start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3, ECRole: role, ECStore: store})
	}
	producer, consumer, other := open(enginemock.ECProducer), open(enginemock.ECConsumer), open(enginemock.ECConsumer)
	const chat = "/v1/chat/completions"
	show := func(s *enginemock.Server, extra string, pictures ...string) ecBody {
		t.Helper()
		body := strings.TrimSuffix(showing("look", pictures...), "}") + extra + "}"
		status, _, answer := ask(t, s, "POST", chat, body)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
		return decodeEC(t, answer)
	}
	expect := func(s *enginemock.Server, want enginemock.ECStats) {
		t.Helper()
		if got := s.ECStats(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	a, b := picture(t, 112, 84, 1)+"#a", picture(t, 112, 84, 2)+"#b"
	for range 2 {
		show(producer, "", a)
	}
	expect(producer, enginemock.ECStats{Encoded: 1})
	show(consumer, `,"ec_transfer_params":{"a":{},"c":{}}`, a, b)
	expect(consumer, enginemock.ECStats{Encoded: 1, Loaded: 1, Unknown: 1})
	show(consumer, `,"ec_transfer_params":{"b":{}}`, a, b)
	expect(consumer, enginemock.ECStats{Encoded: 1, Loaded: 1, Unknown: 1})
	show(other, `,"ec_transfer_params":{"b":{}}`, b)
	expect(other, enginemock.ECStats{Encoded: 1, Missing: 1})

	// The store loses an output, and has one of another object.
	if err := producer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultLostEncoding, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if got := show(producer, "", b); got.Transfer["b"] == nil {
		t.Errorf("announced %v", got.Transfer)
	}
	consumer.ForgetEncoded()
	show(consumer, `,"ec_transfer_params":{"b":{}}`, b)
	expect(consumer, enginemock.ECStats{Encoded: 2, Loaded: 1, Missing: 1, Unknown: 1})
	if err := os.WriteFile(filepath.Join(store, "a", "encoder_cache.safetensors"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := ask(t, other, "POST", chat, showing("look", a)); status != http.StatusInternalServerError {
		t.Errorf("another object's output: %d", status)
	}
	if err := consumer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultEncodings, Count: 1}); err != nil {
		t.Fatal(err)
	}
	failing := strings.TrimSuffix(showing("look", b), "}") + `,"ec_transfer_params":{"b":{}}}`
	for _, want := range []int{http.StatusInternalServerError, http.StatusOK} {
		if status, _, _ := ask(t, consumer, "POST", chat, failing); status != want {
			t.Errorf("an output which cannot be had: %d, want %d", status, want)
		}
	}
}
