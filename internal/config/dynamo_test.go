package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestDynamoLogLevels(t *testing.T) {
	for filter, want := range map[string]string{
		"info":                           "info",
		"INFO,lightseek_mm=debug":        "info",
		"trace":                          "debug",
		"off":                            "error",
		"warn,router=trace,nats=off":     "warn,router=debug,nats=error",
		"router=debug":                   "info,router=debug",
		"dynamo_llm=debug":               "",
		"loud":                           "",
		" error , , frontend=loud ":      "error",
		"info,dynamo_llm::kv=debug,warn": "warn",
	} {
		if got := dynamoLogLevels(filter); got != want {
			t.Errorf("%q is %q, want %q", filter, got, want)
		}
	}
	cfg, err := Load("", []string{"DYN_LOG=warn,router=debug"}, NoFlags(Up))
	if err != nil || cfg.Log.Level != "warn,router=debug" {
		t.Errorf("%v, %v", cfg, err)
	}
	if cfg, err := Load("", []string{"DYN_LOG=debug", "PENSTOCK_LOG_LEVEL=warn"}, NoFlags(Up)); err != nil || cfg.Log.Level != "warn" {
		t.Errorf("our variable does not win: %v, %v", cfg, err)
	}
	if _, err := Load("", []string{"DYN_LOG=***"}, NoFlags(Up)); err != nil {
		t.Error(err)
	}
}

// FuzzDynamoLogLevels: whatever another system's filter is, the result is a valid log-level or nothing.
func FuzzDynamoLogLevels(f *testing.F) {
	f.Add("info,router=debug,x=y")
	f.Fuzz(func(t *testing.T, filter string) {
		if levels := dynamoLogLevels(filter); levels != "" {
			c := Defaults(Up)
			c.Log.Level = levels
			if _, err := c.ParseLogLevels(); err != nil {
				t.Errorf("%q became %q: %v", filter, levels, err)
			}
		}
	})
}

// TestDynamoVariables: variables of Dynamo which mean a setting are applied below ours, and the others are named.
func TestDynamoVariables(t *testing.T) {
	for _, c := range []struct {
		env     string
		command Command
		want    string // mm-transfer
		names   string // of the notices
	}{
		{"", Worker, "shm", ""},
		{"DYNAMO_MM_TRANSFER=shm", Worker, "shm", ""},
		{"DYNAMO_MM_TRANSFER=nixl", Worker, "network", "env DYNAMO_MM_TRANSFER"},
		{"DYNAMO_MM_TRANSFER=nixl", Up, "network", "env DYNAMO_MM_TRANSFER"},
		{"DYNAMO_MM_TRANSFER=nixl", Frontend, "network", ""},
		{"PENSTOCK_MM_TRANSFER=nixl", Worker, "network", "env PENSTOCK_MM_TRANSFER"},
		{"DYNAMO_DISABLE_NIXL_MM=1", Worker, "off", ""},
		{"DYNAMO_DISABLE_NIXL_MM=0", Worker, "shm", ""},
		{"DYNAMO_DISABLE_NIXL_MM=perhaps", Worker, "shm", "DYNAMO_DISABLE_NIXL_MM"},
		{"DYNAMO_DISABLE_NIXL_MM=1 DYNAMO_MM_TRANSFER=nixl", Worker, "off", ""},
		{"DYNAMO_MM_TRANSFER=nixl DYNAMO_DISABLE_NIXL_MM=true", Worker, "off", ""},
		{"DYNAMO_DISABLE_NIXL_MM=1 PENSTOCK_MM_TRANSFER=network", Worker, "network", ""},
		{"DYN_REQUEST_PLANE=http", Worker, "shm", ""},
		{"DYN_REQUEST_PLANE=http", Up, "shm", "DYN_REQUEST_PLANE"},
		{"DYN_NAMESPACE=x DYN_LOG=*** DYN_EMPTY= DYNAMO_OTHER=1 DYNAMIC=1", Worker, "shm", "DYNAMO_OTHER DYN_LOG DYN_NAMESPACE"},
	} {
		cfg, err := Load("", append(strings.Fields(c.env), "PENSTOCK_NATS=nats://127.0.0.1:4222"), NoFlags(c.command))
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
			continue
		}
		var names []string
		for _, n := range cfg.Notices() {
			if n.Message == "" {
				t.Errorf("%s: a notice says nothing", c.env)
			}
			names = append(names, n.Names...)
		}
		if got := strings.Join(names, " "); cfg.Media.Transfer != c.want || got != c.names {
			t.Errorf("%s for %s: mm-transfer is %s, noted are %q", c.env, c.command, cfg.Media.Transfer, got)
		}
	}
}

