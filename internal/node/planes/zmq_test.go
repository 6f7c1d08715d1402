package planes

import (
	"log/slog"
	"strings"
	"testing"

	"penstock/internal/enginemock/enginemocktest"

	"penstock/internal/config"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
)

func TestZMQEndpoints(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:5600": "tcp://127.0.0.1:5600 tcp://127.0.0.1:5601",
		":5600":          "tcp://*:5600 tcp://*:5601",
		"[::1]:5600":     "tcp://[::1]:5600 tcp://[::1]:5601",
		"127.0.0.1:0":    "tcp://127.0.0.1:0 tcp://127.0.0.1:0",
	} {
		events, replay, err := zmqEndpoints(addr)
		if got := events.String() + " " + replay.String(); err != nil || got != want {
			t.Errorf("%s: %s, %v", addr, got, err)
		}
	}
	if _, _, err := zmqEndpoints("127.0.0.1:65535"); err == nil {
		t.Error("there is no port behind the last one")
	}
}

// TestZMQRegistration: peers read a process's registration as written, and skip their own, other namespaces'
// and unreadable ones.
func TestZMQRegistration(t *testing.T) {
	events, replay, err := zmqEndpoints("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.NewZMQBus(bus.ZMQBusConfig{Events: events, Replay: replay})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	cfg := enginemocktest.LoadSettings(t, config.Worker, "DISCOVERY=file", "DISCOVERY_DIR="+t.TempDir(), "EVENT_PLANE=zmq", "RPC_ADVERTISE=10.0.0.7:7000")
	in, err := zmqInstance(cfg, cfg.EventHost(), b.LocalPeer())
	if err != nil || !strings.HasPrefix(in.Addr, "tcp://10.0.0.7:") {
		t.Fatalf("%+v, %v", in, err)
	}
	other, broken := in, in
	other.ID, other.Namespace = 1, "another"
	broken.ID, broken.Meta = 2, []byte("{")
	log := slog.New(slog.DiscardHandler)
	set := []disco.Instance{in, other, broken}
	if got := RegisteredPeers(set, in, log); len(got) != 0 {
		t.Errorf("a process has itself as a peer: %v", got)
	}
	got := RegisteredPeers(set, disco.Instance{ID: 3, Namespace: in.Namespace}, log)
	if len(got) != 1 || got[0].Events.Port() != b.LocalPeer().Events.Port() || got[0].Replay.Port() != b.LocalPeer().Replay.Port() || !strings.Contains(got[0].Replay.String(), "10.0.0.7") {
		t.Errorf("others read %v, it is at %v", got, b.LocalPeer())
	}
}
