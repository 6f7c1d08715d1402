package launch

import (
	"slices"
	"strings"
	"testing"
)

// planned plans a command line, with ports which are drawn from 20000 upwards.
func planned(line string, o Options) (*Plan, error) {
	next := 20000
	o.Dir, o.MaxRanks = "/run/p", 1024
	o.DrawPorts = func(n int) (int, error) { next += n; return next - n, nil }
	return PlanCommand(splitWords(line), o)
}

// splitWords splits at spaces, except within quotes.
func splitWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

func TestPlanCommand(t *testing.T) {
	const vllmEvents = `--kv-events-config {"enable_kv_cache_events":true,"endpoint":"ipc:///run/p/endpoint","publisher":"zmq","replay_endpoint":"ipc:///run/p/replay_endpoint"}`
	for _, c := range []struct {
		name, line string
		options    Options
		added      string // the flags behind the given ones, joined by spaces
		setting    string
	}{
		{
			"vLLM without flags", "vllm serve M",
			Options{},
			"--host 127.0.0.1 --port 20000 " + vllmEvents + " --enable-prompt-tokens-details",
			"vllm=http://127.0.0.1:20000,events=ipc:///run/p/endpoint,replay=ipc:///run/p/replay_endpoint",
		},
		{
			"vLLM as a module, with an address and a block size", "python3 -m vllm.entrypoints.openai.api_server --model M --host=0.0.0.0 --port 8000 --enable_prompt_tokens_details --block-size 8",
			Options{BlockSize: 16},
			vllmEvents,
			"vllm=http://127.0.0.1:8000,events=ipc:///run/p/endpoint,replay=ipc:///run/p/replay_endpoint",
		},
		{
			"the required block size", "vllm serve M --host ::1 --port 1 --enable-prompt-tokens-details",
			Options{BlockSize: 16},
			"--block-size 16 " + vllmEvents,
			"vllm=http://[::1]:1,events=ipc:///run/p/endpoint,replay=ipc:///run/p/replay_endpoint",
		},
		{
			"two ranks have ports", "vllm serve M --port 8000 -dp 2",
			Options{},
			`--host 127.0.0.1 --kv-events-config {"enable_kv_cache_events":true,"endpoint":"tcp://*:20000","publisher":"zmq","replay_endpoint":"tcp://*:20002"} --enable-prompt-tokens-details`,
			"vllm=http://127.0.0.1:8000,events=tcp://127.0.0.1:20000,replay=tcp://127.0.0.1:20002,ranks=2",
		},
		{
			"parts for others", `vllm serve M --host 127.0.0.1 --port 1 --enable-prompt-tokens-details --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' --ec-transfer-config '{"ec_role":"ec_consumer"}' --mm-processor-kwargs '{"max_pixels":9}'`,
			Options{},
			vllmEvents,
			`vllm=http://127.0.0.1:1,events=ipc:///run/p/endpoint,replay=ipc:///run/p/replay_endpoint,kv-connector=nixl,ec-role=consumer,mm-processor-kwargs={"max_pixels":9}`,
		},
		{
			"SGLang", "python -m sglang.launch_server --model-path M",
			Options{},
			`--host 127.0.0.1 --port 20000 --page-size 16 --kv-events-config {"endpoint":"tcp://*:20001","publisher":"zmq","replay_endpoint":"tcp://*:20002"} --enable-metrics --enable-cache-report`,
			"sglang=http://127.0.0.1:20000,events=tcp://127.0.0.1:20001,replay=tcp://127.0.0.1:20002",
		},
		{
			"llama.cpp", "/opt/llama-server -m M.gguf --port 8080",
			Options{BlockSize: 32},
			"--host 127.0.0.1 --metrics", "llamacpp=http://127.0.0.1:8080",
		},
		{
			"llama.cpp at a path", "llama-server -m M.gguf --port 8080 --api-prefix /llama/",
			Options{},
			"--host 127.0.0.1 --metrics", "llamacpp=http://127.0.0.1:8080/llama",
		},
		{
			"events at IPv6 endpoints", `vllm serve M --host ::1 --port 1 --enable-prompt-tokens-details --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://[::1]:5557","replay_endpoint":"tcp://[::]:5558"}'`,
			Options{},
			"", "vllm=http://[::1]:1,events=tcp://[::1]:5557,replay=tcp://127.0.0.1:5558",
		},
		{
			"another program of a named kind", "/opt/run-engine M",
			Options{Kind: "llamacpp"},
			"--host 127.0.0.1 --port 20000 --metrics", "llamacpp=http://127.0.0.1:20000",
		},
		{
			"penstock sim", "penstock sim",
			Options{},
			"--http-addr 127.0.0.1:20000 --kv-events ipc:///run/p/kv-events --kv-replay ipc:///run/p/kv-replay",
			"vllm=http://127.0.0.1:20000,events=ipc:///run/p/kv-events,replay=ipc:///run/p/kv-replay",
		},
		{
			"penstock sim as llama.cpp", "penstock sim --dialect llamacpp --http-addr :8000",
			Options{},
			"", "llamacpp=http://127.0.0.1:8000",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := planned(c.line, c.options)
			if err != nil {
				t.Fatal(err)
			}
			given := splitWords(c.line)
			if got := strings.Join(p.Args[len(given):], " "); got != c.added || !slices.Equal(p.Args[:len(given)], given) {
				t.Errorf("command %q\nadded %q\nwant  %q", p.Args[:len(given)], got, c.added)
			}
			if got := p.Setting(""); got != c.setting {
				t.Errorf("engine %q\nwant   %q", got, c.setting)
			}
		})
	}
}

