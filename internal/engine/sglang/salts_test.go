package sglang

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
	"penstock/internal/enginemock/enginemocktest"
)

func TestSalts(t *testing.T) {
	for _, version := range enginemock.EngineVersions(enginemock.SGLang) {
		t.Run(version, func(t *testing.T) {
			open := func(t testing.TB, set ...enginemock.Fault) enginemocktest.Adapter {
				s, card := rig.StartServer(t, enginemock.SGLang, func(c *enginemock.Config) {
					withEvents(c)
					c.EngineVersion, c.Faults = version, set
				})
				return opened(t, config(t, s, card))
			}
			if version == "0.5.9" { // none of its fields reaches the cache
				enginemocktest.TestSaltsRefused(t, open)
				return
			}
			enginemocktest.TestSalts(t, open, "/v1/chat/completions", "/v1/completions")
		})
	}
}

func TestSaltFields(t *testing.T) {
	for _, c := range []struct {
		version string
		fields  []string
		known   remote.SaltSupport
	}{
		{"0.5.9", []string{"extra_key"}, remote.SaltsIgnored},
		{"0.5.6.post2", []string{"extra_key"}, remote.SaltsIgnored},
		{"0.5.10.post1", []string{"extra_key"}, remote.SaltsIgnored},
		{"0.5.11", []string{"extra_key"}, remote.SaltsUnknown},
		{"0.5.17", []string{"extra_key"}, remote.SaltsUnknown},
		{"0.5.18rc1", []string{"cache_salt"}, remote.SaltsUnknown},
		{"v0.5.23", []string{"cache_salt"}, remote.SaltsUnknown},
		{"1.0.0", []string{"cache_salt"}, remote.SaltsUnknown},
		{"0.5.24.dev12+gabc", []string{"cache_salt", "extra_key"}, remote.SaltsUnknown},
		{"0.0.0.dev1+gabc", []string{"cache_salt", "extra_key"}, remote.SaltsUnknown},
		{"", []string{"cache_salt", "extra_key"}, remote.SaltsUnknown},
		{"main", []string{"cache_salt", "extra_key"}, remote.SaltsUnknown},
	} {
		fields, known := saltFields(c.version)
		if !slices.Equal(fields, c.fields) || known != c.known {
			t.Errorf("version %q: %v, %v; want %v, %v", c.version, fields, known, c.fields, c.known)
		}
	}
}

// TestRadixCacheOff checks that without a prefix cache nothing is predicted, and there are no salts to prove.
func TestRadixCacheOff(t *testing.T) {
	p := &serverProbe{Probe: remote.Probe{Config: &Config{}}, server: serverInfo{Version: "0.5.9", DisableRadixCache: true}}
	card, cfg := engine.Card{}, remote.Config{}
	source, err := p.cacheSource(&card)
	p.setSaltSupport(&cfg)
	if err != nil || source != nil || !card.NoPrefixCache || cfg.Salts != remote.SaltsUnneeded || cfg.PassthroughSalts != remote.SaltsUnneeded {
		t.Errorf("source %v, %v; no reuse %v; salts %v, %v", source, err, card.NoPrefixCache, cfg.Salts, cfg.PassthroughSalts)
	}
}

// TestSameIsFree checks that the periodic check of an answering engine generates nothing, unlike /health.
func TestSameIsFree(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" {
			t.Errorf("it is asked for %s", r.URL.Path)
		}
		_, _ = io.WriteString(w, `{"data":[{"id":"m","max_model_len":512}]}`)
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	spec := remote.Spec{Kind: "sglang", URL: u}
	p := &serverProbe{Probe: remote.Probe{Config: &Config{Spec: spec}, Client: remote.NewClient(&spec), Model: "m", Length: 512}}
	defer p.Client.Close()
	if err := p.CheckSame(t.Context()); err != nil {
		t.Error(err)
	}
	p.Model = "other"
	if err := p.CheckSame(t.Context()); err == nil {
		t.Error("another model is taken for the same")
	}
}

// TestAnotherServer checks that an engine without cache which restarts with one counts as another engine, as
// its salts must be proven; and that another version does too, which has the salt in another field.
func TestAnotherServer(t *testing.T) {
	info := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","max_model_len":512}]}`)
		case "/server_info":
			_, _ = io.WriteString(w, info)
		}
	}))
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	spec := remote.Spec{Kind: "sglang", URL: u}
	p := &serverProbe{
		Probe:  remote.Probe{Config: &Config{Spec: spec}, Client: remote.NewClient(&spec), Model: "m", Length: 512},
		server: serverInfo{Version: "0.5.9", DisableRadixCache: true},
	}
	defer p.Client.Close()
	for _, c := range []struct {
		info string
		same bool
	}{
		{`{"version":"0.5.9","disable_radix_cache":true}`, true},
		{`{"version":"0.5.9","disable_radix_cache":false}`, false},
		{`{"version":"0.5.23","disable_radix_cache":true}`, false},
	} {
		info = c.info
		if err := p.checkAlive(t.Context()); (err == nil) != c.same {
			t.Errorf("%s: %v", c.info, err)
		}
	}
}
