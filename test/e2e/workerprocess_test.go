package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"penstock/internal/config"
	"penstock/internal/node"
)

// workerProcessEnv has the settings of a test binary which is to be a worker, one a line.
const workerProcessEnv = "PENSTOCK_E2E_WORKER"

// workerProcess is a worker which can be killed, since it is a process: the test binary, started again.
type workerProcess struct {
	server
	started node.Started
	cmd     *exec.Cmd
}

// startWorkerProcess runs a worker until the test ends.
func startWorkerProcess(t *testing.T, settings ...string) *workerProcess {
	t.Helper()
	p := &workerProcess{server: server{t: t, log: &logBuffer{}, client: &http.Client{}}, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), workerProcessEnv+"="+strings.Join(settings, "\n"))
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := json.NewDecoder(out).Decode(&p.started); err != nil {
		t.Fatalf("worker: %v\n%s", err, p.log)
	}
	p.url = p.started.URL
	return p
}

// kill kills the process at once and waits for its end.
func (p *workerProcess) kill() {
	p.client.CloseIdleConnections()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// runWorkerProcess is the whole of such a process. It says on stdout that it is ready.
func runWorkerProcess(settings []string) int {
	var env []string
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		env = append(env, config.EnvName(key)+"="+value)
	}
	cfg, err := config.Load("", env, config.NoFlags(config.Worker))
	if err == nil {
		err = node.RunWorker(context.Background(), cfg, os.Stderr, func(s node.Started) { _ = json.NewEncoder(os.Stdout).Encode(s) })
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// roleProcessEnv makes a test binary a process of a role, whose command line is the one of penstock. It names no setting.
const roleProcessEnv = "E2E_ROLE_PROCESS"

// runRoleProcess is the whole of such a process. It says on stdout that it is ready, and SIGTERM stops it.
func runRoleProcess(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	command := config.Command(args[0])
	fs := pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	flags := config.AddFlags(fs, command)
	fs.Bool("json", false, "")
	err := fs.Parse(args[1:])
	var cfg *config.Loaded
	if err == nil {
		cfg, err = config.Load("", os.Environ(), flags)
	}
	if err == nil {
		err = roleOf(command)(ctx, cfg, os.Stderr, func(s node.Started) { _ = json.NewEncoder(os.Stdout).Encode(s) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
