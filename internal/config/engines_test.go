package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"penstock/internal/zmtp"
)

func TestParseRemoteEngine(t *testing.T) {
	at := func(text string) zmtp.Endpoint {
		e, err := zmtp.ParseEndpoint(text)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for _, c := range []struct {
		text, url string
		want      RemoteEngine
	}{
		{"vllm=http://a:8000", "http://a:8000", RemoteEngine{Kind: "vllm", Mode: "auto"}},
		{"sglang=https://[2001:db8::1]:443/base/", "https://[2001:db8::1]:443/base", RemoteEngine{Kind: "sglang", Mode: "auto"}},
		{"llamacpp=http://localhost/", "http://localhost", RemoteEngine{Kind: "llamacpp", Mode: "auto"}},
		{
			"vllm=http://a:8000,events=tcp://a:5557,replay=tcp://[::1]:5558,snapshot=ipc:///run/s,ranks=4,mode=tokens,block-size=64,api-key-file=/k,name=m,model-path=/m", "http://a:8000",
			RemoteEngine{Kind: "vllm", Events: at("tcp://a:5557"), Replay: at("tcp://[::1]:5558"), Snapshot: at("ipc:///run/s"), Ranks: 4, Mode: "tokens", BlockSize: 64, APIKeyFile: "/k", Name: "m", ModelPath: "/m"},
		},
		{"vllm=http://a:1,media=video+image,media-keys=off", "http://a:1", RemoteEngine{Kind: "vllm", Mode: "auto", Media: []string{"image", "video"}, MediaKeys: "off"}},
		{"vllm=http://a:1,media-check=off", "http://a:1", RemoteEngine{Kind: "vllm", Mode: "auto", Unchecked: true}},
		{"vllm=http://a:1,ec-role=consumer", "http://a:1", RemoteEngine{Kind: "vllm", Mode: "auto", ECRole: "consumer"}},
		{"vllm=http://a:1,kv-connector=nixl", "http://a:1", RemoteEngine{Kind: "vllm", Mode: "auto", KVConnector: "nixl"}},
		{"vllm=http://a:1,media-check=on,name=m", "http://a:1", RemoteEngine{Kind: "vllm", Mode: "auto", Name: "m"}},
		{
			`vllm=http://a:1,mm-processor-kwargs={"size": {"longest_edge":7, "shortest_edge":4}, "a":"},{"},name=m`, "http://a:1",
			RemoteEngine{Kind: "vllm", Mode: "auto", ProcessorArgs: `{"a":"},{","size":{"longest_edge":7,"shortest_edge":4}}`, Name: "m"},
		},
		{"trtllm=http://a:1,media=none,media-keys=uuid", "http://a:1", RemoteEngine{Kind: "trtllm", Mode: "auto", Media: []string{}, MediaKeys: "uuid"}},
		{"sglang=http://a:1,replay=tcp://a:5558", "http://a:1", RemoteEngine{Kind: "sglang", Replay: at("tcp://a:5558"), Mode: "auto"}},
		{"trtllm=http://a:1,mode=pass,events=tcp://*:5557", "http://a:1", RemoteEngine{Kind: "trtllm", Events: at("tcp://*:5557"), Mode: "pass"}},
		{"vllm=http://a:1,events=tcp://a:5557,replay=tcp://a:5567,ranks=8", "http://a:1", RemoteEngine{Kind: "vllm", Events: at("tcp://a:5557"), Replay: at("tcp://a:5567"), Ranks: 8, Mode: "auto"}},
	} {
		got, err := ParseRemoteEngine(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got.URL.String() != c.url {
			t.Errorf("%s: the URL is %s", c.text, got.URL)
		}
		if got.URL = nil; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", c.text, got)
		}
	}
}

func TestRemoteEngineRefused(t *testing.T) {
	const secret = "s3cret"
	for text, want := range map[string]string{
		"":                                      "write tiny, sim, or KIND=URL",
		"vllm":                                  `"vllm" is not an engine`,
		"ollama=http://a:1":                     `"ollama" is not an engine`,
		"vllm=a:8000":                           "for example vllm=http://127.0.0.1:8000",
		"vllm=tcp://a:8000":                     "want http://HOST:PORT or https://HOST[:PORT]",
		"vllm=http://:8000":                     "is not a URL",
		"vllm=http://a:0":                       "not between 1 and 65535",
		"vllm=http://a:99999":                   "not between 1 and 65535",
		"vllm=http://me:s3cret@a:8000":          "put the key of the engine into a file",
		"vllm=http://me:s3cret@a:port":          "is not a URL",
		"vllm=http://a:1,kv-connector=mooncake": `"mooncake" is not nixl`,
		"sglang=http://a:1,kv-connector=nixl":   "only vLLM's is spoken",
		"vllm=http://a:1,kv-connector=nixl,mode=pass":                        "cannot be divided",
		"vllm=http://a:8000?key=s3cret":                                      "more than an address and a path",
		"vllm=http://a:8000#s3cret":                                          "more than an address and a path",
		"vllm=http://a:1,api-key=s3cret":                                     "put it into a file for api-key-file",
		"vllm=http://a:1,event=tcp://a:1":                                    "vllm=http://a:1: event: there is no such key; those are events, replay",
		"vllm=http://a:1,":                                                   "there is no such key",
		"vllm=http://a:1,events":                                             "it has no value: write events=…",
		"vllm=http://a:1,events=":                                            "it has no value",
		"vllm=http://a:1,ranks=2,ranks=3":                                    "ranks: it is given twice",
		"vllm=http://a:1,events=a:5557":                                      "want tcp://HOST:PORT",
		"vllm=http://a:1,events=tcp://a":                                     "missing port",
		"vllm=http://a:1,events=tcp://a:0":                                   "has no port: want one from 1 to 65535",
		"vllm=http://a:1,events=tcp://::1:5":                                 "an IPv6 address in brackets",
		"vllm=http://a:1,events=tcp://u@a:5":                                 "is no host",
		"vllm=http://a:1,ranks=0":                                            `"0" is not a number from 1 to 1024`,
		"vllm=http://a:1,ranks=two":                                          `"two" is not a number`,
		"vllm=http://a:1,block-size=1":                                       "from 2 to 65536",
		"vllm=http://a:1,mode=chat":                                          `"chat" is not one of auto, tokens, pass`,
		"vllm=http://a:1,media=image+image":                                  "each once",
		"vllm=http://a:1,media=pictures":                                     "some of audio, image and video",
		"vllm=http://a:1,media-keys=hash":                                    "not one of uuid, off",
		"vllm=http://a:1,replay=tcp://a:5558":                                "give events=tcp://HOST:PORT too",
		"trtllm=http://a:1,replay=tcp://a:5558":                              "give events=tcp://HOST:PORT too",
		"vllm=http://a:1,snapshot=tcp://a:1":                                 "snapshot: it goes together with events",
		"llamacpp=http://a:1,events=tcp://a:1":                               "llama.cpp sends none",
		"llamacpp=http://a:1,ranks=2":                                        "give each server a --engine of its own",
		"vllm=http://a:1,mode=pass,model-path=/m":                            "leave out one of them",
		`vllm=http://a:1,mm-processor-kwargs=[1]`:                            "is not a JSON object",
		`vllm=http://a:1,mm-processor-kwargs={"a":1`:                         "is not a JSON object",
		`vllm=http://a:1,mm-processor-kwargs=null`:                           "is not a JSON object",
		`sglang=http://a:1,mm-processor-kwargs={}`:                           "it is the setting of that name of vLLM",
		"vllm=http://a:1,media-check=no":                                     "is not one of on, off",
		"vllm=http://a:1,events=tcp://a:5557,replay=tcp://a:5558,ranks=2":    "at least 2 apart",
		"vllm=http://a:1,vllm=http://b:1":                                    "a second engine is a second --engine",
		"vllm=http://a:1,api-key-file=/k,password=s3cret,events=tcp://a:557": "cannot",
	} {
		_, err := ParseRemoteEngine(text)
		if want == "cannot" {
			want = "put it into a file"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the secret is in the error: %v", err)
		}
	}
}

func FuzzParseRemoteEngine(f *testing.F) {
	f.Add("vllm=http://a:8000,events=tcp://a:5557,replay=tcp://a:5558,ranks=2")
	f.Add("sglang=https://[::1]/x,mode=pass")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseRemoteEngine(text)
		if err != nil {
			return
		}
		if e.URL == nil || e.URL.User != nil || e.URL.Hostname() == "" || !slices.Contains(RemoteKinds(), e.Kind) {
			t.Fatalf("%q is %+v", text, e)
		}
		again, err := ParseRemoteEngine(e.String())
		if err != nil || again.URL.String() != e.URL.String() {
			t.Fatalf("%q is %s, which is %v (%v)", text, e.String(), again.URL, err)
		}
	})
}

