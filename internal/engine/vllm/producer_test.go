package vllm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

// pngURI is a data: URI of a picture of one colour.
func pngURI(t testing.TB, colour byte) string {
	t.Helper()
	p := image.NewRGBA(image.Rect(0, 0, 112, 84))
	for i := range 112 * 84 {
		p.Set(i%112, i/112, color.RGBA{colour, 1, 9, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

func pictureOf(t testing.TB, colour byte) media.Object {
	return media.Object{Kind: media.Image, Key: media.Key{Hash: uint64(colour), Digest: kv.Digest{colour}}, Part: "messages[0].content[0]", Source: pngURI(t, colour)}
}

// running runs an engine until the test ends.
func running[E engine.Engine](t testing.TB, e E) E {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

// sharing starts mocked engines of roles which share a directory.
func sharing(t testing.TB, roles ...enginemock.ECRole) (all []*enginemock.Server, store string) {
	store = t.TempDir()
	for _, role := range roles {
		s, _ := served(t, func(c *enginemock.Config) {
			c.ECRole, c.Root = role, "model"
			if role != enginemock.NoECRole {
				c.ECStore = store
			}
		})
		all = append(all, s)
	}
	return all, store
}

func openProducer(t testing.TB, s *enginemock.Server) (*Producer, error) {
	t.Helper()
	return OpenProducer(context.Background(), Config{Spec: spec(t, s.URL()), Tokenizer: engine.TokenizerRef{Kind: "builtin"}})
}

// TestOpenProducer: what a producer is found out to be, and what other servers are refused with.
func TestOpenProducer(t *testing.T) {
	all, store := sharing(t, enginemock.ECProducer, enginemock.ECConsumer, enginemock.NoECRole)
	e, err := openProducer(t, all[0])
	if err != nil {
		t.Fatal(err)
	}
	card := running(t, e).Card()
	if card.Role != engine.RoleEncode || card.Encoder != "vllm 0.29.0 model" || len(card.Media) == 0 || card.Name != "tiny" {
		t.Errorf("card %+v", card)
	}
	if _, unused := card.UnusedRoleWarning(); unused || engine.WarningsOf(e) != nil {
		t.Errorf("warnings %v", engine.WarningsOf(e))
	}
	if files, err := filepath.Glob(filepath.Join(store, "*", "*")); err != nil || len(files) != 1 {
		t.Errorf("the sample made %q, %v", files, err)
	}
	for _, s := range all[1:] {
		if _, err := openProducer(t, s); err == nil || !strings.Contains(err.Error(), `encodes nothing for others`) || !strings.Contains(err.Error(), `"ec_role":"ec_producer"`) {
			t.Errorf("no producer: %v", err)
		}
	}
	_, err = Open(context.Background(), Config{Spec: spec(t, all[0].URL()), Tokenizer: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}})
	if err == nil || !strings.Contains(err.Error(), "--role encode") {
		t.Errorf("a producer is to generate: %v", err)
	}
	// What a consumer cannot do without.
	for settings, change := range map[string]func(*Config){
		"media-keys": func(c *Config) { c.MediaKeys = remote.MediaKeysOff },
		"no media":   func(c *Config) { c.Media = []string{} },
	} {
		cfg := Config{Spec: spec(t, all[1].URL()), Tokenizer: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}}
		cfg.Spec.ECRole = remote.ECConsumer
		change(&cfg)
		if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(settings, "no ")) {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

// TestEncodedUnderAnotherName: a server which does not use the names of requests is no help to consumers, which would
// not find what it encoded.
func TestEncodedUnderAnotherName(t *testing.T) {
	all, _ := sharing(t, enginemock.ECProducer)
	at, err := url.Parse(all[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(at)
	renaming := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body = bytes.Replace(body, []byte(`"uuid":"`), []byte(`"uuid":"x`), 1)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(renaming.Close)
	e, err := OpenProducer(context.Background(), Config{Spec: spec(t, renaming.URL), Tokenizer: engine.TokenizerRef{Kind: "builtin"}})
	if err != nil {
		t.Fatal(err)
	}
	running(t, e)
	o := pictureOf(t, 7)
	_, err = e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r", Attempt: 1, Encoder: e.Card().Encoder}, &o)
	if fault.CodeOf(err) != fault.Conflict || !strings.Contains(err.Error(), "under another name") {
		t.Errorf("%v", err)
	}
}

// TestEncodesForOthers: an object is encoded once under the name of its key, and what is wrong with a request is said.
func TestEncodesForOthers(t *testing.T) {
	all, store := sharing(t, enginemock.ECProducer)
	e, err := openProducer(t, all[0])
	if err != nil {
		t.Fatal(err)
	}
	running(t, e)
	before := all[0].ECStats().Encoded
	var asking sync.WaitGroup
	o := pictureOf(t, 7)
	for range 8 {
		asking.Go(func() {
			got, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r", Attempt: 1, Encoder: e.Card().Encoder}, &o)
			var entries map[string]struct {
				Indices []int `json:"item_indices"`
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer got.Release()
			if err := json.Unmarshal(got.Handoff, &entries); err != nil || len(entries) != 1 || len(entries[o.Key.UUID()].Indices) != 1 {
				t.Errorf("%s: %v", got.Handoff, err)
			}
		})
	}
	asking.Wait()
	if n := all[0].ECStats().Encoded - before; n != 1 || e.EncodeLoad() != 0 {
		t.Errorf("%d runs of the encoder, load %d", n, e.EncodeLoad())
	}
	if _, err := os.Stat(filepath.Join(store, o.Key.UUID(), "encoder_cache.safetensors")); err != nil {
		t.Error(err)
	}
	salted, err := e.EncodeObject(t.Context(), &engine.EncodeRequest{ID: "r", Attempt: 1, Namespace: "tenant"}, &o)
	if err != nil || !strings.Contains(string(salted.Handoff), o.Key.UUIDIn("tenant")) || all[0].ECStats().Encoded-before != 2 {
		t.Errorf("salted: %+v, %v", salted, err)
	}
	for name, c := range map[string]struct {
		change func(*engine.EncodeRequest, *media.Object)
		code   fault.Code
		says   string
	}{
		"of another model": {func(r *engine.EncodeRequest, _ *media.Object) { r.Encoder = "vllm 0.1 other" }, fault.Conflict, "vllm 0.29.0 model"},
		"no source":        {func(_ *engine.EncodeRequest, o *media.Object) { o.Source = "" }, fault.NotFound, "URL"},
		"cached ones":      {func(r *engine.EncodeRequest, _ *media.Object) { r.CachedOnly = true }, fault.NotFound, ""},
		"no key":           {func(_ *engine.EncodeRequest, o *media.Object) { o.Key = media.Key{} }, fault.Invalid, "no key"},
		"no picture":       {func(_ *engine.EncodeRequest, o *media.Object) { o.Source = "data:image/png;base64,AAAA" }, fault.Invalid, "Failed to load image"},
	} {
		req, one := &engine.EncodeRequest{ID: "r", Attempt: 1}, pictureOf(t, 8)
		c.change(req, &one)
		_, err := e.EncodeObject(t.Context(), req, &one)
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := all[0].Faults().Set(enginemock.Fault{Kind: enginemock.FaultStall}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := e.EncodeObject(ctx, &engine.EncodeRequest{ID: "r", Attempt: 1}, &o); err != context.Canceled {
		t.Errorf("the caller went away: %v", err)
	}
}

// direct are encode workers without a fleet: the engines themselves.
type direct struct {
	encoder   *Producer
	mu        sync.Mutex
	asked     int
	forgotten int
	known     map[string][]byte
}

func (d *direct) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (d *direct) HasEncoders() bool             { return true }

func (d *direct) HandOffObject(ctx context.Context, job *engine.EncodeJob) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := job.Object.Key.UUID()
	if h := d.known[name]; h != nil {
		return h, nil
	}
	d.asked++
	got, err := d.encoder.EncodeObject(ctx, &engine.EncodeRequest{ID: job.ID, Attempt: 1, Encoder: job.Key.Encoder}, job.Object)
	if err != nil {
		return nil, err
	}
	d.known[name] = got.Handoff
	return got.Handoff, nil
}

func (d *direct) ForgetHandoff(job *engine.EncodeJob) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgotten++
	delete(d.known, job.Object.Key.UUID())
}

// TestConsumes: a consumer loads what the producer encoded, and encodes itself what was lost meanwhile.
func TestConsumes(t *testing.T) {
	all, _ := sharing(t, enginemock.ECProducer, enginemock.ECConsumer, enginemock.NoECRole)
	producer, consumer, alone := all[0], all[1], all[2]
	encoder, err := openProducer(t, producer)
	if err != nil {
		t.Fatal(err)
	}
	running(t, encoder)
	open := func(s *enginemock.Server, role remote.ECRole) *Engine {
		of := spec(t, s.URL())
		of.ECRole = role
		of.Events, of.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
		e, err := Open(context.Background(), Config{Spec: of, Tokenizer: engine.TokenizerRef{Kind: engine.TokenizerOfEngine}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	to := &direct{encoder: encoder, known: map[string][]byte{}}
	e, reference := open(consumer, remote.ECConsumer), open(alone, remote.NoECRole)
	if e.Card().Encoder != encoder.Card().Encoder || reference.Card().Encoder != "" || !e.TakesEncodings() || reference.TakesEncodings() {
		t.Errorf("encoders %q, %q and %q", e.Card().Encoder, encoder.Card().Encoder, reference.Card().Encoder)
	}
	e.UseEncoders(to)
	running(t, e)
	running(t, reference)
	answer := func(e *Engine, stream bool, colours ...byte) string {
		t.Helper()
		req := &engine.PassthroughRequest{ID: "r", Attempt: 1, Model: "tiny", Path: pathChat, Stream: stream}
		parts := `{"type":"text","text":"look"}`
		for _, c := range colours {
			o := pictureOf(t, c)
			parts += fmt.Sprintf(`,{"type":"image_url","image_url":{"url":%q}}`, o.Source)
			o.Source = ""
			req.Objects = append(req.Objects, o)
		}
		req.Body = fmt.Appendf(nil, `{"model":"tiny","stream":%v,"messages":[{"role":"user","content":[%s]}],"max_tokens":6,"temperature":0}`, stream, parts)
		text := ""
		err := e.PassThrough(t.Context(), req, func(p *engine.PassthroughChunk) error {
			text += string(p.Data)
			return nil
		})
		if err != nil {
			t.Fatalf("%v: %v", colours, err)
		}
		return contentOf(t, text)
	}
	first := producer.ECStats().Encoded
	expect := func(what string, encoded, asked, forgotten int, want enginemock.ECStats) {
		t.Helper()
		if n, got := producer.ECStats().Encoded-first, consumer.ECStats(); n != encoded || to.asked != asked || to.forgotten != forgotten || got != want {
			t.Errorf("%s: the producer encoded %d and was asked %d times, %d forgotten, the consumer %+v; want %d, %d, %d, %+v", what, n, to.asked, to.forgotten, got, encoded, asked, forgotten, want)
		}
	}
	for _, stream := range []bool{false, true} {
		if got, want := answer(e, stream, 1, 2, 1), answer(reference, stream, 1, 2, 1); got != want {
			t.Errorf("answer %q, and %q of an engine alone", got, want)
		}
		expect("two pictures", 2, 2, 0, enginemock.ECStats{Loaded: 2})
	}
	answer(e, false)
	expect("text", 2, 2, 0, enginemock.ECStats{Loaded: 2})
	if err := producer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultLostEncoding, Count: 1}); err != nil {
		t.Fatal(err)
	}
	answer(e, false, 3)
	expect("lost after it was announced", 3, 3, 0, enginemock.ECStats{Loaded: 2, Encoded: 1, Missing: 1})
	for _, stream := range []bool{false, true} {
		if err := consumer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultEncodings, Count: 1}); err != nil {
			t.Fatal(err)
		}
		asked, forgotten := to.asked, to.forgotten
		if got, want := answer(e, stream, 4, 2), answer(reference, stream, 4, 2); got != want || to.forgotten != forgotten+2 || to.asked < asked+2 {
			t.Errorf("answer %q, want %q; asked %d, forgotten %d", got, want, to.asked-asked, to.forgotten-forgotten)
		}
	}
	if err := consumer.Faults().Set(enginemock.Fault{Kind: enginemock.FaultEncodings}); err != nil {
		t.Fatal(err)
	}
	if got, want := answer(e, true, 5), answer(reference, true, 5); got != want {
		t.Errorf("nothing can be had: %q, want %q", got, want)
	}
}

// contentOf returns the text of an answer, whole or a stream.
func contentOf(t *testing.T, answer string) (text string) {
	t.Helper()
	for line := range strings.SplitSeq(answer, "\n") {
		line = strings.TrimPrefix(line, "data: ")
		if line == "" || line == "[DONE]" {
			continue
		}
		var o struct {
			Choices []struct {
				Delta, Message struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, c := range o.Choices {
			text += c.Delta.Content + c.Message.Content
		}
	}
	return text
}

// FuzzReadEncoding checks that what is read as a handoff is an object with the names that were found.
func FuzzReadEncoding(f *testing.F) {
	f.Add([]byte(`{"usage":{"completion_tokens":0},"ec_transfer_params":{"ab":{"item_indices":[0],"metadata":{}}}}`))
	f.Add([]byte(`{"ec_transfer_params":null}`))
	f.Add([]byte(`{"ec_transfer_params":{},"ec_transfer_params":{"a":1}}`))
	f.Add([]byte(`{"ec_transfer_params":{"":{]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readEncoding(text)
		if err != nil || got.handoff == nil {
			return
		}
		var entries map[string]any
		if json.Unmarshal(got.handoff, &entries) != nil || len(entries) == 0 || len(entries) > len(got.names) {
			t.Fatalf("%q: %q of %q", text, got.handoff, got.names)
		}
	})
}
