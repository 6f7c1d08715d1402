package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestEncodeRoles: which engines can stand behind an encode worker, and what the others are refused with.
func TestEncodeRoles(t *testing.T) {
	for _, c := range []struct {
		command            Command
		role, engine, want string // want is the role of the engine, or says what is wrong
	}{
		{Worker, "encode", "vllm=http://a:1", "producer"},
		{Worker, "encode", "vllm=http://a:1,ec-role=producer", "producer"},
		{Worker, "aggregated", "vllm=http://a:1,ec-role=consumer", "consumer"},
		{Worker, "decode", "vllm=http://a:1,ec-role=consumer", "consumer"},
		{Worker, "aggregated", "vllm=http://a:1", ""},
		{Up, "", "vllm=http://a:1,ec-role=producer", "producer"},
		{Worker, "encode", "vllm=http://a:1,ec-role=consumer", "role: encode contradicts"},
		{Worker, "aggregated", "vllm=http://a:1,ec-role=producer", "set it to encode"},
		{Worker, "encode", "sglang=http://a:1", "role: encode is of no use in front of sglang"},
		{Worker, "encode", "trtllm=http://a:1", "role: encode is of no use in front of trtllm"},
		{Up, "", "sglang=http://a:1,ec-role=consumer", "only vLLM's is spoken"},
		{Up, "", "vllm=http://a:1,ec-role=both", "not one of producer, consumer"},
	} {
		settings := []string{"PENSTOCK_DISCOVERY=static", "PENSTOCK_ENGINE=" + c.engine}
		if c.role != "" {
			settings = append(settings, "PENSTOCK_ROLE="+c.role)
		}
		l, err := Load("", settings, NoFlags(c.command))
		if err != nil {
			if c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %s %s: %v", c.command, c.role, c.engine, err)
			}
			continue
		}
		if got := l.RemoteEngines()[0].ECRole; got != c.want {
			t.Errorf("%s %s %s: %q", c.command, c.role, c.engine, got)
		}
	}
}

// TestWorkerRoles: the roles of a process's workers follow from its settings.
func TestWorkerRoles(t *testing.T) {
	for _, c := range []struct {
		command  Command
		settings []string
		want     string
	}{
		{Up, nil, "[aggregated aggregated]"},
		{Up, []string{"PENSTOCK_ROLE=prefill"}, "[aggregated aggregated]"}, // another command's
		{Up, []string{"PENSTOCK_WORKERS=1", "PENSTOCK_ENCODE_WORKERS=1"}, "[aggregated encode]"},
		{Up, []string{"PENSTOCK_WORKERS=1", "PENSTOCK_PREFILL_WORKERS=2", "PENSTOCK_ENCODE_WORKERS=1"}, "[decode prefill prefill encode]"},
		{Worker, nil, "[aggregated]"},
		{Worker, []string{"PENSTOCK_ROLE=decode"}, "[decode]"},
		{Worker, []string{"PENSTOCK_ROLE=encode", "PENSTOCK_PREFILL_WORKERS=2"}, "[encode]"},
	} {
		flags := NoFlags(c.command)
		l, err := Load("", append(c.settings, "PENSTOCK_DISCOVERY=static"), flags)
		if err != nil {
			t.Fatalf("%s %q: %v", c.command, c.settings, err)
		}
		if got := fmt.Sprint(l.WorkerRoles()); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.command, c.settings, got, c.want)
		}
	}
	for setting, want := range map[string]string{
		"PENSTOCK_ROLE=router":        "role",
		"PENSTOCK_PREFILL_WORKERS=-1": "prefill-workers",
		"PENSTOCK_ENCODE_WORKERS=1":   "encode-workers: it counts workers of engines of this program",
	} {
		environ := []string{setting}
		if strings.HasSuffix(setting, "=1") {
			environ = append(environ, "PENSTOCK_ENGINE=vllm=http://a:1")
		}
		if _, err := Load("", environ, NoFlags(Up)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