// TestEnginesFromEverywhere: a flag for each, a list in a file, a variable with all.
func TestEnginesFromEverywhere(t *testing.T) {
	const one, two = "vllm=http://a:8000,events=tcp://a:5557,replay=tcp://a:5558", "sglang=http://b:30000,ranks=2"
	path := filepath.Join(t.TempDir(), "p.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(file string, environ []string, args ...string) []string {
		t.Helper()
		fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
		flags := AddFlags(fs, Up)
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
		l, err := Load(file, environ, flags)
		if err != nil {
			t.Fatal(err)
		}
		if l.HasRemoteEngines() && len(l.RemoteEngines()) != len(l.Engine.Engines) {
			t.Errorf("%d engines of %q", len(l.RemoteEngines()), l.Engine.Engines)
		}
		return l.Engine.Engines
	}
	both := []string{one, two}
	write("engine:\n- " + one + "\n- " + two + "\n")
	if got := read(path, nil); !slices.Equal(got, both) {
		t.Errorf("a list in a file: %q", got)
	}
	if got := read(path, nil, "--engine", "sim"); !slices.Equal(got, []string{"sim"}) {
		t.Errorf("a flag over a file: %q", got)
	}
	write("engine: " + one + "\n")
	if got := read(path, nil); !slices.Equal(got, []string{one}) {
		t.Errorf("one in a file: %q", got)
	}
	if got := read("", []string{"PENSTOCK_ENGINE=" + one + "," + two}); !slices.Equal(got, both) {
		t.Errorf("a variable: %q", got)
	}
	if got := read("", nil, "--engine", one, "--engine="+two); !slices.Equal(got, both) {
		t.Errorf("flags: %q", got)
	}
	if got := read("", nil); !slices.Equal(got, []string{"tiny"}) {
		t.Errorf("nothing said: %q", got)
	}
}

