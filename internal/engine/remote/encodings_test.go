package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
)

// encoders are encode workers which answer with the source of an object, and how often it was asked for.
type encoders struct {
	mu            sync.Mutex
	none          bool // there is no worker
	fails         string
	asked         []string
	salts         []string
	forgotten     int
	running, most int
	wait          chan struct{} // closed when an answer may come
	known         map[string]int
	block         func(context.Context) error
	ran           chan struct{} // closed by Run, if any
}

func (e *encoders) Run(ctx context.Context) error {
	if e.ran != nil {
		close(e.ran)
	}
	<-ctx.Done()
	return nil
}

func (e *encoders) HasEncoders() bool { return !e.none }

func (e *encoders) HandOffObject(ctx context.Context, job *engine.EncodeJob) ([]byte, error) {
	e.mu.Lock()
	e.asked, e.salts = append(e.asked, job.Object.Source), append(e.salts, job.Key.Salt)
	e.running++
	e.most = max(e.most, e.running)
	if e.known == nil {
		e.known = map[string]int{}
	}
	name := job.Object.Key.UUID()
	e.known[name]++
	n, wait := e.known[name], e.wait
	if wait != nil && e.running == maxEncodeJobs {
		close(wait)
		e.wait = nil
	}
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.running--
		e.mu.Unlock()
	}()
	if wait != nil {
		<-wait
	}
	if e.block != nil {
		return nil, e.block(ctx)
	}
	if job.Object.Source == e.fails {
		return nil, errors.New("no")
	}
	if !job.HandOff || job.Key.Encoder != "weights" {
		return nil, fmt.Errorf("asked %+v", job)
	}
	return fmt.Appendf(nil, ` {"%s":{"n":%d}} `, name[:16], n), nil
}

func (e *encoders) ForgetHandoff(*engine.EncodeJob) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgotten++
}

// lookRequest is a conversation which shows objects with the given hashes.
func lookRequest(stream bool, body string, hashes ...uint64) *engine.PassthroughRequest {
	r := &engine.PassthroughRequest{ID: "r", Attempt: 1, Model: "m", Path: pathChat, Stream: stream, Body: []byte(body)}
	for _, h := range hashes {
		r.Objects = append(r.Objects, media.Object{Kind: media.Image, Key: media.Key{Hash: h, Digest: kv.Digest{byte(h)}}})
	}
	return r
}

// imagePart is a part which shows an image at a URL.
func imagePart(url string) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q}}`, url)
}

// conversation is a conversation of parts, with more members before and after.
func conversation(more string, parts ...string) string {
	return `{"model":"m",` + more + `"messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
}

// consumer runs an engine which takes encodings and answers each request with what answer writes.
func consumer(t *testing.T, e *encoders, answer func(w http.ResponseWriter, n int, given any)) *Base {
	t.Helper()
	n := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // what is missing fails to decode
		var q map[string]any
		if err := json.Unmarshal(text, &q); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		n++
		answer(w, n, q[encodingsKey])
	})
	return base(t, s.URL, func(c *Config) {
		c.Card.MediaKeys, c.Card.Encoder, c.Card.Media = engine.MediaKeysUUID, "weights", []string{"image"}
		c.Dialect, c.PassthroughPaths, c.TakesEncodings = nil, []string{pathChat}, true
		c.Salts, c.PassthroughSalts = SaltsUnneeded, SaltsUnneeded
	}, func(b *Base) {
		if e != nil {
			b.UseEncoders(e)
		}
	})
}

// lookAt passes a request on and returns the data of its answer, and how often it was accepted.
func lookAt(b *Base, req *engine.PassthroughRequest) (data string, accepted int, err error) {
	err = b.PassThrough(context.Background(), req, func(p *engine.PassthroughChunk) error {
		if p.Accepted {
			accepted++
		}
		data += string(p.Data)
		return nil
	})
	return data, accepted, err
}

