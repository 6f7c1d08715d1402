package main

import (
	"strings"
	"testing"

	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/node"
)

// TestGreet: the printed flags find the process with its kind of discovery.
func TestGreet(t *testing.T) {
	for _, c := range []struct {
		command config.Command
		env     []string
		want    string
	}{
		{config.Worker, []string{"PENSTOCK_NATS=nats://h:1"}, "Registered in namespace penstock, component backend"},
		{config.Worker, []string{"PENSTOCK_DISCOVERY=static"}, "--discovery static --static-workers tcp://h:7000"},
		{config.Worker, []string{"PENSTOCK_NATS=nats://h:1", "PENSTOCK_ENGINE=vllm=http://e:1"}, "  vllm=http://e:1  m      3,4      ? of 16 tokens  yes     none   the engine (requests pass as they are)\n"},
		{config.Worker, []string{"PENSTOCK_NATS=nats://h:1", "PENSTOCK_ENGINE=vllm=http://e:1", "PENSTOCK_ROLE=encode"}, "  vllm=http://e:1  m      3,4      -          -       image  role encode\n"},
		{config.Router, []string{"PENSTOCK_NATS=nats://h:1"}, "penstock frontend --component router --nats nats://h:1\n"},
		{config.Router, []string{"PENSTOCK_NATS=nats://u:secret@h:1"}, "penstock frontend --component router --nats URL\n"},
		{config.Router, []string{"PENSTOCK_DISCOVERY=file", "PENSTOCK_DISCOVERY_DIR=/srv/d"}, "--component router --discovery file --discovery-dir /srv/d\n"},
		{config.Router, []string{"PENSTOCK_DISCOVERY=static", "PENSTOCK_STATIC_WORKERS=tcp://h:1"}, "--component router --discovery static --static-workers ADDRESS\n"},
	} {
		l, err := config.Load("", c.env, config.NoFlags(c.command))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		s := node.Started{WorkerID: 3, Model: "m", Addr: "tcp://h:7000"}
		if l.HasRemoteEngines() {
			s.Engines = []engines.Status{{Kind: "vllm", URL: "http://e:1", State: engines.StateServing, Model: "m", Workers: []uint64{3, 4}, BlockSize: 16, Events: engines.EventsYes, Tokenizer: "engine"}}
		}
		if l.Engine.Role == "encode" {
			s.Engines[0].Role, s.Engines[0].Media = "encode", []string{"image"}
		}
		printRoleGreeting(&out, l, s)
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%s with %q says %q, want %q in it", c.command, c.env, out.String(), c.want)
		}
	}
}
