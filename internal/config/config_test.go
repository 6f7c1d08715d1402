package config

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/route"
	"penstock/internal/engine/sim"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "penstock.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	l, err := Load("", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Settings() {
		if s.Origin != "default" {
			t.Errorf("%s comes from %q", s.Key, s.Origin)
		}
	}
}

func TestEverySettingIsDescribed(t *testing.T) {
	seen := map[string]bool{}
	var groups []string
	for _, g := range Groups() {
		groups = append(groups, g.Name)
	}
	for _, s := range listSettings() {
		if s.help == "" || len(s.on) == 0 || seen[s.key] || !slices.Contains(groups, s.group) {
			t.Errorf("%s: needs a key of its own, help, on and a group of %v", s.key, groups)
		}
		seen[s.key] = true
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		AddFlags(fs, Command(s.on[0]))
		if fs.Lookup(s.key) == nil {
			t.Errorf("%s has no flag", s.key)
		}
	}
}

// TestValidTags: a value outside what a tag "valid" says is refused, so every tag has a form which checkValue
// knows for the type of the setting.
func TestValidTags(t *testing.T) {
	for _, s := range listSettings() {
		valid := s.tag.Get("valid")
		if valid == "" {
			continue
		}
		c := Defaults(Up)
		for _, bad := range []any{"no:such value", Duration(-1), int64(-2e9), int(-2e9), -2e9, []float64{-2e9}} {
			at := reflect.ValueOf(s.pointer(&c)).Elem()
			if at.Type() != reflect.TypeOf(bad) {
				continue
			}
			at.Set(reflect.ValueOf(bad))
			if err := c.Validate(); err == nil || !strings.Contains("\n"+err.Error(), "\n"+s.key+": ") {
				t.Errorf("%s: valid %q takes %v: %v", s.key, valid, bad, err)
			}
		}
	}
}

// TestDefaultsOfCore: the values in field tags are those of the packages which define them.
func TestDefaultsOfCore(t *testing.T) {
	c := Defaults(Up)
	fetch, affinity := route.DefaultFetchCosts(), route.DefaultAffinityWeights()
	if got, want := c.Router.FetchCosts, []float64{fetch.Host, fetch.Disk, fetch.Pool}; !slices.Equal(got, want) {
		t.Errorf("router-fetch-costs is %v, want %v", got, want)
	}
	if got, want := c.Router.AffinityWeights, []float64{affinity.Label, affinity.Experts, affinity.Session, affinity.Embedding}; !slices.Equal(got, want) {
		t.Errorf("router-affinity-weights is %v, want %v", got, want)
	}
	if got, want := c.Simulation.Timing, sim.PresetNames()[0]; got != want {
		t.Errorf("sim-timing is %s, want %s", got, want)
	}
	jitter, _ := findSetting("sim-jitter")
	if got, want := jitter.tag.Get("valid"), fmt.Sprintf("0..%v", sim.MaxJitter); got != want {
		t.Errorf("sim-jitter may be %s, want %s", got, want)
	}
	cache, _ := findSetting("embedding-cache-capacity-gb")
	if got, want := cache.tag.Get("valid"), fmt.Sprintf("0..%d", MaxEmbeddingCache); got != want {
		t.Errorf("embedding-cache-capacity-gb may be %s, want %s", got, want)
	}
}

