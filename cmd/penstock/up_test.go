package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"penstock/internal/node/engines"

	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

func TestWelcomeSuggestsWhatWorks(t *testing.T) {
	ready := node.Ready{URL: "http://127.0.0.1:9000", Model: "m", Chat: true, Engine: "tiny", Workers: 2, Blocks: 8, BlockSize: 16, RouterMode: "kv"}
	base := ready
	base.Chat, base.Workers, base.NATS, base.URL = false, 1, "nats://127.0.0.1:4222", defaultServer
	simulated := ready
	simulated.Engine, simulated.Workers, simulated.Simulation = "sim", 64, "mocker, 10 times as fast"
	seeing := ready
	seeing.Media = []string{"audio", "image"}
	guarded := ready
	guarded.URL, guarded.Keys, guarded.Access = "https://127.0.0.1:8443", true, node.Access{CertFile: "host.pem", KeyFile: "keys.yaml"}
	planned := ready
	planned.Planner = true
	divided, idle := seeing, ready
	divided.Engine, divided.PrefillWorkers, divided.EncodeWorkers, idle.EncodeWorkers = "tiny", 1, 2, 2
	front := ready
	front.Engine, front.Workers, front.Engines = "vllm", 3, []engines.Status{
		{Kind: "vllm", URL: "http://a:8000", State: engines.StateServing, Model: "m", Adapters: []string{"m-poet"}, Workers: []uint64{1}, BlockSize: 16, Blocks: 900, Events: engines.EventsYes, Media: []string{"image", "video"}, MediaNamed: true, Tokenizer: "/models/m"},
		{Kind: "llamacpp", URL: "http://b:8080", State: engines.StateServing, Model: "o", Workers: []uint64{2, 4}, BlockSize: 32, Events: engines.EventsGuessed, Media: []string{"image"}, Tokenizer: "engine", Notes: []string{"the model's tokenizer is not here"}, Warnings: []engine.Warning{{Code: "c", Detail: "it is slow", Remedy: "feed it"}}},
		{Kind: "vllm", URL: "http://c:8000", State: engines.StateWaiting, Detail: "loading (503)"},
	}
	for _, tc := range []struct {
		name      string
		ready     node.Ready
		has, lack []string
	}{
		{
			"a chat model", ready,
			[]string{"/v1/chat/completions", `"messages"`, "    penstock chat --server http://127.0.0.1:9000\n", "2 workers", `penstock route --explain`, "--server http://127.0.0.1:9000"},
			[]string{"NATS", "--raw", "Bearer", "simulation", "Planner"},
		},
		{
			"a base model", base,
			[]string{"http://127.0.0.1:8000/v1/completions", `"prompt"`, "1 worker,", "penstock route --raw --explain", "nats://127.0.0.1:4222"},
			[]string{"/v1/chat", "--server", "penstock chat"},
		},
		{
			"a simulation", simulated,
			[]string{"64 workers, engine sim", "A simulation", "model of time: mocker, 10 times as fast\n  Metrics:"},
			nil,
		},
		{"a model that sees", seeing, []string{"\n  Media:    audio, image (docs/media.md"}, nil},
		{"with a planner", planned, []string{"  Planner:  penstock plan --server http://127.0.0.1:9000\n"}, nil},
		{"with other roles", divided, []string{"  Beside them 1 of role prefill, which compute long prompts for them (docs/disaggregation.md)\n  Beside them 2 of role encode, which encode what requests show\n"}, nil},
		{"roles which serve nothing", idle, []string{"Beside them 2 of role encode, which serve nothing with this engine and model\n"}, []string{"role prefill"}},
		{
			"engines of others", front,
			[]string{
				"Penstock serves m, o on", "  vllm=http://a:8000      m  ", "900 of 16 tokens  yes      image, video            /models/m", "vllm=http://a:8000 also serves m-poet (LoRA)",
				"2,4      ? of 32 tokens    guessed  image (routed by text)  the engine (requests pass as they are)", "not yet: loading (503); it is taken in when it comes",
				"note: llamacpp=http://b:8080: the model's tokenizer is not here", "warning: llamacpp=http://b:8080: it is slow\n           -> feed it", "3 workers, routed by kv",
			},
			[]string{"8 KV blocks", "engine vllm", "Media:"},
		},
		{
			"with keys", guarded,
			[]string{` -H "Authorization: Bearer $PENSTOCK_API_KEY"`, "--server https://127.0.0.1:8443"},
			[]string{"http://"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b strings.Builder
			printWelcome(&b, tc.ready)
			_, example, _ := strings.Cut(b.String(), "curl")
			example, _, _ = strings.Cut(example, "\n\n")
			for line := range strings.SplitSeq(example, "\n") {
				if len(line) > 120 {
					t.Errorf("a line of the example has %d characters, at most 120 are allowed: %s", len(line), line)
				}
			}
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

// TestLimitsAtStart: a process logs at its start what doctor would report of this machine.
func TestLimitsAtStart(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "ulimit -n 512; exec penstock up --http-addr 127.0.0.1:0")
	log := &until{text: "msg=serving ", found: func() { _ = cmd.Process.Signal(os.Interrupt) }}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(fixturetest.TimeLeft(t), func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait() // it was stopped
	if said := log.all.String(); !strings.Contains(said, `detail="a process may have 512 files open, and`) || !strings.Contains(said, `remedy="raise it before the start: ulimit -n`) {
		t.Errorf("the log says\n%s", said)
	}
}
