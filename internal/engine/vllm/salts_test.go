package vllm

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

func TestSalts(t *testing.T) {
	for _, dialect := range []enginemock.Dialect{enginemock.VLLM, enginemock.VLLMLegacy} {
		t.Run(string(dialect), func(t *testing.T) {
			enginemocktest.TestSalts(t, func(t testing.TB, set ...enginemock.Fault) enginemocktest.Adapter {
				s, card := served(t, func(c *enginemock.Config) { c.Dialect, c.Faults = dialect, set })
				at := spec(t, s.URL())
				at.Events, at.Replay = zmq(t, s.EventsAddr()), zmq(t, s.ReplayAddr())
				return opened(t, at, card)
			}, "/v1/chat/completions", "/v1/completions")
		})
	}
}

// TestPrefixCachingOff checks that without a prefix cache nothing is predicted, and there are no salts to
// prove.
func TestPrefixCachingOff(t *testing.T) {
	p := &serverProbe{Probe: remote.Probe{Config: &Config{}}, cache: cacheConfig{prefixCaching: "False"}}
	card := engine.Card{}
	source, err := p.cacheSource(&card)
	if err != nil || source != nil || !card.NoPrefixCache || p.saltSupport() != remote.SaltsUnneeded {
		t.Errorf("source %v, %v; no reuse %v; salts %v", source, err, card.NoPrefixCache, p.saltSupport())
	}
}

// TestPrefixCachingOn checks that an engine without prefix cache which restarts with one counts as another
// engine: its salts must be proven.
func TestPrefixCachingOn(t *testing.T) {
	caching := "False"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","root":"m","max_model_len":512}]}`)
		case "/metrics":
			_, _ = fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"%s\",engine=\"0\"} 1.0\n", caching)
		}
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	at := remote.Spec{Kind: "vllm", URL: u}
	p := &serverProbe{
		Probe: remote.Probe{Config: &Config{Spec: at}, Client: remote.NewClient(&at)}, cache: cacheConfig{prefixCaching: "False"},
		base: remote.ServedModel{ID: "m", Root: "m", MaxModelLen: 512},
	}
	defer p.Client.Close()
	if err := p.checkAlive(t.Context()); err != nil {
		t.Error(err)
	}
	caching = "True"
	if err := p.checkAlive(t.Context()); err == nil {
		t.Error("an engine that has a cache now is taken for the same")
	}
}
