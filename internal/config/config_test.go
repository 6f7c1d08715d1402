package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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
	tree := reflect.TypeFor[Config]()
	for i := range tree.NumField() {
		f := tree.Field(i)
		key := keyOf(f)
		if key == "" || f.Tag.Get("help") == "" || f.Tag.Get("on") == "" || seen[key] {
			t.Errorf("%s: needs a key of its own, help and on", f.Name)
		}
		seen[key] = true
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		AddFlags(fs, f.Tag.Get("on"))
		if fs.Lookup(key) == nil {
			t.Errorf("%s: type %v has no flag", key, f.Type)
		}
	}
}

func TestFileOfTheEnvironment(t *testing.T) {
	env := []string{EnvFile + "=" + write(t, "workers: 3\n")}
	for path, want := range map[string]int{"": 3, write(t, "workers: 5\n"): 5} {
		if l, err := Load(path, env, nil); err != nil || l.Workers != want {
			t.Errorf("path %q: %+v, %v, want %d workers", path, l, err, want)
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
	if l.Workers != 5 || l.RouterMode != "round-robin" || l.DrainTimeout.String() != "5s" || strings.Join(l.ServedModelName, " ") != "x y" {
		t.Errorf("effective tree: %+v", l.Config)
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
			"workers: 0 is not between", `http-addr: "8000" is not HOST:PORT`, `router-mode: "best" is not one of kv,`,
			`namespace: "a.b" must be`, "drain-timeout: -1s must be positive", `model-path: "/nonexistent" is not a directory`, "kv-overlap-score-weight: NaN",
			`log-level: log level "loud"`, "max-num-batched-tokens: 512 is less than the 1000",
		}},
		{"bad values beside unknown keys", "wokers: 2\nworkers: 0\n", []string{"PENSTOCK_MAX_WAITING=-1"}, []string{
			`:1: unknown key "wokers"`, "workers: 0 is not between", "max-waiting: -1 is not between",
		}},
		{"no values", "workers:\nhttp-addr: ~\n", []string{"PENSTOCK_MAX_INFLIGHT=", "PENSTOCK_DRAIN_TIMEOUT= "}, []string{
			":1: workers has no value", ":2: http-addr has no value", "PENSTOCK_MAX_INFLIGHT: it is empty", "PENSTOCK_DRAIN_TIMEOUT: it is empty",
		}},
		{"a block size beyond the engine's", "kv-cache-block-size: 1025\n", nil, []string{"kv-cache-block-size: 1025 is not between 2 and 1024"}},
		{"a bare number as duration", "drain-timeout: 30\n", nil, []string{`"30" is not a duration like 30s`}},
		{"no mapping", "- a\n", nil, []string{`want lines of "key: value"`}},
		{"no yaml", "a: [\n", nil, []string{"yaml: "}},
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

func TestEmptyVariables(t *testing.T) {
	l, err := Load(write(t, "data-dir: d\nserved-model-name: [a]\n"), []string{"PENSTOCK_DATA_DIR=", "PENSTOCK_SERVED_MODEL_NAME="}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.DataDir != "" || len(l.ServedModelName) != 0 {
		t.Errorf("data-dir %q, served-model-name %q, want none", l.DataDir, l.ServedModelName)
	}
}

func TestFileIsBounded(t *testing.T) {
	if _, err := Load(write(t, strings.Repeat("# x\n", maxFile/4+1)), nil, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
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
