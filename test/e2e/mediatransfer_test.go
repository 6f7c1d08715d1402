package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock/internal/config"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/media/fetch"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
	"penstock/internal/serve/bulk"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/worker"
)

// returned waits until nothing is lent.
func (s *server) returned() {
	s.t.Helper()
	s.eventually("all that is lent is given back", func() bool { return s.metric("penstock_media_lent_objects") == "0" })
}

// metric returns the value of a line of /metrics.
func (s *server) metric(line string) string {
	s.t.Helper()
	_, data := s.do(http.MethodGet, "/metrics", nil)
	_, rest, _ := strings.Cut(string(data), "\n"+line+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// hasShared says whether this system has shared memory for bulk data.
const hasShared = runtime.GOOS == "linux"

// TestTransfers: in whatever way what a request shows gets from a frontend to a worker, the answer is
// the same to the byte. What the frontend decoded is not fetched a second time, unless it has to be.
func TestTransfers(t *testing.T) {
	file := pngOf(t, picture(1, 200, 150))
	requests := []map[string]any{
		showing(12, said("Look:"), shown("image", "GALLERY/picture.png"), said("What is it?")),
		showing(12, shown("image", dataURI("image/png", pngOf(t, picture(2, 90, 500)))), shown("image", "GALLERY/picture.png"), said("Which is it?")),
		showing(12, said("And this?"), shown("video", film(t, 1)), shown("audio", sound(1))),
	}
	requests[1]["n"], requests[1]["temperature"], requests[1]["seed"] = 2, 1, 5
	requests[2]["logprobs"], requests[2]["top_logprobs"] = true, 2
	var want []string
	for _, tc := range []struct {
		name     string
		settings []string
		asked    int // how often for the picture; 0 is more than once, in pieces
	}{
		{"url", nil, 0},
		{"off", []string{"frontend-decoding=true", "mm-transfer=off"}, 2},
		{"network", []string{"frontend-decoding=true", "mm-transfer=network"}, 1},
		{"nixl", []string{"frontend-decoding=true", "mm-transfer=nixl"}, 1},
		{"shm", []string{"frontend-decoding=true"}, map[bool]int{true: 1, false: 2}[hasShared]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGallery(t, map[string][]byte{"/picture.png": file})
			f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "media-allow-private=true")
			w := launch(t, config.Worker, append(tc.settings, "nats="+f.started.NATS, "media-allow-private=true")...)
			if warned := strings.Contains(w.log.String(), "NIXL is not spoken here"); warned != (tc.name == "nixl") {
				t.Errorf("warned %v: %s", warned, w.log)
			}
			f.serves("penstock-tiny", 1)
			for i, request := range requests {
				body := strings.ReplaceAll(string(must(json.Marshal(request))(t)), "GALLERY", g.url)
				for _, stream := range []bool{false, true} {
					sent := body
					if stream {
						sent = strings.TrimSuffix(body, "}") + `,"stream":true,"stream_options":{"include_usage":true}}`
					}
					resp, data := f.do(http.MethodPost, "/v1/chat/completions", sent)
					if resp.StatusCode != http.StatusOK {
						t.Fatalf("request %d: %s %s", i, resp.Status, data)
					}
					got := plain(string(data))
					if stream {
						got = plain(foldStream(t, data))
					}
					n := 2 * i
					if stream {
						n++
					}
					if len(want) <= n {
						want = append(want, got)
					} else if got != want[n] {
						t.Errorf("request %d, streamed %v:\n got %s\nwant %s", i, stream, got, want[n])
					}
				}
			}
			sent := f.metric(`penstock_xfer_transfers_total{outcome="ok",side="writer",transport="shm"}`)
			if lends := tc.name == "shm" || tc.name == "network" || tc.name == "nixl"; hasShared && (sent != "0") != lends {
				t.Errorf("%q objects went by shared memory", sent)
			}
			if n := g.count("/picture.png"); tc.asked == 0 && n < 2 || tc.asked > 0 && n != tc.asked {
				t.Errorf("the picture was asked for %d times, want %d", n, tc.asked)
			}
			f.idle()
			f.returned()
		})
	}
}

