//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// TestMain is also the program that the runner starts for each group of blocks.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "-task" {
		exitOn(runTask(os.Stdin, os.Stdout))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestDocuments parses every block of the repository and its comment. .ci/run runs
// them.
func TestDocuments(t *testing.T) {
	files, err := listDocuments(root)
	if err != nil {
		t.Fatal(err)
	}
	r := docRunner{root: root}
	all, _, err := r.readGroups(files)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Errorf("%d groups of blocks in %d files: fewer than there were", len(all), len(files))
	}
}

// A documentKind is a document, a change which makes it wrong, and what the runner
// says then.
type documentKind struct {
	name     string
	document string
	from, to string
	says     string
}

// kinds has a document for each kind of block.
var kinds = []documentKind{
	{"command", `
    penstock version
    penstock replay --generate random:requests=20 --policy kv
`, "--policy", "--polic", "unknown flag: --polic"},
	{"command in the middle", `
    penstock config validate --kv-cache-blocks 64
    true
`, "64", "many", "is not a whole number"},
	{"loop", `
    for w in 1 2; do
      penstock replay --generate random:requests=20 --policy kv --workers $w --json | jq .rows
    done
`, ".rows", ".rows[", "jq: error"},
	{"pipe", `
    penstock version | cat
`, "version", "vversion", "unknown command"},
	{"unfinished command", `
    echo "a
    b"
`, `b"`, `b`, "bash cannot read"},
	{"server", `
    penstock up --http-addr 127.0.0.1:0
`, "--http-addr", "--http-address", "ended before it served"},
	{"server and its client", `
<!-- run:
export PENSTOCK_HTTP_ADDR=127.0.0.1:$PORT
-->

    penstock up

Text between them.

<!-- run: continues -->

    curl http://127.0.0.1:$PORT/v1/completions -H 'Content-Type: application/json' \
      -d '{"model": "penstock-tiny", "prompt": "a", "max_tokens": 1}'
`, `"max_tokens"`, `"max_token"`, "400"},
	{"server that fails after Ctrl-C", `
<!-- run: ready=up -->

    trap 'exit 0' INT; echo up; while :; do sleep 0.05; done
`, "exit 0", "exit 3", "after Ctrl-C: exit status 3"},
	{"server that does not serve", `
<!-- run: ready=up, timeout=10m -->

    trap 'exit 0' INT; echo up; while :; do sleep 0.05; done
`, "ready=up, timeout=10m", "ready=down, timeout=1s", `did not print "down" in time`},
	{"background", `
    (touch begun; exec sleep 60) &
    until [ -e begun ]; do sleep 0.05; done
`, "touch begun; exec sleep 60", "trap 'exit 3' TERM; touch begun; while :; do sleep 0.05; done", "exit code 3"},
	{"output", `
    penstock replay --generate random:requests=20 --policy kv --workers 2

` + "```" + `
POLICY WORKERS  REQUESTS …
kv           2        20       0       40.3 …
` + "```" + `
`, "POLICY WORKERS", "POLICY ROUTERS", "no line is as the document has it: POLICY ROUTERS"},
	{"output after a prompt", `
<!-- run: exact -->

    $ penstock replay --generate random:requests=20 --describe
    requests                20
`, "20\n", "21\n", "no line is as the document has it: requests"},
	{"output of a server", `
    penstock up --http-addr 127.0.0.1:0

` + "```" + `
  Penstock serves penstock-tiny on http://127.0.0.1:8000  (ready in 1m0.117s)
` + "```" + `
`, "penstock-tiny", "penstock-large", "no line is as the document has it"},
	{"text that is printed", `
<!-- run: prints="penstock" -->

    penstock version
`, `"penstock"`, `"flume"`, "it does not print flume"},
	{"check", `
    penstock version > version

<!-- check:
grep penstock version
-->
`, "> version", "> versions", "version: No such file"},
	{"preparation", `
<!-- run:
touch there
-->

    ls there
`, "touch there", "touch elsewhere", "cannot access 'there'"},
	{"configuration", `
<!-- run: config=worker -->

` + "```yaml" + `
nats: nats://127.0.0.1:4222
kv-cache-blocks: 64
` + "```" + `
`, "kv-cache-blocks", "kv-cache-block", "kv-cache-block"},
	{"yaml", "```yaml\na: [1, 2]\n```\n", "]", "", "yaml"},
	{"json", "```json\n{\"a\": 1}\n```\n", "}", "", "this is not JSON"},
	{"python", "```python\nprint(len([1]))\n```\n", "len", "length", "NameError"},
	{"python that is not run", `
<!-- run: validate="it serves until it is stopped" -->

` + "```python\nraise SystemExit(1)\n```\n", "raise", "raised", "SyntaxError"},
	{"python that cannot run", `
<!-- run: needs=no_such_module -->

` + "```python" + `
import no_such_module
` + "```" + `
`, "import no", "import, no", "SyntaxError"},
	{"file", `
<!-- run: json, file=request.json -->

    {"a": 1}

<!-- run: continues -->

    jq -e .a request.json
`, `"a"`, `"b"`, "exit status 1"},
	{"engine", `
    vllm serve a-model --port $PORT --kv-events-config '{"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*"}'
`, "--kv-events-config", "--kv-event-config", "unknown flag --kv-event-config"},
	{"role that is not run", `
<!-- run: validate="it needs a machine of its own" -->

    penstock worker --nats nats://10.0.0.9:4222 --engine vllm=http://10.0.0.9:8000
`, "--engine", "--engines", "unknown flag: --engines"},
	{"value that is not run", `
<!-- run: validate="it needs a machine of its own" -->

    penstock frontend --nats nats://10.0.0.9:4222 --router-mode kv
`, "kv", "kvv", "router-mode"},
	{"command that is not run", `
<!-- run: validate="it needs a server" -->

    penstock bench --url http://llm.invalid --rate 3
`, "--rate 3", "--rate fast", "is not a number"},
	{"script that is not run", `
<!-- run: validate="it needs a quiet machine" -->

    tools/bench/agree.sh -speedup 4
`, "-speedup", "-speed", "no flag -speed"},
	{"example", `
<!-- run:
export MODEL=penstock-tiny
-->

    examples/multimodal/ask.sh --print examples/multimodal/picture.png | jq -e .messages
`, "ask.sh", "asks.sh", "No such file"},
	{"program of the repository", `
<!-- run: timeout=10m -->

    go run ./bench/index -h
`, "./bench/index", "./bench/indexes", "bench/indexes"},
	{"scaled command", `
<!-- run: scaled="requests=200000 => requests=20" -->

    penstock replay --generate random:requests=200000 --policy kv
`, "requests=200000 --", "requests=100000 --", "scaled: the block has no"},
}

