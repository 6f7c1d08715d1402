package sglang

import (
	"slices"
	"testing"

	"penstock/internal/engine/remote"
	"penstock/internal/mimic"
	"penstock/internal/mimic/mimictest"
)

func TestSalts(t *testing.T) {
	for _, version := range mimic.EngineVersions(mimic.SGLang) {
		t.Run(version, func(t *testing.T) {
			open := func(t testing.TB, set ...mimic.Fault) mimictest.Adapter {
				s, card := rig.Serve(t, mimic.SGLang, func(c *mimic.Config) {
					withEvents(c)
					c.EngineVersion, c.Faults = version, set
				})
				return opened(t, config(t, s, card))
			}
			if version == "0.5.9" { // none of its fields reaches the cache
				mimictest.TestSaltsRefused(t, open)
				return
			}
			mimictest.TestSalts(t, open, "/v1/chat/completions", "/v1/completions")
		})
	}
}

func TestSaltFields(t *testing.T) {
	for _, c := range []struct {
		version string
		fields  []string
		known   remote.Salts
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
