package enginemock_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"penstock/internal/enginemock"
)

// TestIdleConnectionsAreClosed: as servers of the uvicorn family do, regardless of the client.
func TestIdleConnectionsAreClosed(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, KeepAlive: 20 * time.Millisecond, Seed: 3})
	c, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusOK || res.Close {
		t.Fatalf("%v, %+v", err, res)
	}
	_ = res.Body.Close()
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("the idle connection ends with %v", err)
	}
}

// TestPings: llama.cpp writes comments while a stream is silent.
func TestPings(t *testing.T) {
	s := start(t, enginemock.Config{
		Dialect: enginemock.LlamaCPP, Ping: 5 * time.Millisecond, Seed: 3,
		Faults: []enginemock.Fault{{Kind: enginemock.FaultStall, Count: 2, After: 1, For: enginemock.Wait(60 * time.Millisecond)}},
	})
	for _, path := range []string{"/completion", "/v1/completions"} {
		_, _, body := ask(t, s, "POST", path, `{"prompt":[300,301],"n_predict":5,"max_tokens":5,"stream":true,"ignore_eos":true}`)
		if !strings.Contains(body, "\n\n:\n\n") || !strings.Contains(body, `"stop_type":"limit"`) && !strings.Contains(body, `"finish_reason":"length"`) {
			t.Errorf("%s: %q", path, body)
		}
		events(t, body) // nothing else is between them
	}
}

// TestStartup: every path answers 503 during the startup, and not after it.
func TestStartup(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Startup: time.Hour, Seed: 3})
	if status, _, _ := ask(t, s, "GET", "/health", ""); status != http.StatusServiceUnavailable {
		t.Errorf("at the start: %d", status)
	}
	s = start(t, enginemock.Config{Dialect: enginemock.VLLM, Startup: 50 * time.Millisecond, Seed: 3})
	for end := time.Now().Add(patience); ; {
		if status, _, _ := ask(t, s, "GET", "/health", ""); status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it never starts")
		}
	}
}

// TestAdapters: an adapter is a model whose parent is the model, with its own cache. SGLang requires the
// model's name before it, and answers unknown names with the model.
func TestAdapters(t *testing.T) {
	for _, d := range []enginemock.Dialect{enginemock.VLLM, enginemock.SGLang} {
		s := start(t, enginemock.Config{Dialect: d, Adapters: []enginemock.Adapter{{Name: "poet", Path: "/poet"}}, Seed: 3})
		_, _, body := ask(t, s, "GET", "/v1/models", "")
		models := decoded(t, body)
		if at(t, models, "data", 1, "id") != "poet" || at(t, models, "data", 1, "parent") != "penstock-sim" || at(t, models, "data", 1, "root") != "/poet" {
			t.Errorf("%s: %s", d, body)
		}
		cached := func(model string) float64 {
			a := post(t, s, "/v1/completions", map[string]any{"model": model, "prompt": prompt(1, 64), "max_tokens": 1})
			details, _ := at(t, a, "usage", "prompt_tokens_details").(map[string]any)
			n, _ := details["cached_tokens"].(float64)
			return n
		}
		poet := "poet"
		if d == enginemock.SGLang {
			poet = "penstock-sim:poet"
		}
		for i, want := range []struct {
			model  string
			cached float64
		}{{"penstock-sim", 0}, {poet, 0}, {poet, 48}, {"penstock-sim", 48}} {
			if got := cached(want.model); got != want.cached {
				t.Errorf("%s, request %d of %s: %v cached, want %v", d, i, want.model, got, want.cached)
			}
		}
		if d == enginemock.SGLang {
			if got := cached("poet"); got != 48 {
				t.Errorf("an adapter by its name alone: %v cached, want the model's", got)
			}
		}
	}
}

// TestParseFault parses its own output, and reports errors for invalid texts.
func TestParseFault(t *testing.T) {
	f, err := enginemock.ParseFault("stall,count=2,skip=1,probability=0.5,after=7,min-tokens=9,for=3s")
	if want := (enginemock.Fault{Kind: enginemock.FaultStall, Count: 2, Skip: 1, Probability: 0.5, After: 7, MinTokens: 9, For: enginemock.Wait(3 * time.Second)}); err != nil || f != want {
		t.Errorf("%+v %v", f, err)
	}
	for _, bad := range []string{"", "flood", "stall,for=x", "stall,how=bad", "error,status=200", "stall,after=-1", "stall,min-tokens=-1"} {
		if _, err := enginemock.ParseFault(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestOffsets: the offsets of tokens in the text of a completion.
func TestOffsets(t *testing.T) {
	s := start(t, enginemock.Config{Dialect: enginemock.VLLM, Seed: 3})
	a := post(t, s, "/v1/completions", map[string]any{"prompt": prompt(1, 20), "max_tokens": 12, "temperature": 0, "ignore_eos": true, "logprobs": 0})
	text := at(t, a, "choices", 0, "text").(string)
	tokens := at(t, a, "choices", 0, "logprobs", "tokens").([]any)
	offsets := at(t, a, "choices", 0, "logprobs", "text_offset").([]any)
	for i, o := range offsets {
		if from := int(o.(float64)); !strings.HasPrefix(text[from:], tokens[i].(string)) {
			t.Errorf("token %d, %q, is not at %d of %q", i, tokens[i], from, text)
		}
	}
}

// BenchmarkStream is the cost of a part of a stream for the server and a client together.
func BenchmarkStream(b *testing.B) {
	for _, d := range enginemock.Dialects() {
		b.Run(string(d), func(b *testing.B) {
			s := start(b, enginemock.Config{Dialect: d, Open: opener(b, shape{speedup: 1e6}), Seed: 3})
			for range b.N {
				if _, _, body := ask(b, s, "POST", "/v1/completions", `{"prompt":[300,301],"max_tokens":1000,"stream":true,"ignore_eos":true}`); !strings.Contains(body, "length") {
					b.Fatal(body)
				}
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
