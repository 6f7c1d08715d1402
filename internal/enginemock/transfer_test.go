package enginemock_test

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"penstock/internal/enginemock"
)

// transfers returns how many leases an instance keeps, and how many transfers it sent, received and missed.
func transfers(t *testing.T, s *enginemock.Server) string {
	t.Helper()
	_, _, body := ask(t, s, "GET", "/admin/state", "")
	state := decoded(t, body)
	return fmt.Sprintf("%v leases, %v sent, %v received, %v missed", at(t, state, "leases"), at(t, state, "transfers", "sent"), at(t, state, "transfers", "received"), at(t, state, "transfers", "missed"))
}

// cachedOf returns the cached tokens of an answer; 0 if it reports none.
func cachedOf(t *testing.T, answer map[string]any) float64 {
	t.Helper()
	details, _ := at(t, answer, "usage", "prompt_tokens_details").(map[string]any)
	n, _ := details["cached_tokens"].(float64)
	return n
}

// change is a change of the parameters which a relay passes on.
type change struct {
	name string
	do   func(map[string]any)
}

func set(key string, value any) change {
	return change{fmt.Sprintf("%s is %v", key, value), func(p map[string]any) { p[key] = value }}
}

func without(key string) change {
	return change{"without " + key, func(p map[string]any) { delete(p, key) }}
}

// TestPrefillDecode is both instances of vLLM's disaggregated prefill. The decode instance fetches what the prefill
// instance keeps, once. Parameters which differ from the prefill's in anything cost a full prefill.
func TestPrefillDecode(t *testing.T) {
	for _, d := range []enginemock.Dialect{enginemock.VLLM, enginemock.VLLMLegacy} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			q, third := start(t, enginemock.Config{Dialect: d, Seed: 4}), start(t, enginemock.Config{Dialect: d, Seed: 5})
			n := 0
			// relay prefills a new prompt, changes the parameters, and returns the decode's cached tokens.
			relay := func(do func(map[string]any), other ...float64) (p *enginemock.Server, params map[string]any, decode func() float64) {
				p = start(t, enginemock.Config{Dialect: d, Seed: 3})
				n++
				tokens := prompt(n, 40)
				first := post(t, p, "/v1/completions", map[string]any{"prompt": tokens, "max_tokens": 1, "ignore_eos": true, "kv_transfer_params": map[string]any{"do_remote_decode": true}})
				params = at(t, first, "kv_transfer_params").(map[string]any)
				if do != nil {
					do(params)
				}
				if len(other) > 0 {
					tokens = prompt(250+n, 40)
				}
				return p, params, func() float64 {
					n++ // another salt, so that nothing is cached but what was fetched
					return cachedOf(t, post(t, q, "/v1/completions", map[string]any{"prompt": tokens, "max_tokens": 2, "cache_salt": strconv.Itoa(n), "kv_transfer_params": params}))
				}
			}
			p, params, decode := relay(nil)
			_, hasID := params["remote_request_id"]
			_, perGroup := at(t, params, "remote_block_ids", 0).([]any)
			if params["do_remote_prefill"] != true || params["remote_engine_id"] == nil || hasID != (d == enginemock.VLLM) || perGroup != (d == enginemock.VLLM) {
				t.Fatalf("%v", params)
			}
			if got := transfers(t, p); got != "1 leases, 0 sent, 0 received, 0 missed" {
				t.Errorf("the prefill has %s", got)
			}
			if got := decode(); got != 39 {
				t.Errorf("the decode has %v tokens", got)
			}
			if got := transfers(t, p); got != "0 leases, 1 sent, 0 received, 0 missed" {
				t.Errorf("after the transfer the prefill has %s", got)
			}
			if got := decode(); got != 0 {
				t.Errorf("the same blocks were fetched twice: %v tokens", got)
			}
			if got := transfers(t, q); got != "0 leases, 0 sent, 1 received, 1 missed" {
				t.Errorf("the decode has %s", got)
			}

			changes := []change{
				set("remote_engine_id", "unknown"), without("remote_engine_id"),
				set("remote_block_ids", []int{1}), without("remote_block_ids"),
				set("remote_port", portOf(third)), set("remote_port", 1), without("remote_port"),
				set("remote_host", "127.0.0.2.example.invalid"), without("remote_host"),
			}
			if d == enginemock.VLLM {
				changes = append(changes, set("remote_request_id", "cmpl-other"), without("remote_request_id"))
			}
			for _, c := range changes {
				p, _, decode := relay(c.do)
				if got := decode(); got != 0 {
					t.Errorf("%s: the decode has %v tokens", c.name, got)
				}
				if got := transfers(t, p); got != "1 leases, 0 sent, 0 received, 0 missed" {
					t.Errorf("%s: the prefill has %s", c.name, got)
				}
			}
			if _, _, decode := relay(nil, 1); decode() != 0 {
				t.Error("the blocks of another prompt were fetched")
			}
			p, _, decode = relay(nil)
			if err := p.Restart(); err != nil {
				t.Fatal(err)
			}
			if got := decode(); got != 0 {
				t.Errorf("blocks of an engine which restarted were fetched: %v tokens", got)
			}
			// Not an instance at all.
			stranger := httptest.NewServer(http.NotFoundHandler())
			defer stranger.Close()
			u, _ := url.Parse(stranger.URL)
			strange, _ := strconv.Atoi(u.Port())
			if _, _, decode := relay(func(p map[string]any) { p["remote_port"] = strange }); decode() != 0 {
				t.Error("a stranger confirmed a prefill")
			}
		})
	}
}

