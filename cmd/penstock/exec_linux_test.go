package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/node"
)

// fleetProcess is a process of a fleet which finds its members in a directory.
type fleetProcess struct {
	t       *testing.T
	cmd     *exec.Cmd
	started node.Started
	log     struct {
		sync.Mutex
		text strings.Builder
		more chan struct{} // gets a value when there is more text
	}
}

// startFleetProcess starts a penstock process, and waits until it is ready.
func startFleetProcess(t *testing.T, args ...string) *fleetProcess {
	t.Helper()
	p := &fleetProcess{t: t, cmd: exec.Command("penstock", args...)}
	p.log.more = make(chan struct{}, 1)
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	late := time.AfterFunc(execTimeout, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	if err := json.NewDecoder(out).Decode(&p.started); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, p.text())
	}
	return p
}

// Write implements io.Writer for the log.
func (p *fleetProcess) Write(b []byte) (int, error) {
	p.log.Lock()
	p.log.text.Write(b)
	p.log.Unlock()
	select {
	case p.log.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (p *fleetProcess) text() string {
	p.log.Lock()
	defer p.log.Unlock()
	return p.log.text.String()
}

// execTimeout bounds each wait, also on a starved machine.
const execTimeout = 2 * time.Minute

// awaitLog waits until the log has n parts which match, and returns the first group of the last one.
func (p *fleetProcess) awaitLog(pattern string, n int) string {
	p.t.Helper()
	re, late := regexp.MustCompile(pattern), time.After(execTimeout)
	for {
		if all := re.FindAllStringSubmatch(p.text(), -1); len(all) >= n {
			return all[n-1][len(all[n-1])-1]
		}
		select {
		case <-p.log.more:
		case <-late:
			p.t.Fatalf("%q is not in the log %d times:\n%s", pattern, n, p.text())
		}
	}
}

// awaitExit waits for the end of the process and returns its exit code.
func (p *fleetProcess) awaitExit() int {
	p.t.Helper()
	late := time.AfterFunc(execTimeout, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// enginePID returns the process id of the nth engine which the worker started.
func (p *fleetProcess) enginePID(n int) int {
	pid, err := strconv.Atoi(p.awaitLog(`msg="the engine is started" .*pid=(\d+)`, n))
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// awaitRefusal waits until nothing listens at the engine's address.
func (p *fleetProcess) awaitRefusal() {
	p.t.Helper()
	at := p.awaitLog(`msg="the worker starts an engine" .*http=(\S+)`, 1)
	p.pollUntil("refusal at "+at, func() bool {
		conn, err := net.DialTimeout("tcp", at, execTimeout)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// awaitReady waits until the process says that it is ready.
func (p *fleetProcess) awaitReady() {
	p.t.Helper()
	p.pollUntil("readiness", func() bool {
		resp, err := execClient.Get(p.started.URL + "/ready")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
}

// execClient makes bounded requests.
var execClient = &http.Client{Timeout: execTimeout}

// pollUntil waits until ok reports true, within execTimeout.
func (p *fleetProcess) pollUntil(what string, ok func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), execTimeout)
	defer cancel()
	if err := backoff.Poll(ctx, 10*time.Millisecond, ok); err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.text())
	}
}

// writeSimEngine writes a shell script in the place of penstock sim, and returns its path. A %s in it is the real program.
func writeSimEngine(t *testing.T, dir, script string) string {
	t.Helper()
	real, err := exec.LookPath("penstock")
	if err != nil {
		t.Fatal(err)
	}
	engine := filepath.Join(dir, "penstock")
	if err := os.WriteFile(engine, []byte("#!/bin/sh\n"+fmt.Sprintf(script, quoteShellWord(real))), 0o700); err != nil {
		t.Fatal(err)
	}
	return engine
}

// startExecWorker starts a worker with an engine of its own.
func startExecWorker(t *testing.T, dir string, settings []string, engine ...string) *fleetProcess {
	t.Helper()
	args := append([]string{"worker", "--json", "--discovery", "file", "--discovery-dir", dir, "--http-addr", "127.0.0.1:0"}, settings...)
	return startFleetProcess(t, append(append(args, "--exec", "--"), engine...)...)
}

// TestExecStops: a stopped worker finishes its requests, then stops the engine, and ends with its code.
func TestExecStops(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "engine.log")
	worker := startExecWorker(t, filepath.Join(dir, "fleet"), []string{"--exec-log", log}, "penstock", "sim", "--dialect", "vllm", "--export-model", filepath.Join(dir, "model"))
	if e := worker.started.Engines; len(e) != 1 || e[0].Kind != "vllm" || e[0].Events != "yes" {
		t.Fatalf("engines %+v", e)
	}
	front := startFleetProcess(t, "frontend", "--json", "--discovery", "file", "--discovery-dir", filepath.Join(dir, "fleet"), "--http-addr", "127.0.0.1:0", "--drain-grace", "0s")
	front.awaitReady()
	const tokens = 300 // some seconds of the simulated engine
	resp, err := execClient.Post(front.started.URL+"/v1/completions", "application/json", strings.NewReader(
		fmt.Sprintf(`{"model":"penstock-sim","prompt":"Where does the water go?","max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, tokens)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	if line, err := stream.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data:") {
		t.Fatalf("%s: %v", line, err)
	}
	if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stream)
	if want := fmt.Sprintf(`"completion_tokens":%d,`, tokens); err != nil || !strings.Contains(string(rest), want) || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream does not end with %s: %v\n%s", want, err, rest)
	}
	if code := worker.awaitExit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, worker.text())
	}
	worker.awaitRefusal()
	said, err := os.ReadFile(log)
	if info, err := os.Stat(log); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others can read the engine's log: %v, %v", info.Mode(), err)
	}
	if err != nil || !strings.Contains(string(said), "msg=serving dialect=vllm") || strings.Contains(worker.text(), "msg=serving dialect=vllm") {
		t.Errorf("the engine's log is %q, %v; the worker's is\n%s", said, err, worker.text())
	}
}

// TestExecRestarts: an engine which ends is started again at the same address; the worker lives. At the limit the worker
// ends with the engine's code. However long the second engine served before its end, which may begin a new row, the later
// ones never serve.
func TestExecRestarts(t *testing.T) {
	dir := t.TempDir()
	engine := writeSimEngine(t, dir, `cd "${0%%/*}"
echo start >>starts
[ "$(wc -l <starts)" -le 2 ] || exit 7
exec %s "$@"
`)
	worker := startExecWorker(t, filepath.Join(dir, "fleet"), []string{"--exec-restarts", "2"}, engine, "sim", "--dialect", "sglang")
	if err := syscall.Kill(worker.enginePID(1), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	worker.awaitLog(`msg="the engine ended and is started again" .*exit_code=137 restart=1 limit=2`, 1)
	second := worker.enginePID(2)
	worker.awaitLog(`engine \| .*msg=serving dialect=sglang`, 2)
	worker.awaitReady()
	if err := syscall.Kill(second, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := worker.awaitExit(); code != 7 || !strings.Contains(worker.text(), "after 2 restarts in a row") {
		t.Errorf("exit code %d\n%s", code, worker.text())
	}
}

// TestExecEndsWithWorker: a worker which is killed leaves no engine.
func TestExecEndsWithWorker(t *testing.T) {
	worker := startExecWorker(t, t.TempDir(), nil, "penstock", "sim", "--dialect", "llamacpp")
	if err := worker.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	worker.awaitRefusal()
}

// TestExecCodes: the worker ends with the code which the engine had when it was stopped. An engine which does not end is
// killed, with all of its processes.
func TestExecCodes(t *testing.T) {
	for _, c := range []struct {
		name, trap string
		settings   []string
		signal     syscall.Signal // to the worker
		code       int
	}{
		{"its own code", "trap 'exit 9' TERM", nil, syscall.SIGTERM, 9},
		{"it ends by the signal", "", nil, syscall.SIGTERM, 0},
		{"the terminal is closed", "trap 'exit 9' TERM", nil, syscall.SIGHUP, 9},
		{"it ignores SIGTERM", "trap '' TERM", []string{"--exec-stop-timeout", "100ms"}, syscall.SIGTERM, 137},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A signal which is ignored here, as under nohup, would be ignored by the worker too.
			handled := make(chan os.Signal, 1)
			signal.Notify(handled, c.signal)
			defer signal.Stop(handled)
			dir := t.TempDir()
			// The shell has the engine as its child, and waits for it again after a signal which it ignores.
			engine := writeSimEngine(t, dir, c.trap+"\n%s \"$@\" &\nwhile :; do wait; done\n")
			worker := startExecWorker(t, filepath.Join(dir, "fleet"), c.settings, engine, "sim")
			if err := worker.cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			if code := worker.awaitExit(); code != c.code {
				t.Errorf("exit code %d, want %d\n%s", code, c.code, worker.text())
			}
			worker.awaitRefusal()
		})
	}
}

// TestExecForwards: a signal which means nothing to the worker goes to the engine.
func TestExecForwards(t *testing.T) {
	dir := t.TempDir()
	engine := filepath.Join(dir, "llama-server")
	if err := os.WriteFile(engine, []byte("#!/bin/sh\ntrap 'echo got USR1' USR1\nsleep 3600 &\necho up\nwhile :; do wait; done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("penstock", "worker", "--discovery", "file", "--discovery-dir", filepath.Join(dir, "fleet"), "--exec", "--", engine)
	p := &fleetProcess{t: t, cmd: cmd}
	p.log.more = make(chan struct{}, 1)
	cmd.Stderr = p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p.awaitLog(`engine \| up`, 1)
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.awaitLog(`engine \| got USR1`, 1)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.awaitExit(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.text())
	}
}