// TestEnginesTogether: which engines may be combined.
func TestEnginesTogether(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		command Command
		environ []string
		want    string // "" if it is valid
	}{
		{Up, []string{"ENGINE=vllm=http://a:1,vllm=http://b:1"}, ""},
		{Up, []string{"ENGINE=vllm=http://a:1,model-path=" + dir, "MAX_NUM_SEQS=600"}, ""},
		{Up, []string{"ENGINE=vllm=http://a:1", "SERVED_MODEL_NAME=a,b"}, "is told one name"},
		{Up, []string{"ENGINE=tiny,vllm=http://b:1"}, "are not mixed in one process"},
		{Up, []string{"ENGINE=tiny,sim"}, "one engine of this program is enough"},
		{Up, []string{"ENGINE=vllm=http://a:1,sglang=http://a:1/"}, "http://a:1 is given twice"},
		{Up, []string{"ENGINE=vllm=http://a:1,events=tcp://a:5,vllm=http://b:1,events=tcp://a:5"}, "events=tcp://a:5 is given twice"},
		{Up, []string{"ENGINE=vllm=http://a:1,model-path=" + dir + "/none"}, "is not a directory"},
		{Up, []string{"ENGINE=vllm=http://a:1", "KV_EVENTS=tcp://a:1"}, ""}, // a worker's
		{Worker, []string{"ENGINE=vllm=http://a:1", "KV_EVENTS=tcp://a:1", "KV_REPLAY=tcp://a:2"}, ""},
		{Worker, []string{"ENGINE=vllm=http://a:1,vllm=http://b:1"}, "a worker has one engine"},
		{Worker, []string{"KV_EVENTS=tcp://a:1"}, "engine tiny is not one"},
		{Worker, []string{"ENGINE=vllm=http://a:1", "KV_EVENTS=a:1"}, "kv-events: \"a:1\" is not an endpoint"},
		{Worker, []string{"ENGINE=vllm=http://a:1", "KV_REPLAY=tcp://a:1"}, "there are none to follow"},
		{Worker, []string{"ENGINE=vllm=http://a:1,events=tcp://a:1", "KV_EVENTS=tcp://a:1"}, "says events= too"},
		{Worker, []string{"ENGINE=vllm=http://a:1,events=tcp://a:1,replay=tcp://a:2", "KV_REPLAY=tcp://a:2"}, "says replay= too"},
		{Worker, []string{"ENGINE=llamacpp=http://a:1", "KV_EVENTS=tcp://a:1"}, "llama.cpp sends none"},
	} {
		environ := []string{"PENSTOCK_NATS=nats://h:4222"}
		for _, v := range c.environ {
			environ = append(environ, "PENSTOCK_"+v)
		}
		_, err := Load("", environ, NoFlags(c.command))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s %q: %v, want %q", c.command, c.environ, err, c.want)
		}
	}
}

