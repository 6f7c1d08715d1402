package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"penstock/internal/config"
)

// village is a frontend that takes routers by turns, two routers, and two workers.
type village struct {
	t       *testing.T
	front   *process
	routers []*process
	workers []*process
	blocks  int // that the routers should know of, at least
}

// settle starts a village.
func settle(t *testing.T, worker, router, front []string) *village {
	t.Helper()
	v := &village{t: t, front: launch(t, config.Frontend, append(front, "nats-listen=127.0.0.1:0", "component=router", "router-mode=round-robin")...)}
	nats := "nats=" + v.front.started.NATS
	for i := range 2 {
		v.workers = append(v.workers, launch(t, config.Worker, append(worker, nats)...))
		v.routers = append(v.routers, launch(t, config.Router, append(router, nats, "http-addr=127.0.0.1:0", fmt.Sprint("router-seed=", i+1))...))
	}
	v.front.serves("penstock-tiny", 2)
	for _, r := range v.routers {
		r.eventually("both workers", func() bool { return len(r.server.workers()) == 2 })
	}
	return v
}

// chosen is what became of a request: what the client got, and which worker which of the routers chose.
type chosen struct {
	answer
	router int
	worker uint64
}

// ask sends a request, and waits until all routers know what is cached then.
func (v *village) ask(id string, request map[string]any) chosen {
	v.t.Helper()
	c := chosen{answer: v.front.complete("/v1/chat/completions", request, "x-request-id", id), router: -1}
	if c.status != http.StatusOK {
		v.t.Fatalf("%s: %+v", id, c.answer)
	}
	for i, r := range v.routers {
		if resp, _ := r.do(http.MethodGet, "/v1/router/decisions?request_id="+id, nil); resp.StatusCode == http.StatusOK {
			attempts := r.tried(id)
			c.router, c.worker = i, attempts[len(attempts)-1].WorkerID
		}
	}
	if c.router < 0 {
		v.t.Fatalf("no router decided about %s", id)
	}
	const size = 16
	v.blocks += c.prompt/size - c.cached/size
	for _, r := range v.routers {
		r.eventually("what is cached is known", func() bool {
			known := 0
			for _, w := range r.server.workers() {
				known += w.CachedBlocks
			}
			return known >= v.blocks
		})
		r.idle()
	}
	return c
}

// TestMultimodalRouters: behind a frontend that looks at nothing (it may not fetch from this machine, where the pictures
// are), router processes identify the pictures. They agree: a picture is found where it is, whichever of them
// is asked, and the answer is that of one process. What was decoded reaches workers that may not fetch it either.
func TestMultimodalRouters(t *testing.T) {
	t.Parallel()
	const shots, rounds, photoTokens = 5, 3, 8 * 8 // of 28 by 28 pixels
	files := map[string][]byte{}
	for seed := range uint64(shots) {
		files[fmt.Sprintf("/%d.png", seed)] = pngOf(t, picture(seed, 224, 224))
	}
	at := newGallery(t, files).url
	alone := start(t, "workers=1", "media-allow-private=true")
	ask := func(seed uint64) map[string]any {
		question := fmt.Sprintf("%d. What is this?%s", seed, strings.Repeat(" Say it in some words.", int(seed)))
		return showing(12, said(question), shown("image", fmt.Sprintf("%s/%d.png", at, seed)))
	}
	want := make([]answer, shots)
	for i := range want {
		want[i] = alone.complete("/v1/chat/completions", ask(uint64(i)))
	}
	may := []string{"media-allow-private=true"}
	looks := []string{"media-allow-private=true", "multimodal=true"}
	for name, c := range map[string]struct{ worker, router, front []string }{
		"by URL":               {worker: may, router: looks},
		"by bytes":             {worker: may, router: append(looks, "media-identity=bytes")},
		"decoded":              {worker: []string{"frontend-decoding=true"}, router: looks},
		"decoded, in the call": {worker: []string{"frontend-decoding=true", "mm-transfer=network"}, router: looks},
		"left to the frontend": {worker: []string{"frontend-decoding=true"}, front: may},
	} {
		if !hasShared {
			c.worker = append(c.worker, may...) // it fetches what it cannot have so
		}
		t.Run(name, func(t *testing.T) {
			v := settle(t, c.worker, c.router, c.front)
			holder, routers := map[uint64]uint64{}, map[int]bool{}
			for round := range rounds {
				for seed := range uint64(shots) {
					got := v.ask(fmt.Sprint("r", round, "-", seed), ask(seed))
					routers[got.router] = true
					if got.text != want[seed].text || got.prompt != want[seed].prompt {
						t.Errorf("picture %d: %+v, want %+v", seed, got.answer, want[seed])
					}
					switch {
					case round == 0:
						holder[seed] = got.worker
						if got.cached > 16 {
							t.Errorf("picture %d is new: %+v", seed, got.answer)
						}
					case got.cached < photoTokens || got.worker != holder[seed]:
						t.Errorf("round %d, picture %d: %+v, which is at %d", round, seed, got, holder[seed])
					}
				}
			}
			looked := 0
			for _, r := range v.routers {
				n, _ := strconv.Atoi(r.metric(`penstock_router_process_media_resolve_seconds_count{outcome="resolved"}`))
				if lent := r.metric("penstock_media_lent_objects"); c.router != nil && lent != "0" {
					t.Errorf("%q segments are lent", lent)
				}
				looked += n
			}
			all := rounds * shots
			if c.router == nil {
				all = 0
			}
			if len(routers) != 2 || looked != all {
				t.Errorf("the routers %v were asked, %d times", routers, looked)
			}
			a := v.front.complete("/v1/chat/completions", showing(1, said("What is this?"), shown("image", metadata)))
			if a.status != http.StatusBadRequest || !strings.Contains(a.err, "messages[0].content[1].image_url.url") {
				t.Errorf("an address that is refused: %+v", a)
			}
		})
	}
}
