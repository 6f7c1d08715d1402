package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// mediaAnswer is what a test reads of an answer to a request with media, whole or streamed.
type mediaAnswer struct {
	status       int
	dropped      string // the header
	texts        map[int]string
	prompt       int
	output       int
	code, param  string
	error        string
	droppedKinds map[int]string // nvext
	halved       map[int]int
	attempts     int
	header       http.Header
}

// ask sends a chat request and reads its answer.
func (s *server) ask(request map[string]any, changes map[string]any) mediaAnswer {
	s.t.Helper()
	request = maps.Clone(request)
	maps.Copy(request, changes)
	resp, data := s.do(http.MethodPost, "/v1/chat/completions", request)
	a := mediaAnswer{status: resp.StatusCode, dropped: resp.Header.Get("X-Penstock-Media-Dropped"), header: resp.Header, texts: map[int]string{}, droppedKinds: map[int]string{}, halved: map[int]int{}}
	bodies := []string{string(data)}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		bodies = nil
		for line := range strings.Lines(string(data)) {
			if body, ok := strings.CutPrefix(line, "data: {"); ok {
				bodies = append(bodies, "{"+body)
			}
		}
	}
	for _, body := range bodies {
		var c struct {
			Choices []struct {
				Index          int
				Delta, Message struct{ Content string }
			}
			Usage *struct {
				Prompt int `json:"prompt_tokens"`
				Output int `json:"completion_tokens"`
			}
			Nvext struct {
				Attempts int
				Dropped  []struct {
					Index int
					Kind  string
				} `json:"media_dropped"`
				Halved []struct{ Index, Times int } `json:"media_halved"`
			}
			Error struct{ Message, Code, Param string }
		}
		if err := json.Unmarshal([]byte(body), &c); err != nil {
			s.t.Fatalf("%v in %s", err, body)
		}
		for _, one := range c.Choices {
			a.texts[one.Index] += one.Delta.Content + one.Message.Content
		}
		if c.Usage != nil {
			a.prompt, a.output = c.Usage.Prompt, c.Usage.Output
		}
		for _, m := range c.Nvext.Dropped {
			a.droppedKinds[m.Index] = m.Kind
		}
		for _, m := range c.Nvext.Halved {
			a.halved[m.Index] = m.Times
		}
		a.attempts = max(a.attempts, c.Nvext.Attempts)
		if c.Error.Message != "" {
			a.error, a.code, a.param = c.Error.Message, c.Error.Code, c.Error.Param
		}
	}
	return a
}

func textOnly() map[string]any {
	return map[string]any{"nvext": map[string]any{"media_failure": "text_only"}}
}

// TestCorruptPicture: a picture whose header is right and whose pixels are cut off reaches the engine, which refuses it.
// By default the request fails. With text_only it is answered, token for token, as the request without the picture.
func TestCorruptPicture(t *testing.T) {
	t.Parallel()
	s := start(t, "workers=2")
	file := pngOf(t, picture(3, 112, 112))
	cut := shown("image", dataURI("image/png", file[:len(file)/2]))
	good := shown("image", dataURI("image/png", pngOf(t, picture(4, 56, 56))))
	all := showing(6, said("Look:"), good, cut, said("And now?"))
	without := showing(6, said("Look:"), good, said("And now?"))
	for _, n := range []int{1, 3} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("n=%d,stream=%v", n, stream), func(t *testing.T) {
				changes := map[string]any{"stream": stream, "n": n, "seed": 5}
				if n > 1 {
					changes["temperature"] = 0.8
				}
				if stream {
					changes["stream_options"] = map[string]any{"include_usage": true}
				}
				a := s.ask(all, changes)
				if a.status != http.StatusBadRequest || a.code != "invalid_request" || a.param != "messages[0].content[2]" || a.dropped != "" {
					t.Errorf("by default: %+v", a)
				}
				want := s.ask(without, changes)
				maps.Copy(changes, textOnly())
				got := s.ask(all, changes)
				if got.status != http.StatusOK || got.prompt != want.prompt || got.output != want.output || len(got.texts) != n || !maps.Equal(got.texts, want.texts) {
					t.Errorf("%+v\nwithout the picture\n%+v", got, want)
				}
				if got.dropped != "1=corrupt" || !maps.Equal(got.droppedKinds, map[int]string{1: "corrupt"}) || got.attempts != 2 || got.header.Get("X-Penstock-Text-Only") != "" {
					t.Errorf("it says %+v", got)
				}
			})
		}
	}
	if v := s.metric(`penstock_frontend_media_dropped_total{kind="corrupt",model="penstock-tiny"}`); v != "4" {
		t.Errorf("%s dropped media are counted", v)
	}
	s.idle()
}

// TestTooLargePicture: a simulated encoder has no memory for a picture of so many tokens. It gets it at half its
// resolution, and again; then the request is decided.
func TestTooLargePicture(t *testing.T) {
	t.Parallel()
	request := showing(4, said("What is this?"), shown("image", dataURI("image/png", pngOf(t, picture(5, 224, 224)))))
	request["model"] = simulated
	text := showing(4, said("What is this?"))
	text["model"] = simulated
	for _, tt := range []struct {
		fault  string
		halved int
		failed bool
	}{
		{"out_of_memory:65", 0, false},
		{"out_of_memory:20", 1, false},
		{"out_of_memory:5", 2, false},
		{"out_of_memory:1", 2, true},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			s := start(t, "engine=sim", "workers=2", "sim-speedup=100", "sim-media-faults="+tt.fault)
			plain := s.ask(text, nil)
			for _, stream := range []bool{false, true} {
				changes := map[string]any{"stream": stream}
				if stream {
					changes["stream_options"] = map[string]any{"include_usage": true}
				}
				a := s.ask(request, changes)
				switch pads := 64 >> (2 * tt.halved); {
				case tt.failed && (a.status != http.StatusUnprocessableEntity || a.code != "media_failed" || a.param != "messages[0].content[1]"):
					t.Errorf("%+v", a)
				case !tt.failed && (a.status != http.StatusOK || a.prompt != plain.prompt+pads || a.attempts != 1+tt.halved || a.halved[0] != tt.halved || a.dropped != ""):
					t.Errorf("%+v, beside %d tokens of text", a, plain.prompt)
				}
				maps.Copy(changes, textOnly())
				if a := s.ask(request, changes); tt.failed && (a.status != http.StatusOK || a.prompt != plain.prompt || a.dropped != "0=out_of_memory" || a.attempts != 4 || len(a.halved) != 0) {
					t.Errorf("text_only: %+v, want %d tokens", a, plain.prompt)
				}
			}
			s.idle()
		})
	}
}

// TestMediaDeadline: the error of an object which was not encoded in time says so, with its part; no other worker is
// asked, and the setting decides.
func TestMediaDeadline(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=2", "sim-speedup=100", "sim-media-faults=deadline")
	request := showing(4, said("What is this?"), shown("image", dataURI("image/png", pngOf(t, picture(6, 56, 56)))))
	request["model"] = simulated
	if a := s.ask(request, nil); a.status != http.StatusGatewayTimeout || a.code != "deadline_exceeded" || a.param != "messages[0].content[1]" {
		t.Errorf("%+v", a)
	}
	if a := s.ask(request, textOnly()); a.status != http.StatusOK || a.dropped != "0=deadline" || a.attempts != 2 {
		t.Errorf("%+v", a)
	}
	s.idle()
}