// TestGivesEncodings: each distinct object is asked for once, and the engine gets the entries of all which came.
func TestGivesEncodings(t *testing.T) {
	const audio = `{"type":"input_audio","input_audio":{"data":"AAA=","format":"wav"}}`
	for _, c := range []struct {
		name  string
		req   *engine.PassthroughRequest
		e     *encoders
		asked []string
		want  any
	}{
		{
			name: "two, one of them twice", req: lookRequest(false, conversation(`"cache_salt":"s",`, imagePart("a"), imagePart("b"), imagePart("a")), 1, 2, 1), e: &encoders{},
			asked: []string{"a", "b"}, want: map[string]any{"0000000000000001": map[string]any{"n": 1.0}, "0000000000000002": map[string]any{"n": 1.0}},
		},
		{
			name: "a sound", req: lookRequest(false, conversation("", audio), 3), e: &encoders{},
			asked: []string{"data:audio/wav;base64,AAA="}, want: map[string]any{"0000000000000003": map[string]any{"n": 1.0}},
		},
		{
			name: "one fails", req: lookRequest(false, conversation(`"ec_transfer_params":{"x":{"peer_host":"evil"}},`, imagePart("a"), imagePart("b")), 1, 2), e: &encoders{fails: "a"},
			asked: []string{"a", "b"}, want: map[string]any{"0000000000000002": map[string]any{"n": 1.0}},
		},
		{name: "all fail", req: lookRequest(false, conversation(`"ec_transfer_params":{"x":{"peer_host":"evil"}},`, imagePart("a")), 1), e: &encoders{fails: "a"}, asked: []string{"a"}},
		{name: "nobody to ask", req: lookRequest(false, conversation("", imagePart("a")), 1), e: &encoders{none: true}},
		{name: "processed in another way", req: lookRequest(false, conversation(`"mm_processor_kwargs":{"max_pixels":1},`, imagePart("a")), 1), e: &encoders{}},
		{name: "as usual", req: lookRequest(false, conversation(`"mm_processor_kwargs":null,`, imagePart("a")), 1), e: &encoders{}, asked: []string{"a"}, want: map[string]any{"0000000000000001": map[string]any{"n": 1.0}}},
		{name: "text", req: lookRequest(false, conversation("", `{"type":"text","text":"a"}`)), e: &encoders{}},
		{name: "unknown", req: lookRequest(false, conversation("", imagePart("a"))), e: &encoders{}},
		{name: "no URL", req: lookRequest(false, conversation("", `{"type":"image_embeds","image_embeds":"a"}`), 1), e: &encoders{}},
		{name: "without encoders", req: lookRequest(false, conversation(`"ec_transfer_params":{"x":{}},`, imagePart("a")), 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got any
			b := consumer(t, c.e, func(w http.ResponseWriter, _ int, given any) {
				got = given
				fmt.Fprint(w, `{"choices":[{}]}`)
			})
			if _, accepted, err := lookAt(b, c.req); err != nil || accepted != 1 || !reflect.DeepEqual(got, c.want) {
				t.Errorf("accepted %d, %v, the engine was given %v, want %v", accepted, err, got, c.want)
			}
			if c.e == nil {
				return
			}
			asked := map[string]bool{}
			for i, of := range c.e.asked {
				asked[of] = true
				if want := strings.Contains(string(c.req.Body), "cache_salt"); (c.e.salts[i] == "s") != want {
					t.Errorf("salt %q", c.e.salts[i])
				}
			}
			if len(asked) != len(c.asked) || len(c.e.asked) != len(c.asked) {
				t.Errorf("asked %q, want %q", c.e.asked, c.asked)
			}
			for _, of := range c.asked {
				if !asked[of] {
					t.Errorf("%s was not asked for", of)
				}
			}
		})
	}
}

// TestSaltedNames: an object has another name in each namespace, whether the body has the salt or the request.
func TestSaltedNames(t *testing.T) {
	for _, c := range []struct{ inBody, inRequest, want string }{{"", "", ""}, {"s", "", "s"}, {"", "s", "s"}, {"s", "s", "s"}, {"s", "other", "s"}} {
		var got string
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body) // what is missing has no name
			_, rest, _ := strings.Cut(string(text), `"uuid":"`)
			got, _, _ = strings.Cut(rest, `"`)
			fmt.Fprint(w, `{}`)
		})
		b := base(t, s.URL, func(c *Config) {
			c.Card.MediaKeys, c.Card.Media, c.Dialect, c.PassthroughPaths = engine.MediaKeysUUID, []string{"image"}, nil, []string{pathChat}
			c.Salts, c.PassthroughSalts = SaltsUnneeded, SaltsUnneeded
		})
		more := ""
		if c.inBody != "" {
			more = `"cache_salt":"` + c.inBody + `",`
		}
		req := lookRequest(false, conversation(more, imagePart("a")), 1)
		req.Salt.Namespace = c.inRequest
		if _, _, err := lookAt(b, req); err != nil || got != req.Objects[0].Key.UUIDIn(c.want) {
			t.Errorf("%+v: named %q, %v", c, got, err)
		}
	}
}

