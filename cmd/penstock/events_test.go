package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

func TestPrintEventWithLabels(t *testing.T) {
	const prefix = "worker 7 rank 0  event 3  stored  device from block 0  aa bb cc dd … 5 blocks"
	for data, want := range map[string]string{
		`{"worker_id":7,"seq":3,"kind":"stored","outcome":"apply","tier":"device","seqs":["aa","bb","cc","dd","ee"]}`: prefix + "\n",
		`{"worker_id":7,"seq":3,"kind":"stored","outcome":"gap","tier":"device","seqs":["aa","bb","cc","dd","ee"],
		  "labels":[{"layer":3,"expert":17},null,{"layer":60,"expert":255,"group":0},null,null]}`: prefix + "  experts 3/17 - 60/255@0 - … 5 blocks  (gap)\n",
	} {
		var out strings.Builder
		if err := printEvent(&out, data, false); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("printed\n%swant\n%s", out.String(), want)
		}
	}
}

func TestPrintTransition(t *testing.T) {
	const prefix = "worker 7 rank 1  event 3  moved   "
	for data, want := range map[string]string{
		`"cxl_state_transition":{"event_id":3,"block_hashes":["aa"],"new_state":"in_transit","pool_id":0,"accessible_workers":[{"worker_id":7,"dp_rank":1},{"worker_id":9,"dp_rank":0}]}`: "in_transit pool 0  aa  for workers 7.1 9.0",
		`"cxl_state_transition":{"event_id":3,"block_hashes":["a","b","c","d","e"],"new_state":"cxl_pooled"}`:                                                                             "cxl_pooled  a b c d … 5 blocks",
		`"cxl_state_transition":{"event_id":3,"block_hashes":[],"new_state":"evicted","pool_id":4,"accessible_workers":[]}`:                                                               "evicted pool 4  for workers none",
	} {
		var out strings.Builder
		if err := printEvent(&out, `{"worker_id":7,"dp_rank":1,"seq":3,"kind":"moved","outcome":"apply","tier":"device",`+data+`}`, false); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != prefix+want {
			t.Errorf("printed\n%s\nwant\n%s", got, prefix+want)
		}
	}
}

// If the router follows no events, the command reports an error, since the stream would stay empty.
func TestEventsOfARouterThatFollowsNone(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/router/index", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"events":false}`)) })
	s := httptest.NewServer(mux)
	defer s.Close()
	var out, errs bytes.Buffer
	if code := runCommandLine([]string{"events", "--server", s.URL}, &out, &errs); code != exitFailed || !strings.Contains(errs.String(), "--no-kv-events") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

// firstWrite closes its channel at the first write.
type firstWrite struct {
	bytes.Buffer
	once sync.Once
	come chan struct{}
}

func (w *firstWrite) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.come) })
	return w.Buffer.Write(p)
}

// TestEventsSaysThatItWaits: before the first event, standard error says that the command is connected.
func TestEventsSaysThatItWaits(t *testing.T) {
	errs := &firstWrite{come: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/router/index", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"events":true}`)) })
	mux.HandleFunc("GET /v1/router/events", func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		select {
		case <-errs.come: // no event before that
		case <-r.Context().Done():
		case <-time.After(fixturetest.TimeLeft(t)):
			t.Error("nothing was said")
		}
		_, _ = w.Write([]byte("data: {\"worker_id\":7,\"kind\":\"stored\",\"outcome\":\"apply\",\"tier\":\"device\"}\n\n"))
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	var out bytes.Buffer
	code := runCommandLine([]string{"events", "--server", s.URL, "--count", "1"}, &out, errs)
	if want := "connected to " + s.URL + "; events are shown as they come, until Ctrl-C\n"; code != exitDone || errs.String() != want {
		t.Errorf("exit code %d, %q, want %q", code, errs.String(), want)
	}
}