// TestLargePicture: a decoded picture which is larger than what goes with a request is lent, and no worker fetches it
// a second time.
func TestLargePicture(t *testing.T) {
	const width, height = 4096, 3000
	file := pngOf(t, image.NewGray(image.Rect(0, 0, width, height)))
	if 3*width*height <= 32<<20 {
		t.Fatal("it goes with the request")
	}
	g := newGallery(t, map[string][]byte{"/picture.png": file})
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "media-allow-private=true")
	launch(t, config.Worker, "nats="+f.started.NATS, "media-allow-private=true", "frontend-decoding=true", "mm-transfer=network")
	f.serves("penstock-tiny", 1)
	request := showing(4, shown("image", g.url+"/picture.png"), said("What is it?"))
	if got := f.complete("/v1/chat/completions", request); got.status != http.StatusOK || got.output != 4 {
		t.Fatalf("%+v", got)
	}
	if n := g.count("/picture.png"); n != 1 {
		t.Errorf("the picture was asked for %d times", n)
	}
	transport := map[bool]string{true: "shm", false: "tcp"}[hasShared]
	if n := f.metric(fmt.Sprintf(`penstock_xfer_bytes_total{side="writer",transport=%q}`, transport)); n != "3.6864e+07" {
		t.Errorf("%s bytes went by %s", n, transport)
	}
	f.returned()
}

// TestLentMediaAreReturned: decoded media are lent for as long as their request is under way, and not
// longer, whether the request is answered, refused or given up by its client, or its worker leaves
// in the middle of the answer, which goes on elsewhere.
func TestLentMediaAreReturned(t *testing.T) {
	const long = 600
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	workers := map[uint64]*process{}
	for range 3 {
		w := launch(t, config.Worker, "nats="+f.started.NATS, "frontend-decoding=true", "drain-timeout=1ms")
		workers[uint64(w.started.WorkerID)] = w
	}
	f.serves("penstock-tiny", len(workers))
	request := func(tokens int, more ...map[string]any) map[string]any {
		var parts []map[string]any
		for seed := range uint64(2) {
			parts = append(parts, said("Look:"), shown("image", dataURI("image/png", pngOf(t, picture(seed, 300, 200)))))
		}
		return showing(tokens, append(parts, more...)...)
	}
	want := f.complete("/v1/chat/completions", request(long))
	if want.status != http.StatusOK || want.output != long {
		t.Fatalf("%+v", want)
	}
	f.returned()

	// under starts an answer, and returns the worker which gives it.
	type result struct {
		answer
		err error
	}
	under := func(ctx context.Context) (by uint64, end chan result) {
		const begun = `penstock_frontend_time_to_first_token_seconds_count{model="penstock-tiny"}`
		end = make(chan result, 1)
		before := f.metric(begun)
		go func() {
			a, err := f.stream(ctx, "/v1/chat/completions", request(long))
			end <- result{a, err}
		}()
		f.eventually("the answer is under way", func() bool { return f.metric(begun) != before })
		for _, w := range f.workers() {
			if w.Load.ActiveRequests > 0 {
				by = w.WorkerID
			}
		}
		if n := f.metric("penstock_media_lent_objects"); n != "2" {
			t.Errorf("while two pictures are answered about, %s are lent", n)
		}
		return by, end
	}

	ctx, leave := context.WithCancel(t.Context())
	_, end := under(ctx)
	leave()
	if got := <-end; got.err == nil {
		t.Errorf("the answer came: %+v", got)
	}
	f.returned()

	refused := request(4, shown("image", dataURI("image/png", []byte("no picture"))))
	if got := f.complete("/v1/chat/completions", refused); got.status != http.StatusBadRequest || !strings.Contains(got.err, "messages[0].content[4]") {
		t.Errorf("the third picture is none: %+v", got)
	}
	f.returned()

	for left := len(workers) - 1; left > 0; left-- {
		by, end := under(t.Context())
		if err := workers[by].stop(); err != nil {
			t.Error(err)
		}
		if got := <-end; got.err != nil || got.text != want.text || got.output != long || got.answer.err != "" {
			t.Errorf("%d workers are left: %d tokens, the same: %v, %v %s", left, got.output, got.text == want.text, got.err, got.answer.err)
		}
		f.returned()
	}
	if n := f.metric(`penstock_frontend_migrations_total{kind="ongoing_request"}`); n != "2" {
		t.Errorf("%s answers moved in their middle", n)
	}
}

