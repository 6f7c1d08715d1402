package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"penstock/internal/config"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/media/fetch"
	"penstock/internal/media/shm"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/worker"
)

// segments are the segments of shared memory that this process has made and not given back. On
// systems without shared memory there are none.
func segments() (names []string) {
	const fds = "/proc/self/fd"
	open, _ := os.ReadDir(fds) // no such directory: no segments either
	for _, fd := range open {
		if at, err := os.Readlink(filepath.Join(fds, fd.Name())); err == nil && strings.HasPrefix(at, filepath.Join(shm.Dir, "penstock-")) {
			names = append(names, at)
		}
	}
	return names
}

// returned waits until nothing is lent, and looks whether what was has left a file behind.
func (s *server) returned(lent []string) {
	s.t.Helper()
	s.eventually("all shared memory is given back", func() bool { return len(segments()) == 0 })
	for _, name := range lent {
		if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			s.t.Errorf("%s: %v", name, err)
		}
	}
}

// metric returns the value of a line of /metrics.
func (s *server) metric(line string) string {
	s.t.Helper()
	_, data := s.do(http.MethodGet, "/metrics", nil)
	_, rest, _ := strings.Cut(string(data), "\n"+line+" ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// hasShared says whether this system has shared memory that processes find by name.
const hasShared = runtime.GOOS == "linux"

// TestTransfers: in whatever way what a request shows gets from a frontend to a worker, the answer is
// the same to the byte. What the frontend decoded nobody fetches a second time, unless he has to.
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
		{"shm", []string{"frontend-decoding=true"}, map[bool]int{true: 1, false: 2}[hasShared]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGallery(t, map[string][]byte{"/picture.png": file})
			f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "media-allow-private=true")
			launch(t, config.Worker, append(tc.settings, "nats="+f.started.NATS, "media-allow-private=true")...)
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
			if n := g.count("/picture.png"); tc.asked == 0 && n < 2 || tc.asked > 0 && n != tc.asked {
				t.Errorf("the picture was asked for %d times, want %d", n, tc.asked)
			}
			f.idle()
			f.returned(nil)
		})
	}
}

// TestSharedMemoryIsReturned: shared memory is lent for as long as its request is under way, and not
// longer, whether the request is answered, refused or given up by its client, or its worker leaves
// in the middle of the answer, which goes on elsewhere.
func TestSharedMemoryIsReturned(t *testing.T) {
	const long = 1500
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
	f.returned(nil)

	// under starts an answer, and returns what is lent for it and who gives it.
	type result struct {
		answer
		err error
	}
	under := func(ctx context.Context) (lent []string, by uint64, end chan result) {
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
				by, lent = w.WorkerID, segments()
			}
		}
		if hasShared && len(lent) != 2 {
			t.Errorf("while two pictures are answered about, %v are lent", lent)
		}
		return lent, by, end
	}

	ctx, leave := context.WithCancel(t.Context())
	lent, _, end := under(ctx)
	leave()
	if got := <-end; got.err == nil {
		t.Errorf("the answer came: %+v", got)
	}
	f.returned(lent)

	refused := request(4, shown("image", dataURI("image/png", []byte("no picture"))))
	if got := f.complete("/v1/chat/completions", refused); got.status != http.StatusBadRequest || !strings.Contains(got.err, "messages[0].content[4]") {
		t.Errorf("the third picture is none: %+v", got)
	}
	f.returned(nil)

	for left := len(workers) - 1; left > 0; left-- {
		lent, by, end := under(t.Context())
		if err := workers[by].stop(); err != nil {
			t.Error(err)
		}
		if got := <-end; got.err != nil || got.text != want.text || got.output != long || got.answer.err != "" {
			t.Errorf("%d workers are left: %d tokens, the same: %v, %v %s", left, got.output, got.text == want.text, got.err, got.answer.err)
		}
		f.returned(lent)
	}
	if n := f.metric(`penstock_frontend_migrations_total{kind="ongoing_request"}`); n != "2" {
		t.Errorf("%s answers moved in their middle", n)
	}
}

// TestEveryTokenOfPictures is TestEveryToken of requests that show something, which the workers have
// from shared memory or with the request, the next one too. Nothing stays lent.
func TestEveryTokenOfPictures(t *testing.T) {
	t.Parallel()
	g := newGallery(t, map[string][]byte{"/picture.png": pngOf(t, picture(1, 112, 84))})
	fetcher := must(fetch.New(fetch.Config{AllowPrivate: true}))(t)
	t.Cleanup(func() { _ = fetcher.Close() })
	source := resolve.NewFetcherSource(fetcher, 1<<20)
	dir := t.TempDir()
	seeing := func(way resolve.Transfer, limit int) *fleet {
		cfg := fleetConfig{
			workers: 3, pretend: true, frontend: frontend.Config{MigrationLimit: &limit},
			worker: worker.Config{MediaDecoder: &engine.MediaDecoder{Transfer: string(way)}},
			engine: tiny.Config{Files: nothing{}, Segment: func(name string, size int) ([]byte, func(), error) {
				m, err := shm.OpenIn(dir, name, size)
				if err != nil {
					return nil, nil, err
				}
				return m.Bytes(), func() { _ = m.Close() }, nil
			}},
		}
		var lends resolve.Lender
		if way == resolve.TransferShared {
			lender := must(shm.NewLender(shm.Config{Dir: dir}))(t)
			t.Cleanup(func() { // after the fleet has stopped
				if n, bytes := lender.Usage(); n != 0 {
					t.Errorf("%d segments of %d bytes are still lent", n, bytes)
				}
				left, err := os.ReadDir(dir)
				if err != nil || len(left) > 0 {
					t.Errorf("left behind: %v %v", left, err)
				}
				_ = lender.Close()
			})
			lends = resolve.NewShmLender(lender, time.Hour)
		}
		cfg.media = must(resolve.New(resolve.Config{}, source, lends))(t)
		return startFleet(t, cfg)
	}
	way := resolve.TransferShared
	if !hasShared {
		way = resolve.TransferNetwork
	}
	f, planned := seeing(way, 2), seeing(resolve.TransferNetwork, -1)

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