// TestEveryKind runs a document for each kind of block, which passes, and the same
// with one change, which fails.
func TestEveryKind(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "penstock")
	if out, err := exec.Command("go", "build", "-o", bin, "penstock/cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// CI has them all; the tests of Go alone need none of them.
	kinds := slices.DeleteFunc(slices.Clone(kinds), func(k documentKind) bool {
		for _, program := range []string{"jq", "curl", "python"} {
			_, err := exec.LookPath(strings.Replace(program, "python", "python3", 1))
			if err != nil && strings.Contains(k.document, program) {
				t.Logf("%s: not run, since there is no %s", k.name, program)
				return true
			}
		}
		return false
	})
	sound, wrong := make([]string, len(kinds)), make([]string, len(kinds))
	for i, k := range kinds {
		if !strings.Contains(k.document, k.from) {
			t.Fatalf("%s: there is no %q to change", k.name, k.from)
		}
		document := strings.ReplaceAll(k.document, "$PORT", freePort(t))
		sound[i], wrong[i] = document, strings.Replace(document, k.from, k.to, 1)
	}
	for i, says := range runDocuments(t, bin, false, sound) {
		if strings.Contains(says, "FAIL") {
			t.Errorf("%s: the sound document fails:\n%s", kinds[i].name, says)
		}
	}
	for i, says := range runDocuments(t, bin, false, wrong) {
		if !strings.Contains(says, "FAIL") || !strings.Contains(says, kinds[i].says) {
			t.Errorf("%s: the wrong document does not fail with %q:\n%s", kinds[i].name, kinds[i].says, says)
		}
	}
	// Without namespaces nothing is different but the order.
	some := []string{sound[0], sound[1], sound[len(sound)-1], "    curl http://10.0.0.5:8000\n"}
	for i, says := range runDocuments(t, bin, true, some) {
		if strings.Contains(says, "FAIL") || strings.Contains(says, "SKIP") != (i == 3) {
			t.Errorf("without namespaces document %d:\n%s", i, says)
		}
	}
}

// TestStepOfCI: a command may be left to .ci/run if it is there.
func TestStepOfCI(t *testing.T) {
	for _, step := range []string{"go test ./...", "go test ./nowhere"} {
		file := filepath.Join(t.TempDir(), "a.md")
		if err := os.WriteFile(file, []byte("<!-- run: ci=\""+step+"\" -->\n\n    "+step+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		top, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		if file, err = filepath.Rel(top, file); err != nil {
			t.Fatal(err)
		}
		r := docRunner{root: root}
		if _, _, err := r.readGroups([]string{file}); (err == nil) != (step == "go test ./...") {
			t.Errorf("%s: %v", step, err)
		}
	}
}

// runDocuments runs documents at once and returns what the runner says of each.
func runDocuments(t *testing.T, bin string, sequential bool, documents []string) []string {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := make([]string, len(documents))
	for i, text := range documents {
		path := filepath.Join(dir, fmt.Sprintf("%02d.md", i))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if files[i], err = filepath.Rel(top, path); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	r := docRunner{bin: bin, root: root, jobs: 4, sequential: sequential, out: &out}
	_ = r.runFiles(context.Background(), files) // the lines say which block failed
	says := make([]string, len(documents))
	at := -1
	for line := range strings.Lines(out.String()) {
		for i := range files {
			if strings.Contains(line, fmt.Sprintf("%02d.md:", i)) && !strings.HasPrefix(line, "  ") {
				at = i
			}
		}
		if at >= 0 {
			says[at] += line
		}
	}
	for i, s := range says {
		if s == "" {
			t.Errorf("nothing is said of document %d:\n%s", i, out.String())
		}
	}
	return says
}
