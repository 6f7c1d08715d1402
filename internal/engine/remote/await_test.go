package remote

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// TestAwait checks that a loading engine is waited for and logged, and that a refusal ends the wait.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := &Spec{URL: &url.URL{Scheme: "http", Host: "engine:1"}, LoadTimeout: 3 * time.Minute}
		loading := fault.New(fault.Unavailable, "loading")
		for _, c := range []struct {
			ready time.Duration // never: below 0
			err   error
			code  fault.Code
			took  time.Duration // about
			lines int
		}{
			{0, nil, 255, 0, 0},
			{time.Minute, loading, 255, time.Minute, 3},
			{-1, loading, fault.Unavailable, 3 * time.Minute, 11},
			{-1, fault.New(fault.Invalid, "wrong"), fault.Invalid, 0, 0},
		} {
			var log bytes.Buffer
			began := time.Now()
			err := AwaitEngine(t.Context(), spec, slog.New(slog.NewTextHandler(&log, nil)), func(context.Context) error {
				if c.ready >= 0 && time.Since(began) >= c.ready {
					return nil
				}
				return c.err
			})
			took := time.Since(began)
			if c.code == 255 && err != nil || c.code != 255 && fault.CodeOf(err) != c.code {
				t.Errorf("ready after %v: %v", c.ready, err)
			}
			if took < c.took || took > c.took+loadingPauseMax {
				t.Errorf("ready after %v: waited %v, want about %v", c.ready, took, c.took)
			}
			if n := strings.Count(log.String(), "waiting for the engine"); n < c.lines-1 || n > c.lines+1 {
				t.Errorf("ready after %v: %d lines, want about %d", c.ready, n, c.lines)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := AwaitEngine(ctx, spec, slog.New(slog.DiscardHandler), func(context.Context) error { return loading }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the end of the context: %v", err)
		}
	})
}

func TestSpec(t *testing.T) {
	good := func() Spec {
		s := Spec{URL: &url.URL{Scheme: "http", Host: "h:1"}, Rank: AnyRank}
		s.EnsureDefaults()
		return s
	}
	s := good()
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*Spec){
		"the URL is missing": func(s *Spec) { s.URL = nil },
		"scheme":             func(s *Spec) { s.URL = &url.URL{Scheme: "tcp", Host: "h"} },
		"no host":            func(s *Spec) { s.URL = &url.URL{Scheme: "http"} },
		"credentials":        func(s *Spec) { s.URL = &url.URL{Scheme: "http", Host: "h", User: url.User("u")} },
		"query":              func(s *Spec) { s.URL = &url.URL{Scheme: "http", Host: "h", RawQuery: "a"} },
		"mode":               func(s *Spec) { s.Mode = "x" },
		"ranks":              func(s *Spec) { s.Ranks = 2000 },
		"rank 3":             func(s *Spec) { s.Rank = 3 },
		"block-size":         func(s *Spec) { s.BlockSize = 1 },
		"patience":           func(s *Spec) { s.LoadTimeout = -1 },
		"line break":         func(s *Spec) { s.APIKey = "a\nb" },
	} {
		s := good()
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