// TestEveryTokenOfPictures is TestEveryToken of requests that show something, which the frontend lends the workers or
// sends with the request, the next one too. Nothing stays lent.
func TestEveryTokenOfPictures(t *testing.T) {
	t.Parallel()
	g := newGallery(t, map[string][]byte{"/picture.png": pngOf(t, picture(1, 112, 84))})
	fetcher := must(fetch.New(fetch.Config{AllowPrivate: true}))(t)
	t.Cleanup(func() { _ = fetcher.Close() })
	source := resolve.NewFetcherSource(fetcher, 1<<20)
	seeing := func(way resolve.Transfer, limit int) *fleet {
		calls := rpc.NewMemPlane()
		bytes := must(xfer.NewMemPlane(xfer.Config{}))(t)
		log := slog.New(slog.DiscardHandler)
		lender, borrower := bulk.NewLender(calls, bytes, "", log), bulk.NewFetcher(bulk.FetcherConfig{BulkOnly: true, Log: log}, calls, bytes)
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		for _, run := range []func(context.Context) error{lender.Run, borrower.Run} {
			running.Go(func() { _ = run(ctx) }) // it says nothing but that ctx has ended
		}
		t.Cleanup(func() { // after the fleet has stopped
			if n, bytes := lender.Usage(); n != 0 {
				t.Errorf("%d objects of %d bytes are still lent", n, bytes)
			}
			stop()
			running.Wait()
		})
		cfg := fleetConfig{
			workers: 3, pretend: true, frontend: frontend.Config{MigrationLimit: &limit},
			worker: worker.Config{MediaDecoder: &engine.MediaDecoder{Transfer: string(way)}},
			engine: tiny.Config{Files: nothing{}, Fetch: borrower.Fetch},
		}
		cfg.media = must(resolve.New(resolve.Config{}, source, lender))(t)
		return startFleet(t, cfg)
	}
	f, planned := seeing(resolve.TransferShared, 2), seeing(resolve.TransferNetwork, -1)

	encoded := base64.StdEncoding.EncodeToString(pngOf(t, picture(2, 84, 60)))
	byURL := fmt.Sprintf(`{"type":"image_url","image_url":{"url":"%s/picture.png?signature=1"}}`, g.url)
	inside := fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, encoded)
	ask := `{"type":"text","text":"Where does the water go?"}`
	show := func(parts ...string) string {
		return `"messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]`
	}
	everyToken(t, f, planned, map[string]movableRequest{
		"greedy":       {"/v1/chat/completions", show(byURL, ask) + `,"max_tokens":12,"temperature":0,"logprobs":true`},
		"two pictures": {"/v1/chat/completions", show(inside, ask, byURL) + `,"max_tokens":8,"temperature":1.2,"seed":9,"n":2`},
		"tool":         {"/v1/chat/completions", show(ask, inside) + `,"max_tokens":60,"temperature":1,"seed":1,"tool_choice":"required","tools":[{"type":"function","function":{"name":"valve","parameters":{"type":"object","additionalProperties":false,"properties":{"open":{"type":"boolean"}},"required":["open"]}}}]`},
		"messages":     {"/v1/messages", show(fmt.Sprintf(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}`, encoded), ask) + `,"max_tokens":9,"temperature":0`},
		"responses":    {"/v1/responses", fmt.Sprintf(`"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,%s"},{"type":"input_text","text":"Where does the water go?"}]}],"max_output_tokens":9,"temperature":0`, encoded)},
	})
}

// nothing is where an engine has nothing from that did not come with the request.
type nothing struct{}

func (nothing) FetchFile(context.Context, string) ([]byte, func(), error) {
	return nil, nil, errors.New("the engine fetches")
}

func (nothing) ParseData(string) ([]byte, error) { return nil, errors.New("the engine decodes") }