// TestContextGeneration is both servers of TensorRT-LLM's disaggregated prefill: the opaque state says where the
// blocks of a request are.
func TestContextGeneration(t *testing.T) {
	p, q := start(t, enginemock.Config{Dialect: enginemock.TRTLLM, Seed: 3}), start(t, enginemock.Config{Dialect: enginemock.TRTLLM, Seed: 4})
	n := 0
	relay := func(do func(map[string]any)) (first, second float64) {
		n++
		body := map[string]any{
			"prompt": prompt(n, 40), "max_tokens": 1, "ignore_eos": true, "detokenize": false, "cache_salt": strconv.Itoa(n),
			"disaggregated_params": map[string]any{"request_type": "context_only"},
		}
		params := at(t, post(t, p, "/v1/completions", body), "choices", 0, "disaggregated_params").(map[string]any)
		params["request_type"] = "generation_only"
		if do != nil {
			do(params)
		}
		body["max_tokens"], body["disaggregated_params"] = 4, params
		first = cachedOf(t, post(t, q, "/v1/completions", body))
		body["cache_salt"] = "again" + strconv.Itoa(n)
		return first, cachedOf(t, post(t, q, "/v1/completions", body))
	}
	if first, second := relay(nil); first != 39 || second != 0 {
		t.Errorf("%v tokens, and %v by the same parameters again", first, second)
	}
	other := at(t, post(t, p, "/v1/completions", map[string]any{
		"prompt": prompt(99, 40), "max_tokens": 1, "ignore_eos": true, "detokenize": false, "disaggregated_params": map[string]any{"request_type": "context_only"},
	}), "choices", 0, "disaggregated_params").(map[string]any)
	for _, c := range []change{
		set("ctx_request_id", 1), without("ctx_request_id"), set("encoded_opaque_state", "bWltaWM="), without("encoded_opaque_state"),
		without("first_gen_tokens"),
		{"the state of another request", func(p map[string]any) { p["encoded_opaque_state"] = other["encoded_opaque_state"] }},
		{"the parameters of another request", func(p map[string]any) { maps.Copy(p, other); p["request_type"] = "generation_only" }},
	} {
		if first, second := relay(c.do); first != 0 || second != 0 {
			t.Errorf("%s: %v and %v tokens", c.name, first, second)
		}
	}
}