// TestLostEncodings: what the engine does not find is asked for once more, then the engine encodes itself. The client
// sees one answer.
func TestLostEncodings(t *testing.T) {
	const role, text, failed = `{"choices":[{"delta":{"role":"assistant"}}]}`, `{"choices":[{"delta":{"content":"x"}}]}`, `{"error":{"message":"Internal server error","code":500}}`
	for _, failing := range []int{0, 1, 2, 3} {
		for _, stream := range []string{"", "at once", "after the role"} {
			t.Run(fmt.Sprintf("%d failures %s", failing, stream), func(t *testing.T) {
				var given []any
				e := &encoders{}
				b := consumer(t, e, func(w http.ResponseWriter, n int, with any) {
					given = append(given, with)
					switch fails := n <= failing; {
					case fails && stream == "":
						w.WriteHeader(http.StatusInternalServerError)
						fmt.Fprint(w, failed)
					case fails && stream == "at once":
						events(w, failed, "[DONE]")
					case fails:
						events(w, role, failed, "[DONE]")
					case stream == "":
						fmt.Fprint(w, text)
					default:
						events(w, role, text, "[DONE]")
					}
				})
				data, accepted, err := lookAt(b, lookRequest(stream != "", conversation("", imagePart("a")), 1))
				if failing == 3 && stream == "" {
					if fault.CodeOf(err) != fault.EngineError || accepted != 0 {
						t.Errorf("%v, accepted %d", err, accepted)
					}
				} else if failing == 3 {
					if err == nil || accepted != 1 { // a stream of a plain request is accepted at once
						t.Errorf("%v, accepted %d", err, accepted)
					}
				} else if err != nil || accepted != 1 || strings.Contains(data, "error") || !strings.Contains(data, "content") || stream != "" && strings.Count(data, "data: ") != 3 {
					t.Errorf("%v, accepted %d: %s", err, accepted, data)
				}
				entry := func(n int) any { return map[string]any{"0000000000000001": map[string]any{"n": float64(n)}} }
				want := []any{entry(1), entry(2), nil}[:min(failing+1, 3)]
				if !reflect.DeepEqual(given, want) || e.forgotten != min(failing, 2) {
					t.Errorf("the engine was given %v, want %v; %d forgotten", given, want, e.forgotten)
				}
			})
		}
	}
}

// TestEncodingsEnd: other errors are not tried again, the number of questions at a time is bounded, and the end of the
// client ends them.
func TestEncodingsEnd(t *testing.T) {
	e := &encoders{}
	b := consumer(t, e, func(w http.ResponseWriter, _ int, _ any) { w.WriteHeader(http.StatusServiceUnavailable) })
	if _, _, err := lookAt(b, lookRequest(false, conversation("", imagePart("a")), 1)); fault.CodeOf(err) != fault.Unavailable || len(e.asked) != 1 {
		t.Errorf("%v, asked %q", err, e.asked)
	}
	e = &encoders{wait: make(chan struct{}), ran: make(chan struct{})}
	b = consumer(t, e, func(w http.ResponseWriter, _ int, given any) {
		if n := len(given.(map[string]any)); n != 20 {
			t.Errorf("%d entries", n)
		}
		fmt.Fprint(w, `{}`)
	})
	var parts []string
	var hashes []uint64
	for i := range 20 {
		parts, hashes = append(parts, imagePart(fmt.Sprint("p", i))), append(hashes, uint64(i+1))
	}
	if _, _, err := lookAt(b, lookRequest(false, conversation("", parts...), hashes...)); err != nil || e.most != maxEncodeJobs {
		t.Errorf("%v, %d at a time", err, e.most)
	}
	<-e.ran // the client runs them, beside its requests
	ctx, cancel := context.WithCancel(t.Context())
	e = &encoders{block: func(within context.Context) error {
		cancel()
		<-within.Done()
		return within.Err()
	}}
	b = consumer(t, e, func(http.ResponseWriter, int, any) { t.Error("the engine was asked") })
	err := b.PassThrough(ctx, lookRequest(false, conversation("", imagePart("a")), 1), func(*engine.PassthroughChunk) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// FuzzEditEncodings checks that the member has the given value and nothing else changes, and that sources can be read.
func FuzzEditEncodings(f *testing.F) {
	f.Add([]byte(conversation(`"ec_transfer_params":{"a":1},`, imagePart("x"))))
	f.Add([]byte(`{"ec_transfer_params":1,"ec_transfer_params":2}`))
	f.Add([]byte(conversation("", `{"type":"input_audio","input_audio":{"data":"AAA=","format":"wav"}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := editRequestBody(nil, text, &editOptions{model: "m", encodings: []byte(`{"k":[1]}`)})
		var before, after map[string]any
		if json.Unmarshal(text, &before) != nil || before == nil || err != nil {
			return
		}
		if json.Unmarshal(got.body, &after) != nil || !reflect.DeepEqual(after[encodingsKey], map[string]any{"k": []any{1.0}}) {
			t.Fatalf("%s became %s", text, got.body)
		}
		for _, p := range got.parts {
			shown := text[p.start-1 : p.end]
			if !json.Valid(shown) {
				t.Fatalf("a part is %s", shown)
			}
			_ = partSource(shown)
		}
	})
}