// TestTargets: targets need mode time and are at most an hour.
func TestTargets(t *testing.T) {
	l, err := Load(write(t, "router-mode: time\nttft-target: 2s\nitl-target: 50ms\nrouter-target-miss: refuse\n"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := l.RouteConfig()
	if want := (route.Targets{TTFT: 2 * time.Second, ITL: 50 * time.Millisecond}); got.Targets != want || got.OnMiss != route.MissRefuses {
		t.Errorf("the targets are %+v, %s", got.Targets, got.OnMiss)
	}
	for text, want := range map[string]string{
		"router-mode: kv\nttft-target: 2s\n":                "ttft-target: targets need",
		"router-mode: time\nitl-target: 2h\n":               "itl-target: 2h0m0s is more",
		"router-mode: time\nttft-target: -1s\n":             "ttft-target",
		"router-mode: time\nrouter-target-miss: whatever\n": "router-target-miss",
	} {
		if _, err := Load(write(t, text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Help shows a list as written on a command line.
func TestHelpOfLists(t *testing.T) {
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	AddFlags(fs, Up)
	for key, want := range map[string]string{"router-fetch-costs": "0.25,0.75,0.25", "sim-prefill": ""} {
		f := fs.Lookup(key)
		if f.DefValue != want || f.Value.Type() != "numbers" {
			t.Errorf("%s: default %q of type %s, want %q of numbers", key, f.DefValue, f.Value.Type(), want)
		}
		if want != "" && f.Value.Set(want) != nil {
			t.Errorf("%s does not take its default %q", key, want)
		}
	}
}

func TestFileOfTheEnvironment(t *testing.T) {
	env := []string{EnvFile + "=" + write(t, "workers: 3\n")}
	for path, want := range map[string]int{"": 3, write(t, "workers: 5\n"): 5} {
		if l, err := Load(path, env, nil); err != nil || l.Engine.Workers != want {
			t.Errorf("path %q: %+v, %v, want %d workers", path, l, err, want)
		}
	}
}

// TestWeightsOfKVSelectIt: settings with a weight of mode kv and no mode get kv, from where the weight came.
func TestWeightsOfKVSelectIt(t *testing.T) {
	for _, c := range []struct {
		file   string
		env    []string
		mode   string
		origin string // without the path of the file
	}{
		{"", nil, "time", "default"},
		{"", []string{"PENSTOCK_KV_OVERLAP_SCORE_WEIGHT=2"}, "kv", "env PENSTOCK_KV_OVERLAP_SCORE_WEIGHT"},
		{"router-prefill-queue-weight: 2\n", nil, "kv", "file :1"},
		{"kv-overlap-score-weight: 1\n", []string{"PENSTOCK_ROUTER_MODE=time"}, "time", "env PENSTOCK_ROUTER_MODE"},
	} {
		path := write(t, c.file)
		l, err := Load(path, c.env, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l.Settings() {
			if s.Key == "router-mode" && (s.Value != c.mode || strings.Replace(s.Origin, path, "", 1) != c.origin) {
				t.Errorf("%q, %v: %s from %s, want %s from %s", c.file, c.env, s.Value, s.Origin, c.mode, c.origin)
			}
		}
		if got := l.RouteConfig().Mode; string(got) != c.mode {
			t.Errorf("%q, %v: mode %s, want %s", c.file, c.env, got, c.mode)
		}
	}
}

func TestLayers(t *testing.T) {
	path := write(t, "workers: 3\nrouter-mode: random\ndrain-timeout: 5s\nserved-model-name: [a, b]\n")
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	fl := AddFlags(fs, "up")
	if err := fs.Parse([]string{"--workers=5", "--served-model-name=x", "--served-model-name=y"}); err != nil {
		t.Fatal(err)
	}
	l, err := Load(path, []string{"PENSTOCK_ROUTER_MODE=round-robin", "PENSTOCK_WORKERS=4", "OTHER=1", "PENSTOCK_CONFIG=x"}, fl)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range l.Settings() {
		got[s.Key] = s.Origin
	}
	want := map[string]string{
		"workers": "flag --workers", "router-mode": "env PENSTOCK_ROUTER_MODE",
		"drain-timeout": "file " + path + ":3", "served-model-name": "flag --served-model-name", "http-addr": "default",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("origin of %s = %q, want %q", k, got[k], v)
		}
	}
	if l.Engine.Workers != 5 || l.Router.Mode != "round-robin" || l.Drain.Timeout.String() != "5s" || strings.Join(l.Engine.ServedModelName, " ") != "x y" {
		t.Errorf("effective tree: %+v", l.Config)
	}
}

// TestComponents: the names accepted by --log-level are those which the components log under.
func TestComponents(t *testing.T) {
	used := map[string]bool{}
	call := regexp.MustCompile(`obs\.Component\([^,]+, "(\w+)"\)`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range call.FindAllStringSubmatch(string(source), -1) {
			used[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(maps.Keys(used))
	if have := slices.Sorted(slices.Values(LogComponents())); !slices.Equal(have, want) {
		t.Errorf("components are %v, those that log are %v", have, want)
	}
	level, _ := findSetting("log-level")
	if list := strings.Join(LogComponents(), ", "); !strings.Contains(level.help, "("+list+")") {
		t.Errorf("the help of log-level does not list %s", list)
	}
}

// TestRelayLevel: log-level accepts the component routerproxy by its old name too.
func TestRelayLevel(t *testing.T) {
	for _, level := range []string{"relay=debug", "info, relay = debug", "router=warn,relay=debug,bus=info"} {
		c := Config{}
		c.Log.Level = level
		levels, err := c.ParseLogLevels()
		if err != nil || levels.LevelOf("routerproxy") != slog.LevelDebug {
			t.Errorf("%s: routerproxy has %v, %v", level, levels.LevelOf("routerproxy"), err)
		}
	}
	c := Config{}
	c.Log.Level = "relays=debug"
	if _, err := c.ParseLogLevels(); err == nil {
		t.Error("relays is a component")
	}
}

// TestEchoesAreBounded: a message quotes only the start of a value.
func TestEchoesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, key := range []string{"namespace", "http-addr", "router-mode", "model", "model-path", "log-level", "log-format", "drain-timeout", "workers", long} {
		_, inFile := Load(write(t, key+": "+long+"\n"), nil, nil)
		_, inEnv := Load("", []string{EnvName(key) + "=" + long}, nil)
		for _, err := range []error{inFile, inEnv} {
			if err == nil || len(err.Error()) > 1000 {
				t.Errorf("%.20s: an error of %d bytes: %.300v", key, len(fmt.Sprint(err)), err)
			}
		}
	}
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		env        []string
		want       []string
	}{
		{"unknown and mistyped keys", "wokers: 2\nworkers: many\nworkers: 2\n", []string{"PENSTOCK_WORKRS=1", "PENSTOCK_MAX_INFLIGHT=x"}, []string{
			`:1: unknown key "wokers"; did you mean "workers"?`, `:2: workers:`, `:3: key "workers" given twice`,
			`PENSTOCK_WORKRS names no setting; did you mean "workers"?`, `PENSTOCK_MAX_INFLIGHT: `,
		}},
		{"values out of range", "workers: 0\nhttp-addr: 8000\nrouter-mode: best\nnamespace: a.b\ndrain-timeout: -1s\nmodel-path: /nonexistent\nkv-overlap-score-weight: .nan\nlog-level: loud\nmax-num-seqs: 1000\n", nil, []string{
			"workers: 0 is not between", `http-addr: "8000" is not HOST:PORT`, `router-mode: "best" is not one of time,`,
			`namespace: "a.b" must be`, "drain-timeout: -1s must be positive", `model-path: "/nonexistent" is not a directory`, "kv-overlap-score-weight: NaN is not between 0 and 1e+09",
			`log-level: log level "loud"`, "max-num-batched-tokens: 512 is less than the 1000",
		}},
		{"bad values beside unknown keys", "wokers: 2\nworkers: 0\n", []string{"PENSTOCK_MAX_WAITING=-1"}, []string{
			`:1: unknown key "wokers"`, "workers: 0 is not between", "max-waiting: -1 is not between",
		}},
		{"a component that is not there", "log-level: info,ruoter=debug\n", nil, []string{`there is no component "ruoter"; there are frontend, router, worker, engine, bus, catalog, disco, nats`}},
		{"a weight beyond sense", "router-temperature: 1e+308\n", nil, []string{"router-temperature: 1e+308 is not between 0 and 1e+09"}},
		{"no values", "workers:\nhttp-addr: ~\n", []string{"PENSTOCK_MAX_INFLIGHT=", "PENSTOCK_DRAIN_TIMEOUT= "}, []string{
			":1: workers has no value", ":2: http-addr has no value", "PENSTOCK_MAX_INFLIGHT: it is empty", "PENSTOCK_DRAIN_TIMEOUT: it is empty",
		}},
		{"a block size beyond the engine's", "kv-cache-block-size: 1025\n", nil, []string{"kv-cache-block-size: 1025 is not between 2 and 1024"}},
		{"limits of streams that cannot be kept", "stall-timeout: 10m\n", []string{"PENSTOCK_ACTIVE_REQUEST_EXPIRY=20s"}, []string{
			"stall-timeout: 10m0s is not 0s, nor between 10s and 5m0s", "active-request-expiry: 20s is too short: use 30s or more",
		}},
		{"a bare number as duration", "drain-timeout: 30\n", nil, []string{`"30" is not a duration with a unit, for example 30s`}},
		{"an event plane that cannot be", "event-plane: amqp\nevent-addr: here\nevent-advertise: 10.0.0.7:1\nevent-peers: [10.0.0.7]\n", nil, []string{
			`event-plane: "amqp" is not one of nats, zmq`, `event-addr: "here" is not HOST:PORT`, `event-advertise: "10.0.0.7:1" is not HOST`, `event-peers: "10.0.0.7" is not HOST:PORT`, "event-peers: belongs to --event-plane zmq",
		}},
		{"media that cannot be", "media-identity: name\nmedia-url-ttl: -1s\nmedia-allow-hosts: [\"http://a\"]\nmedia-max-bytes: 1\nmedia-max-pixels: 1\nmedia-max-objects: 257\nmedia-timeout: 0s\nmedia-min-rate: -1\nmm-transfer: rdma\n", nil, []string{
			`media-identity: "name" is not one of url, bytes, pixels`, "media-url-ttl: -1s must not be negative", `media-allow-hosts: "http://a" is no name of a host`, "media-max-bytes: 1 is not between",
			"media-max-pixels: 1 is not between", "media-max-objects: 257 is not between 1 and 256", "media-timeout: 0s must be positive", "media-min-rate: -1 is not between 0", `mm-transfer: "rdma" is not one of shm, network, off`,
		}},
		{"no room for media", "media-cache-bytes: 1048576\nmm-transfer: fax\n", nil, []string{"media-cache-bytes: 1048576 has no room", `mm-transfer: "fax" is not one of shm, network, off`}},
		{"no mapping", "- a\n", nil, []string{`want lines of "key: value"`}},
		{"no yaml", "a: [\n", nil, []string{"this is not YAML: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(write(t, tc.file), tc.env, nil)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nlacks %q", err, w)
				}
			}
		})
	}
}

// TestEventPlane: the processes of an event plane over ZeroMQ must be able to find each other.
func TestEventPlane(t *testing.T) {
	for name, tc := range map[string]struct{ env, want string }{
		"static without peers":                    {"DISCOVERY=static STATIC_WORKERS=tcp://h:1", "event-peers: zmq with discovery static needs"},
		"static":                                  {"DISCOVERY=static STATIC_WORKERS=tcp://h:1 EVENT_PEERS=h:5600", ""},
		"all interfaces":                          {"DISCOVERY=file DISCOVERY_DIR=d EVENT_ADDR=0.0.0.0:5600", "event-advertise: event-addr is all interfaces"},
		"all interfaces, advertised":              {"DISCOVERY=file DISCOVERY_DIR=d EVENT_ADDR=:5600 EVENT_ADVERTISE=10.0.0.7", ""},
		"all interfaces, as the request plane is": {"DISCOVERY=file DISCOVERY_DIR=d EVENT_ADDR=:5600 RPC_ADVERTISE=10.0.0.7:7000", ""},
		"one interface":                           {"DISCOVERY=file DISCOVERY_DIR=d EVENT_ADDR=[::1]:5600", ""},
		"NATS for discovery":                      {"NATS=nats://h:1", ""},
	} {
		env := []string{"PENSTOCK_EVENT_PLANE=zmq"}
		for kv := range strings.FieldsSeq(tc.env) {
			env = append(env, "PENSTOCK_"+kv)
		}
		_, err := Load("", env, NoFlags(Router))
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestEmptyVariables(t *testing.T) {
	l, err := Load(write(t, "data-dir: d\nserved-model-name: [a]\n"), []string{"PENSTOCK_DATA_DIR=", "PENSTOCK_SERVED_MODEL_NAME="}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.DataDir != "" || len(l.Engine.ServedModelName) != 0 {
		t.Errorf("data-dir %q, served-model-name %q, want none", l.DataDir, l.Engine.ServedModelName)
	}
}

func TestFileIsBounded(t *testing.T) {
	if _, err := Load(write(t, strings.Repeat("# x\n", maxConfigFile/4+1)), nil, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Fatalf("err = %v", err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil); err == nil {
		t.Fatal("a missing file was accepted")
	}
}

func FuzzFile(f *testing.F) {
	f.Add("workers: 2\n")
	f.Add("served-model-name: [a]\ndrain-timeout: {}\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Load(path, nil, nil)
		if err == nil && l.Validate() != nil {
			t.Fatal("an invalid tree was accepted")
		}
	})
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		"0.0.0.0:1": false, "[::]:1": false, ":1": false, "192.0.2.1:1": false, "example.org:1": false, "nonsense": false,
	} {
		if got := IsLoopback(addr); got != want {
			t.Errorf("loopback(%q) = %v", addr, got)
		}
	}
}
