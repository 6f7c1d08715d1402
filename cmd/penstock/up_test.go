package main

import (
	"strings"
	"testing"

	"penstock/internal/node"
)

func TestWelcomeSuggestsWhatWorks(t *testing.T) {
	ready := node.Ready{URL: "http://127.0.0.1:9000", Model: "m", Chat: true, Engine: "tiny", Workers: 2, Blocks: 8, BlockSize: 16, RouterMode: "kv"}
	base := ready
	base.Chat, base.Workers, base.NATS, base.URL = false, 1, "nats://127.0.0.1:4222", defaultServer
	simulated := ready
	simulated.Engine, simulated.Workers, simulated.Simulation = "sim", 64, "mocker, 10 times as fast"
	guarded := ready
	guarded.URL, guarded.Keys = "https://127.0.0.1:8443", true
	for _, tc := range []struct {
		name      string
		ready     node.Ready
		has, lack []string
	}{
		{
			"a chat model", ready,
			[]string{"/v1/chat/completions", `"messages"`, "2 workers", `penstock route --explain`, "--server http://127.0.0.1:9000"},
			[]string{"NATS", "--raw", "Bearer", "simulation"},
		},
		{
			"a base model", base,
			[]string{"http://127.0.0.1:8000/v1/completions", `"prompt"`, "1 worker,", "penstock route --raw --explain", "nats://127.0.0.1:4222"},
			[]string{"/v1/chat", "--server"},
		},
		{
			"a simulation", simulated,
			[]string{"64 workers, engine sim", "A simulation", "model of time: mocker, 10 times as fast\n  Metrics:"},
			nil,
		},
		{
			"with keys", guarded,
			[]string{` -H "Authorization: Bearer $PENSTOCK_API_KEY"`, "--server https://127.0.0.1:8443"},
			[]string{"http://"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b strings.Builder
			welcome(&b, tc.ready)
			for _, s := range tc.has {
				if !strings.Contains(b.String(), s) {
					t.Errorf("%s\nlacks %q", b.String(), s)
				}
			}
			for _, s := range tc.lack {
				if strings.Contains(b.String(), s) {
					t.Errorf("%s\nhas %q", b.String(), s)
				}
			}
		})
	}
}