// TestPlanCompletesEvents: a given object of settings keeps its members, and gets what it lacks.
func TestPlanCompletesEvents(t *testing.T) {
	p, err := planned(`vllm serve M --host h --port 1 --kv_events_config={"endpoint":"tcp://*:5557","buffer_steps":9} --enable-prompt-tokens-details --seed 0`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const want = `vllm serve M --host h --port 1 --enable-prompt-tokens-details --seed 0 --kv-events-config {"buffer_steps":9,"enable_kv_cache_events":true,"endpoint":"tcp://*:5557","publisher":"zmq","replay_endpoint":"ipc:///run/p/replay_endpoint"}`
	if got := strings.Join(p.Args, " "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := p.Setting("mode=pass"), "vllm=http://h:1,events=tcp://127.0.0.1:5557,replay=ipc:///run/p/replay_endpoint,mode=pass"; got != want {
		t.Errorf("engine %s\nwant %s", got, want)
	}
	complete := `vllm serve M --host h --port 1 --enable-prompt-tokens-details --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///a","replay_endpoint":"tcp://127.0.0.1:7"}'`
	if p, err = planned(complete, Options{}); err != nil || !slices.Equal(p.Args, splitWords(complete)) || len(p.Added) > 0 {
		t.Errorf("a complete command became %q, with %q added: %v", p.Args, p.Added, err)
	}
}

// TestPlanRefuses: what contradicts is refused, with what to do.
func TestPlanRefuses(t *testing.T) {
	for _, c := range []struct {
		line string
		o    Options
		want string
	}{
		{"", Options{}, "--exec -- vllm serve MODEL"},
		{"run-engine", Options{}, "name its kind with --dialect vllm|sglang|llamacpp"},
		{"run-engine", Options{Kind: "trtllm"}, "is not one of vllm, sglang, llamacpp"},
		{"bash -c vllm", Options{}, "without a shell"},
		{"penstock sim --dialect trtllm", Options{}, "cannot be started here"},
		{"penstock sim --dialect sglang", Options{Kind: "vllm"}, "leave out one of them"},
		{"penstock sim --http-addr 127.0.0.1:0", Options{}, "a free port is drawn"},
		{"penstock sim --kv-dial", Options{}, "leave it out"},
		{"vllm serve M --port 0", Options{}, "a free port is drawn"},
		{"vllm serve M --port", Options{}, "is not a number from 1 to 65535"},
		{"vllm serve M --host /run/s", Options{}, "at a host and a port"},
		{"llama-server --host", Options{}, "has no value"},
		{"vllm serve M --uds=/run/s", Options{}, "at a host and a port"},
		{"vllm serve M --no-enable-prefix-caching", Options{}, "leave it out"},
		{"vllm serve M --no_enable_prefix_caching", Options{}, "leave it out"},
		{"vllm serve M --block-size 32", Options{BlockSize: 16}, "change one of them"},
		{"vllm serve M --kv-events-config.publisher zmq", Options{}, "give one --kv-events-config"},
		{"vllm serve M --kv-transfer-config.kv_connector NixlConnector", Options{}, "give one --kv-transfer-config"},
		{"vllm serve M --ec-transfer-config.ec_role=ec_producer", Options{}, "give one --ec-transfer-config"},
		{"vllm serve M --mm_processor_kwargs.max_pixels 9", Options{}, "give one --mm-processor-kwargs"},
		{"vllm serve M --data-parallel-size 2 --data-parallel-rank 0", Options{}, "leave it out, or start the engine yourself"},
		{"vllm serve M -dp 4 --data-parallel-start-rank=2", Options{}, "leave it out, or start the engine yourself"},
		{"vllm serve M -dp 2 --data-parallel-external-lb", Options{}, "leave it out, or start the engine yourself"},
		{"vllm serve M -dp 2 -dph", Options{}, "leave it out, or start the engine yourself"},
		{"vllm serve M -dp 14999", Options{}, "at most 1024"},
		{"vllm serve M --api-key sk-1", Options{}, "as VLLM_API_KEY, and give the worker a file"},
		{"sglang serve --api-key=sk-1", Options{}, "--exec-options api-key-file=FILE"},
		{"sglang serve --admin-api-key sk-1", Options{}, "a file for the engine's --config"},
		{"llama-server --api-key sk-1", Options{}, "the engine's --api-key-file"},
		{"llama-server --api-prefix llama", Options{}, "is not a path such as /llama"},
		{"llama-server --api-prefix /a,mode=pass", Options{}, "is not a path such as /llama"},
		{"vllm serve M --kv-events-config '[]'", Options{}, "is not a JSON object"},
		{"vllm serve M --kv-events-config 'null'", Options{}, "is not a JSON object"},
		{`vllm serve M --kv-events-config '{"enable_kv_cache_events":false}'`, Options{}, "enable_kv_cache_events must be true"},
		{`vllm serve M --kv-events-config '{"publisher":"null"}'`, Options{}, "publisher must be zmq"},
		{`vllm serve M --kv-events-config '{"endpoint":"tcp://127.0.0.1:5557"}'`, Options{}, "write tcp://*:PORT"},
		{`vllm serve M --kv-events-config '{"endpoint":"tcp://0.0.0.0:5557"}'`, Options{}, "write tcp://*:PORT"},
		{`sglang serve --kv-events-config '{"endpoint":"tcp://0.0.0.0:5557"}'`, Options{}, "write tcp://*:PORT"},
		{`vllm serve M --kv-events-config '{"endpoint":5557}'`, Options{}, "is not a text"},
		{`vllm serve M --kv-events-config '{"replay_endpoint":"tcp://*:0"}'`, Options{}, "has no port"},
		{"sglang.launch_server --disable-radix-cache", Options{Kind: "sglang"}, "leave it out"},
		{"llama-server --ssl-key-file K", Options{}, "needs no TLS"},
	} {
		_, err := planned(c.line, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.line, err, c.want)
		}
	}
}

// TestRefusalsHideKeys: no error repeats a key.
func TestRefusalsHideKeys(t *testing.T) {
	for _, line := range []string{"vllm serve M --api-key sk-1", "sglang serve --admin-api-key=sk-1", "llama-server --api-key sk-1"} {
		if _, err := planned(line, Options{}); err == nil || strings.Contains(err.Error(), "sk-1") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestPlanDrawsOnce: the ports of an engine are parts of one draw, so that they cannot overlap.
func TestPlanDrawsOnce(t *testing.T) {
	draws := 0
	p, err := PlanCommand([]string{"vllm", "serve", "M", "-dp", "2"}, Options{MaxRanks: 2, DrawPorts: func(n int) (int, error) {
		draws++
		if n != 5 {
			t.Errorf("%d ports are drawn", n)
		}
		return 20000, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Setting(""), "vllm=http://127.0.0.1:20000,events=tcp://127.0.0.1:20001,replay=tcp://127.0.0.1:20003,ranks=2"; got != want || draws != 1 {
		t.Errorf("%d draws: %s, want %s", draws, got, want)
	}
}

// TestPlanHints: only an added page size of SGLang has a hint.
func TestPlanHints(t *testing.T) {
	for _, c := range []struct {
		line    string
		o       Options
		hasHint bool
	}{
		{"sglang serve", Options{}, true},
		{"sglang serve", Options{BlockSize: 16}, true},
		{"sglang serve --page-size 1", Options{}, false},
		{"vllm serve M", Options{BlockSize: 16}, false},
	} {
		if p, err := planned(c.line, c.o); err != nil || (p.Hint != "") != c.hasHint {
			t.Errorf("%s %+v: hint %q, %v", c.line, c.o, p.Hint, err)
		}
	}
}

func TestDetectKind(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"uv run --project /opt/vllm python -m sglang.launch_server", "sglang"},
		{"uv run --project /opt/vllm /opt/engine", ""},
		{"uv run --project /opt/vllm llama-server", "llamacpp"},
		{"uv run --frozen vllm serve M", "vllm"},
		{"uv run -- llama-server -m M", "llamacpp"},
		{"uv run --project=/opt/sglang -- vllm serve M", "vllm"},
		{"numactl --interleave=all /usr/bin/vllm serve M", "vllm"},
		{"python -u /usr/bin/vllm serve M", "vllm"},
	} {
		kind, err := DetectKind(splitWords(c.line), "")
		if kind != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s is %q, want %q: %v", c.line, kind, c.want, err)
		}
	}
}

// FuzzPlanCommand: no command line makes it panic, and what it plans needs no further flags.
func FuzzPlanCommand(f *testing.F) {
	f.Add("vllm serve M --port=1 --kv-events-config '{}'")
	f.Add("penstock sim --kv-events tcp://*:1")
	f.Add("llama-server --host")
	f.Add("llama-server --api-prefix /a/")
	f.Add("sglang serve -dp 3 --page-size 1")
	f.Fuzz(func(t *testing.T, line string) {
		p, err := planned(line, Options{})
		if err != nil {
			return
		}
		again, err := PlanCommand(p.Args, Options{Dir: "/run/p", MaxRanks: 1024, DrawPorts: func(int) (int, error) {
			t.Fatal("a port was drawn for a complete command")
			return 0, nil
		}})
		if err != nil || !slices.Equal(again.Args, p.Args) || again.Setting("") != p.Setting("") {
			t.Errorf("%q is planned as %q, and then as %+v: %v", line, p.Args, again, err)
		}
	})
}