// TestRemoteEngines: other settings complete a value of engine.
func TestRemoteEngines(t *testing.T) {
	load := func(command Command, environ ...string) []RemoteEngine {
		t.Helper()
		for i := range environ {
			environ[i] = "PENSTOCK_" + environ[i]
		}
		l, err := Load("", append(environ, "PENSTOCK_NATS=nats://h:4222"), NoFlags(command))
		if err != nil {
			t.Fatal(err)
		}
		return l.RemoteEngines()
	}
	w := load(Worker, "ENGINE=vllm=http://a:1", "KV_EVENTS=tcp://a:5", "KV_REPLAY=tcp://a:6", "SERVED_MODEL_NAME=m", "KV_CACHE_BLOCK_SIZE=16")
	if len(w) != 1 || w[0].Events.String() != "tcp://a:5" || w[0].Replay.String() != "tcp://a:6" || w[0].Name != "m" || w[0].BlockSize != 16 {
		t.Errorf("%+v", w)
	}
	dir := t.TempDir()
	u := load(Up, "ENGINE=vllm=http://a:1,name=x,block-size=32,vllm=http://b:1", "SERVED_MODEL_NAME=m", "KV_EVENTS=tcp://a:5", "MODEL_PATH="+dir)
	if len(u) != 2 || u[0].Name != "x" || u[1].Name != "m" || u[0].BlockSize != 32 || u[1].BlockSize != 0 || !u[0].Events.IsZero() || u[1].ModelPath != dir {
		t.Errorf("%+v", u)
	}
	if got := load(Up, "ENGINE=sim"); got != nil {
		t.Errorf("of a simulation: %+v", got)
	}
}

// TestEnginesShown: the redacted values of refused engines contain no secret.
func TestEnginesShown(t *testing.T) {
	for given, want := range map[string]string{
		"tiny":                              "tiny",
		"vllm=http://a:1,events=tcp://a:5":  "vllm=http://a:1,events=tcp://a:5",
		"vllm=http://me:s3cret@a:1":         "vllm=http://xxxxx@a:1",
		"vllm=http://a:1?k=s3cret":          "vllm=http://a:1?xxxxx",
		"vllm=http://a:1,api-key=s3cret":    "vllm=http://a:1,api-key=xxxxx",
		"vllm=http://me:s3cret@a:port,x=y":  "vllm=(unreadable),x=xxxxx",
		"openai=http://me:s3cret@a,ranks=2": "openai=xxxxx,ranks=2",
	} {
		l, _ := Read("", []string{"PENSTOCK_ENGINE=" + given}, NoFlags(Up))
		for _, s := range l.Settings() {
			if s.Key == "engine" && s.Value != want {
				t.Errorf("%s is shown as %v, want %s", given, s.Value, want)
			}
		}
	}
}

func TestBuiltinModel(t *testing.T) {
	for name, want := range map[string]bool{"penstock-sim": true, "penstock-tiny": true, "": false, "org/penstock-sim": false} {
		if IsBuiltinModel(name) != want {
			t.Errorf("%q is built in: %v", name, !want)
		}
	}
}

func TestHubCache(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    string
	}{
		{nil, ""},
		{[]string{"HOME=/h"}, "/h/.cache/huggingface/hub"},
		{[]string{"HOME=/h", "XDG_CACHE_HOME=/x"}, "/x/huggingface/hub"},
		{[]string{"HOME=/h", "XDG_CACHE_HOME=/x", "HF_HOME=/f"}, "/f/hub"},
		{[]string{"HOME=/h", "HF_HOME=/f", "HF_HUB_CACHE=/c"}, "/c"},
	} {
		l, err := Load("", c.environ, NoFlags(Up))
		if err != nil {
			t.Fatal(err)
		}
		if got := filepath.ToSlash(l.HubCacheDir()); got != c.want {
			t.Errorf("%v: %s, want %s", c.environ, got, c.want)
		}
	}
}
