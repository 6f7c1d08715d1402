package vllm

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"penstock/internal/engine"
	"penstock/internal/engine/remote"
	"penstock/internal/enginemock"
)

// TestFindsMedia checks that the model's media are found by probes, unless the settings give them.
func TestFindsMedia(t *testing.T) {
	for _, c := range []struct {
		what        string
		server      func(*enginemock.Config)
		probe       func(*serverProbe)
		media, keys string
	}{
		{"a model that sees and hears", nil, func(*serverProbe) {}, "audio image video", engine.MediaKeysUUID},
		{"one of texts", func(c *enginemock.Config) {
			blind := *c.Pipe
			blind.SetFamily(nil)
			c.Pipe = &blind
		}, func(*serverProbe) {}, "", ""},
		{"settings", nil, func(p *serverProbe) { p.Config.Media, p.Config.MediaKeys = []string{"image"}, remote.MediaKeysOff }, "image", ""},
		{"none, by the settings", nil, func(p *serverProbe) { p.Config.Media = []string{} }, "", ""},
	} {
		s, card := served(t, c.server)
		got := openedBy(t, spec(t, s.URL()), card, c.probe).Card()
		if strings.Join(got.Media, " ") != c.media || got.MediaKeys != c.keys || got.AcceptsObjects {
			t.Errorf("%s: it sees %v and is told %q, want %q and %q", c.what, got.Media, got.MediaKeys, c.media, c.keys)
		}
	}
}

// TestBusyServerSees checks that a server too busy to answer is assumed to take what its family takes.
func TestBusyServerSees(t *testing.T) {
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[int][]string{http.StatusServiceUnavailable: {"audio", "image", "video"}, http.StatusBadRequest: nil, http.StatusNotFound: {"audio", "image", "video"}} {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"no"}}`)
		}))
		p, err := newProbe(&Config{Spec: spec(t, h.URL), Family: pipe.Family})
		if err != nil {
			t.Fatal(err)
		}
		var card engine.Card
		p.findMedia(context.Background(), &card, []string{"/v1/chat/completions"})
		if !slices.Equal(card.Media, want) {
			t.Errorf("%d: %v, want %v", status, card.Media, want)
		}
		p.findMedia(context.Background(), &card, nil) // without the path nothing can be passed through
		p.Client.Close()
		h.Close()
	}
}