func TestChatProcessor(t *testing.T) {
	for _, c := range []struct{ args, want, trouble string }{
		{"", "local", ""},
		{"--dyn-chat-processor=vllm", "engine", ""},
		{"--dyn-chat-processor=dynamo", "local", ""},
		{"--dyn-chat-processor=vllm --preprocess=engine", "engine", ""},
		{"--dyn-chat-processor=vllm --preprocess=local", "", "give one of them"},
		{"--dyn-chat-processor=sglang", "", "is not one of dynamo, vllm"},
	} {
		fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
		flags := AddFlags(fs, Up)
		if err := fs.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		cfg, err := Load("", nil, flags)
		switch {
		case c.trouble != "":
			if err == nil || !strings.Contains(err.Error(), c.trouble) {
				t.Errorf("%s: %v, want %q", c.args, err, c.trouble)
			}
		case err != nil || cfg.Engine.Preprocess != c.want:
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

func TestDynamoEmbeddingCache(t *testing.T) {
	for _, c := range []struct {
		args, env string
		want      int // bytes
		trouble   string
	}{
		{"", "", 64 << 20, ""},
		{"--embedding-cache-capacity-gb=0", "", 0, ""},
		{"--embedding-cache-capacity-gb=1.5", "", 3 << 29, ""},
		{"", "PENSTOCK_EMBEDDING_CACHE_CAPACITY_GB=2", 2 << 30, ""},
		{"--multimodal-embedding-cache-capacity-gb=10", "", 10 << 30, ""},
		{"--multimodal-embedding-cache-capacity-gb=0", "", 0, ""},
		{"--multimodal-embedding-cache-capacity-gb=1 --embedding-cache-capacity-gb=1", "", 1 << 30, ""},
		{"--multimodal-embedding-cache-capacity-gb=1 --embedding-cache-capacity-gb=2", "", 0, "give one of them"},
		{"", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=4", 4 << 30, ""},
		{"", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=0", 0, ""},
		{"--embedding-cache-capacity-gb=2", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=4", 2 << 30, ""},
		{"", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=much", 64 << 20, ""},
		{"", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=-1", 64 << 20, ""},
		{"", "DYN_MULTIMODAL_EMBEDDING_CACHE_GB=NaN", 64 << 20, ""},
		{"--multimodal-embedding-cache-capacity-gb=much", "", 0, "is not a number of GiB"},
		{"--multimodal-embedding-cache-capacity-gb=NaN", "", 0, "is not a number of GiB"},
		{"--embedding-cache-capacity-gb=-1", "", 0, "is not between 0 and"},
		{"--embedding-cache-capacity-gb=NaN", "", 0, "is not between 0 and"},
	} {
		for _, command := range []Command{Up, Worker} {
			fs := pflag.NewFlagSet(string(command), pflag.ContinueOnError)
			flags := AddFlags(fs, command)
			if err := fs.Parse(strings.Fields(c.args)); err != nil {
				t.Fatal(err)
			}
			environ := []string{"PENSTOCK_NATS=nats://127.0.0.1:4222"}
			if command == Up {
				environ = nil
			}
			cfg, err := Load("", append(environ, c.env), flags)
			switch {
			case c.trouble != "":
				if err == nil || !strings.Contains(err.Error(), c.trouble) {
					t.Errorf("%s: %v, want %q", c.args, err, c.trouble)
				}
			case err != nil || cfg.EmbeddingCacheBytes() != c.want:
				t.Errorf("%s %s: %v, %v", c.args, c.env, cfg.EmbeddingCacheBytes(), err)
			}
		}
	}
}