// TestRooms is both servers of SGLang's disaggregated prefill: both legs at once name the same room at the prefill
// server. The decode waits there for the prefill.
func TestRooms(t *testing.T) {
	// Only a failure reaches the patient server's limit. Of a room which no prefill enters, the hasty one says so at once.
	p := start(t, enginemock.Config{Dialect: enginemock.SGLang, Seed: 3, RoomWait: 5 * time.Minute})
	hasty := start(t, enginemock.Config{Dialect: enginemock.SGLang, Seed: 3, RoomWait: time.Millisecond})
	q := start(t, enginemock.Config{Dialect: enginemock.SGLang, Seed: 4})
	const host = "127.0.0.1"
	port := portOf(p)
	_, _, info := ask(t, p, "GET", "/server_info", "")
	if got := at(t, decoded(t, info), "disaggregation_bootstrap_port"); got != float64(port) {
		t.Errorf("the bootstrap port is %v, want %d", got, port)
	}
	room := int64(math.MaxInt64 - 1000)
	// legs sends both legs, of which one prefills at s, and returns the cached tokens of the decode.
	legs := func(s *enginemock.Server, do func(prefill, decode map[string]any)) float64 {
		t.Helper()
		room++
		leg := func() map[string]any {
			return map[string]any{
				"input_ids": prompt(int(room%1000), 40), "sampling_params": map[string]any{"max_new_tokens": 2, "ignore_eos": true},
				"bootstrap_host": host, "bootstrap_port": portOf(s), "bootstrap_room": room,
			}
		}
		first, second := leg(), leg()
		if do != nil {
			do(first, second)
		}
		prefilled := make(chan struct{})
		go func() {
			defer close(prefilled)
			if res, err := postGenerate(t, s, jsonOf(first)); err != nil || res != http.StatusOK {
				t.Errorf("prefill: %v, %v", res, err)
			}
		}()
		n := at(t, post(t, q, "/generate", second), "meta_info", "cached_tokens").(float64)
		<-prefilled
		return n
	}
	if got := legs(p, nil); got != 39 {
		t.Errorf("the decode has %v tokens", got)
	}
	if got := legs(hasty, func(_, d map[string]any) { d["bootstrap_room"] = 1 }); got != 0 {
		t.Errorf("of another room the decode has %v tokens", got)
	}
	for _, c := range []struct {
		name string
		do   func(prefill, decode map[string]any)
	}{
		{"another port", func(_, d map[string]any) { d["bootstrap_port"] = 1 }},
		{"another host", func(_, d map[string]any) { d["bootstrap_host"] = "127.0.0.2.example.invalid" }},
		{"no room", func(_, d map[string]any) { delete(d, "bootstrap_room") }},
		{"no host", func(_, d map[string]any) { delete(d, "bootstrap_host") }},
		{"the default port", func(p, d map[string]any) { delete(p, "bootstrap_port"); delete(d, "bootstrap_port") }},
		{"the decode's own address", func(p, d map[string]any) {
			p["bootstrap_port"], d["bootstrap_port"] = portOf(q), portOf(q)
		}},
		{"another prompt", func(_, d map[string]any) { d["input_ids"] = prompt(7777, 40) }},
	} {
		if got := legs(p, c.do); got != 0 {
			t.Errorf("%s: the decode has %v tokens", c.name, got)
		}
	}
	// The OpenAI routes and lists of a batch have the same fields.
	one := map[string]any{"prompt": prompt(501, 40), "max_tokens": 2, "bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": 5}
	post(t, p, "/v1/completions", one)
	if got := cachedOf(t, post(t, q, "/v1/completions", one)); got != 39 {
		t.Errorf("the decode of a completion has %v tokens", got)
	}
	many := map[string]any{
		"input_ids": [][]int{prompt(502, 40), prompt(503, 40)}, "sampling_params": map[string]any{"max_new_tokens": 2},
		"bootstrap_host": []string{host, host}, "bootstrap_port": []any{port, port}, "bootstrap_room": []int{6, 7},
	}
	if _, _, body := ask(t, p, "POST", "/generate", jsonOf(many)); !strings.HasPrefix(body, "[") {
		t.Errorf("a batch is answered with %.80s", body)
	}
	if _, _, body := ask(t, q, "POST", "/generate", jsonOf(many)); strings.Count(body, `"cached_tokens":39`) != 2 {
		t.Errorf("the decode of a batch is %s", body)
	}
}

// portOf returns the port at which a server listens.
func portOf(s *enginemock.Server) int {
	u, _ := url.Parse(s.URL()) // a server's address is valid
	n, _ := strconv.Atoi(u.Port())
	return n
}

// postGenerate posts to /generate, for a goroutine of its own.
func postGenerate(t *testing.T, s *enginemock.Server, body string) (int, error) {
	res, err := do(t.Context(), s, "POST", "/generate", body)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}
