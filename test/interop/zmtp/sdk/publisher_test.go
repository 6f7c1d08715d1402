// Package sdk holds a publisher of sdk against a running Penstock. test/interop/zmtp.sh runs it for each language.
package sdk

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/core/kv"
)

// blockSize is the number of tokens in a block of the simulated engine.
const blockSize = 16

// process is a program whose first line says where it serves.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// startProcess runs a program until the test ends, and returns it with its first line.
func startProcess(t *testing.T, name string, args ...string) (p *process, first string) {
	t.Helper()
	p = &process{t: t, cmd: exec.Command(name, args...)}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PENSTOCK_") }) // they name settings
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.in, p.lines = in, bufio.NewScanner(out)
	return p, p.line()
}

func (p *process) line() string {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("%s ended: %v", p.cmd.Path, p.lines.Err())
	}
	return p.lines.Text()
}

func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// finish ends the input, after which the program must end by itself, without an error.
func (p *process) finish() {
	p.t.Helper()
	if err := p.in.Close(); err != nil {
		p.t.Fatal(err)
	}
	if p.lines.Scan() {
		p.t.Fatalf("%s: %s", p.cmd.Path, p.lines.Text())
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Fatalf("%s: %v", p.cmd.Path, err)
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// variable returns an environment variable which the script sets.
func variable(t *testing.T, name string) string {
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run test/interop/zmtp.sh", name)
	}
	return value
}

// engine is an engine which is simulated, except its cache: the publisher says what that has.
type engine struct {
	*process
	events, replay string
	held           map[kv.SeqHash]kv.EngineHash // what the cache has
	next           kv.EngineHash
}

// startPublisher runs the publisher at ports, 0 for any. PENSTOCK_SDK_PUBLISHER is its command, in words between blanks.
// It gets the endpoints, block size, buffer and queue as arguments, and prints the endpoints. Then it answers each line
// with "done". A line is a method and numbers:
//
//	stored LAYER EXPERT (HASH TOKEN...)...
//	removed HASH...
//	cleared
//	pooled POOL WORKER WORKER HASH...
//	evicted HASH...
func startPublisher(t *testing.T, events, replay string) *engine {
	command := strings.Fields(variable(t, "PENSTOCK_SDK_PUBLISHER"))
	p, first := startProcess(t, command[0], append(command[1:], events, replay, strconv.Itoa(blockSize), "64", "16")...)
	events, replay, _ = strings.Cut(first, " ")
	return &engine{process: p, events: events, replay: replay, held: map[kv.SeqHash]kv.EngineHash{}}
}

// say sends a line of a method and numbers.
func (e *engine) say(method string, numbers ...uint64) {
	e.t.Helper()
	line := []byte(method)
	for _, n := range numbers {
		line = strconv.AppendUint(append(line, ' '), n, 10)
	}
	if _, err := e.in.Write(append(line, '\n')); err != nil {
		e.t.Fatal(err)
	}
	if got := e.line(); got != "done" {
		e.t.Fatalf("%s: %s", method, got)
	}
}

// sayOf sends a line of a method, numbers and then hashes.
func (e *engine) sayOf(method string, names []kv.EngineHash, numbers ...uint64) {
	e.t.Helper()
	for _, name := range names {
		numbers = append(numbers, uint64(name))
	}
	e.say(method, numbers...)
}

// store stores a prompt of n blocks, and returns the engine's hashes of them.
func (e *engine) store(n int) (names []kv.EngineHash) {
	e.t.Helper()
	hasher, err := kv.NewHasher(blockSize, kv.Salt{})
	if err != nil {
		e.t.Fatal(err)
	}
	described := []uint64{3, 17}
	var tokens []kv.Token
	for range n {
		e.next++
		names = append(names, e.next)
		described = append(described, uint64(e.next))
		for i := range uint64(blockSize) {
			token := uint64(e.next)*blockSize + i
			tokens = append(tokens, kv.Token(token))
			described = append(described, token)
		}
	}
	e.say("stored", described...)
	seq := kv.SeqHash(0)
	for i, b := range hasher.AppendBlockHashes(nil, tokens, nil) {
		seq = kv.ExtendSeq(seq, uint32(i), b)
		e.held[seq] = names[i]
	}
	return names
}

// remove removes blocks from the engine's own memory.
func (e *engine) remove(names ...kv.EngineHash) {
	e.t.Helper()
	slices.Reverse(names)
	e.sayOf("removed", names)
	maps.DeleteFunc(e.held, func(_ kv.SeqHash, name kv.EngineHash) bool { return slices.Contains(names, name) })
}

// startUp runs Penstock in front of the engine, and returns it with its URL.
func startUp(t *testing.T, simulated string, e *engine) (*process, string) {
	t.Helper()
	p, first := startProcess(t, variable(t, "PENSTOCK_BINARY"), "up", "--json", "--http-addr", "127.0.0.1:0", "--data-dir", t.TempDir(),
		"--engine", fmt.Sprintf("vllm=%s,events=%s,replay=%s", simulated, e.events, e.replay))
	return p, urlIn(t, first)
}

func urlIn(t *testing.T, line string) string {
	t.Helper()
	var ready struct{ URL string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil || ready.URL == "" {
		t.Fatalf("%s: %v", line, err)
	}
	return ready.URL
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// await fails the test unless the router's index and its pools become what the engine has published.
func (e *engine) await(what, url string, pooled int) {
	e.t.Helper()
	want := map[string]bool{}
	for seq := range e.held {
		want[fmt.Sprintf("%016x", uint64(seq))] = true
	}
	var got map[string]bool
	var pools string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) { // the router gives no sign
		dump, err := get(e.t.Context(), url+"/v1/router/index/dump")
		if err != nil {
			continue
		}
		got = map[string]bool{}
		for line := range strings.Lines(dump) {
			var row struct{ Tier, Seq string }
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				e.t.Fatalf("%s: %v", line, err)
			}
			got[row.Tier+" "+row.Seq] = true
		}
		metrics, err := get(e.t.Context(), url+"/metrics")
		if err != nil {
			continue
		}
		pools = poolBlocks(metrics)
		// Blocks without a place among prefixes are parked: no request finds them.
		if strings.Contains(pools, fmt.Sprintf("{state=\"cxl_pooled\"} %d\n", pooled)) && sameDevice(got, want) {
			e.t.Logf("%s: %d blocks, %d in pools", what, len(want), pooled)
			return
		}
	}
	e.t.Fatalf("%s: the index has %d blocks, %d were published; want %d in pools: %s", what, len(got), len(want), pooled, pools)
}

// poolBlocks returns the lines of the metrics which count blocks in pools, by state.
func poolBlocks(metrics string) string {
	var lines strings.Builder
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "penstock_pool_blocks{") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

// sameDevice reports whether rows are these blocks, all on the device.
func sameDevice(rows, want map[string]bool) bool {
	for seq := range want {
		if !rows["device "+seq] && !rows["device 0x"+seq] {
			return false
		}
	}
	return len(rows) == len(want)
}

// TestPublisher: after a slow reader, and after restarts of either side, the router's index is what was published.
func TestPublisher(t *testing.T) {
	_, first := startProcess(t, variable(t, "PENSTOCK_BINARY"), "sim", "--json", "--dialect", "vllm", "--http-addr", "127.0.0.1:0", "--export-model", t.TempDir())
	simulated := urlIn(t, first)
	e := startPublisher(t, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
	early := e.store(8)
	up, url := startUp(t, simulated, e)
	e.await("joined late", url, 0)

	e.sayOf("pooled", early[:4], 5, 1, 2)
	e.sayOf("pooled", early[4:6], 5, 3, 4)
	e.await("two transitions", url, 6)
	e.remove(early[5:]...)
	e.await("removed, and still in the pool", url, 6)

	up.signal(syscall.SIGSTOP)
	for i := range 1500 {
		names := e.store(32)
		if i%50 > 0 {
			e.remove(names...)
		}
	}
	e.sayOf("evicted", early[:2])
	up.signal(syscall.SIGCONT)
	e.await("a slow reader", url, 4)

	up.kill()
	e.store(3)
	_, url = startUp(t, simulated, e)
	e.await("the reader restarted", url, 4)

	e.finish()
	again := startPublisher(t, e.events, e.replay)
	again.next = 1_000_000
	again.store(5)
	again.await("the engine restarted", url, 4) // what is in pools stays there

	again.kill()
	last := startPublisher(t, e.events, e.replay)
	last.next = 2_000_000
	last.store(3)
	last.await("the engine was killed", url, 4)
	last.say("cleared")
	clear(last.held)
	last.await("cleared", url, 4)
	last.finish()
}
