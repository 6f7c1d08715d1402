package config

import "testing"

// TestEmbeddingEvents: without a host the endpoint is on this machine alone, and the next port must exist.
func TestEmbeddingEvents(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "tcp://:5560": "tcp://127.0.0.1:5560", "tcp://*:5560": "tcp://*:5560", "tcp://10.0.0.1:5560": "tcp://10.0.0.1:5560",
		"tcp://127.0.0.1:0": "tcp://127.0.0.1:0",
	} {
		c := Defaults(Worker)
		c.Media.EmbeddingEvents = value
		if got, err := c.EmbeddingEndpoint(); err != nil || got.String() != want {
			t.Errorf("%q is %s, %v", value, got, err)
		}
	}
	for _, bad := range []string{"5560", "tcp://:65535", "tcp://h:70000", "ipc:///run/x", "udp://h:1"} {
		c := Defaults(Worker)
		c.Media.EmbeddingEvents = bad
		if got, err := c.EmbeddingEndpoint(); err == nil {
			t.Errorf("%q is %s", bad, got)
		}
	}
}
