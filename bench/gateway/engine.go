package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"penstock/core/kv"
)

// blockSize is the block size of the engine's cache, in tokens; blocks is its capacity: enough for the
// growing conversations, which would otherwise be recomputed each time.
const (
	blockSize = 16
	blocks    = 1 << 19
)

// fakeEngine answers as vLLM does, immediately: it reads a request and writes a prepared response, each token
// in its own write and flush, as engines do. All cost is then the gateway's.
type fakeEngine struct {
	model   string
	dir     string
	context int
	pace    time.Duration // between tokens; 0 is none
	chat    [][]byte      // events of a chat response: the role, then one token each
	ids     [][]byte      // events with the tokens' ids, as in completions with return_token_ids
	raw     [][]byte      // the same as in the token endpoint
	// prefixes are the cached prompts.
	prefixes prefixCache
}

// newFakeEngine prepares responses of these tokens, with the given texts.
func newFakeEngine(model, dir string, tokens []kv.Token, texts []string, pace time.Duration) *fakeEngine {
	e := &fakeEngine{model: model, dir: dir, context: 131072, pace: pace}
	const head = `{"id":"chatcmpl-7f3a9c52d1e84b0f","object":"chat.completion.chunk","created":1795255455,"model":"bench","choices":[{"index":0,`
	e.chat = append(e.chat, []byte("data: "+head+`"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"))
	for i, t := range tokens {
		text, _ := json.Marshal(texts[i])
		finish := "null"
		if i == len(tokens)-1 {
			finish = `"length"`
		}
		e.chat = append(e.chat, fmt.Appendf(nil, "data: %s\"delta\":{\"content\":%s},\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":null}]}\n\n", head, text, finish))
		e.ids = append(e.ids, fmt.Appendf(nil, "data: {\"id\":\"cmpl-7f3a9c52d1e84b0f\",\"object\":\"text_completion\",\"created\":1795255455,\"model\":\"bench\",\"choices\":[{\"index\":0,\"text\":%s,\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":[%d]}],\"usage\":null}\n\n", text, finish, t))
		e.raw = append(e.raw, fmt.Appendf(nil, "data: {\"request_id\":\"7f3a9c52d1e84b0f\",\"choices\":[{\"index\":0,\"logprobs\":null,\"finish_reason\":%s,\"token_ids\":[%d]}]}\n\n", finish, t))
	}
	return e
}

// streamEnd is the end of a stream.
func streamEnd(object, id string, prompt, output, cached int) []byte {
	return fmt.Appendf(nil, "data: {\"id\":%q,\"object\":%q,\"created\":1795255455,\"model\":\"bench\",\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n",
		id, object, prompt, prompt+output, output, cached)
}

func (e *fakeEngine) newHandler() http.Handler {
	mux := http.NewServeMux()
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
	}
	mux.HandleFunc("GET /health", text(""))
	mux.HandleFunc("GET /version", text(`{"version":"0.24.0"}`))
	mux.HandleFunc("GET /v1/models", text(fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","created":1,"owned_by":"vllm","root":%q,"parent":null,"max_model_len":%d}]}`, e.model, e.dir, e.context)))
	mux.HandleFunc("GET /metrics", text(fmt.Sprintf(`vllm:num_requests_running{engine="0",model_name=%[1]q} 0.0
vllm:num_requests_waiting{engine="0",model_name=%[1]q} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name=%[1]q} 0.0
vllm:cache_config_info{block_size="%[2]d",enable_prefix_caching="True",engine="0",num_gpu_blocks="%[3]d"} 1.0
`, e.model, blockSize, blocks)))
	mux.HandleFunc("POST /v1/chat/completions", e.streamHandler(e.chat, "chat.completion.chunk", "chatcmpl-7f3a9c52d1e84b0f"))
	mux.HandleFunc("POST /v1/completions", e.streamHandler(e.ids, "text_completion", "cmpl-7f3a9c52d1e84b0f"))
	mux.HandleFunc("POST /inference/v1/generate", e.streamHandler(e.raw, "", "7f3a9c52d1e84b0f"))
	return mux
}

// streamHandler answers a request, and a probe for a single token with that.
func (e *fakeEngine) streamHandler(events [][]byte, object, id string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Most of a body is its prompt; the relevant fields are outside of it.
		peek := make([]byte, peekBytes)
		n, _ := io.ReadFull(r.Body, peek)
		var prompt tokenCounter
		_, _ = prompt.Write(peek[:n])
		rest, _ := io.Copy(&prompt, r.Body)
		if n+int(rest) < maxProbeBytes { // so short a request is a probe
			e.respondToProbe(w, peek[:n], r.URL.Path)
			return
		}
		tokens, cached := prompt.countTokens(), 0
		if rest > 0 { // short prompts never repeat while the engine remembers them
			cached = e.prefixes.lookupAndAdd(peek, tokens)
		}
		end := streamEnd(object, id, tokens, len(e.ids), cached)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		flush := http.NewResponseController(w)
		for _, event := range events {
			if e.pace > 0 {
				time.Sleep(e.pace) // simulates the time of an engine's decode step
			}
			if _, err := w.Write(event); err != nil {
				return
			}
			if err := flush.Flush(); err != nil {
				return
			}
		}
		_, _ = w.Write(end)
	}
}

// respondToProbe answers a small request with one token, as a whole or as a stream.
func (e *fakeEngine) respondToProbe(w http.ResponseWriter, body []byte, path string) {
	var q struct {
		Stream bool `json:"stream"`
		Max    int  `json:"max_tokens"`
	}
	_ = json.Unmarshal(body, &q)
	first, _, _ := strings.Cut(string(e.ids[0]), "\n")
	if path == "/inference/v1/generate" {
		first, _, _ = strings.Cut(string(e.raw[0]), "\n")
	}
	first = strings.Replace(strings.TrimPrefix(first, "data: "), `"finish_reason":null`, `"finish_reason":"length"`, 1)
	usage := `"usage":{"prompt_tokens":4,"total_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}`
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		whole := strings.Replace(first, `"usage":null`, usage, 1)
		if !strings.Contains(whole, `"usage"`) {
			whole = strings.TrimSuffix(whole, "}") + "," + usage + "}"
		}
		_, _ = io.WriteString(w, whole)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = io.WriteString(w, "data: "+first+"\n\n")
	_, _ = w.Write(streamEnd("text_completion", "cmpl-7f3a9c52d1e84b0f", 4, 1, 0))
}

// serveUntilEOF serves until standard input ends; it prints its URL on standard output.
func serveUntilEOF(h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = srv.Close()
	}()
	fmt.Println("http://" + l.Addr().String())
	if err := srv.Serve(l); err != http.ErrServerClosed {
		return err
	}
	<-done
	return nil
}

// answerTokens reads the ids and texts of a response, as written by the parent.
func answerTokens(path string) (tokens []kv.Token, texts []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	for line := range bytes.Lines(b) {
		id, text, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		n, err := strconv.ParseUint(string(id), 10, 32)
		if err != nil {
			return nil, nil, err
		}
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, nil, err
		}
		tokens, texts = append(tokens, kv.Token(n)), append(texts, s)
	}
	return tokens, texts, nil
}
