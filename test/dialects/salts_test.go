package dialects

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"penstock/internal/enginemock"
)

// TestTenants: of two tenants that ask with the same prompts neither is ever told of a token that the other one cached.
// Their salts are kept apart, or their requests are refused with what to do, and the warning says so.
func TestTenants(t *testing.T) {
	for _, c := range []struct {
		dialect enginemock.Dialect
		version string
		ignores bool
	}{
		{enginemock.VLLM, "", false},
		{enginemock.VLLM, "", true},
		{enginemock.VLLMLegacy, "", false},
		{enginemock.SGLang, "0.5.9", true},
		{enginemock.SGLang, "0.5.17", false},
		{enginemock.SGLang, "0.5.23", false},
		{enginemock.SGLang, "0.5.23", true},
		{enginemock.TRTLLM, "", false},
		{enginemock.TRTLLM, "", true},
		{enginemock.LlamaCPP, "", false},
		{enginemock.LlamaCPP, "", true},
	} {
		t.Run(fmt.Sprint(c.dialect, c.version, " ignores ", c.ignores), func(t *testing.T) {
			h := build(t, c.dialect, plan{servers: 1, mimic: func(m *enginemock.Config) {
				m.EngineVersion = c.version
				if c.ignores && c.version != "0.5.9" {
					m.Faults = []enginemock.Fault{{Kind: enginemock.FaultSalts}}
					m.Slots = 1 // of llama.cpp, in which the prompts of all tenants meet
				}
			}})
			h.proven()
			for round := range 3 {
				for _, tenant := range []string{"one", "two", ""} {
					fields := map[string]any{"model": "m", "prompt": prompt(1, 100), "max_tokens": 2, "temperature": 0}
					if tenant != "" {
						fields["cache_salt"] = tenant
					}
					a := h.post("/v1/completions", fields, nil)
					switch {
					case tenant != "" && c.ignores:
						if a.status != http.StatusServiceUnavailable || !strings.Contains(a.err, "cache_salt") || strings.Contains(a.err, "send it again") {
							t.Errorf("round %d, tenant %q: %+v", round, tenant, a)
						}
					case a.status != http.StatusOK || round == 0 && a.cached >= h.block || round > 0 && a.cached == 0 && c.dialect != enginemock.LlamaCPP:
						t.Errorf("round %d, tenant %q: %+v", round, tenant, a)
					}
				}
			}
			if told := strings.Contains(h.get("/health"), "cache_salts_refused"); told != c.ignores {
				t.Errorf("the warning is there: %v, want %v", told, c.ignores)
			}
		})
	}
}
