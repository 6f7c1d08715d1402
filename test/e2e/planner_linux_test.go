package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"penstock/internal/config"
)

// plannedFleet is a frontend, and a planner whose connector starts workers as processes. In up they are one process.
type plannedFleet struct {
	*process // the frontend
	planner  *exec.Cmd
	dir      string // named in the command line of every worker
}

// The fleet is small in time and large in load: a worker takes four streams, and gives each a token every 20 ms.
var plannedSettings = []string{
	"--engine=sim", "--served-model-name=planned", "--sim-prefill=20", "--sim-decode=20", "--max-num-seqs=4", "--planner-attainment=0.9",
	"--planner-interval=2s", "--planner-startup=2s", "--planner-down-after=6s", "--planner-connector=process", "--planner-apply",
}

// startPlanned starts a frontend and a planner, and waits until least workers serve.
func startPlanned(t *testing.T, workers string, least int) *plannedFleet {
	t.Helper()
	f := &plannedFleet{process: launch(t, config.Frontend, "nats-listen=127.0.0.1:0"), dir: t.TempDir()}
	f.startPlanner("planner", "--nats="+f.started.NATS, "--planner-server="+f.url, "--planner-workers=aggregated="+workers)
	f.serves("planned", least)
	return f
}

// startPlanner starts the process of the planner, and returns its URL when it is ready.
func (f *plannedFleet) startPlanner(args ...string) (url string) {
	t := f.t
	t.Helper()
	args = append(append(args, "--http-addr=127.0.0.1:0", "--data-dir="+f.dir), plannedSettings...)
	f.planner = exec.Command(os.Args[0], args...)
	f.planner.Env = append(os.Environ(), roleProcessEnv+"=1")
	f.planner.Stderr = f.log
	out, err := f.planner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.planner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.planner.Process.Kill() // it has ended, unless the test failed
		_ = f.planner.Wait()
		for _, pid := range f.workerProcesses() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	var started struct{ URL string }
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatalf("planner: %v\n%s", err, f.log)
	}
	return started.URL
}

// workerProcesses returns the processes whose command line names the directory of the planner, without the planner.
func (f *plannedFleet) workerProcesses() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(line, []byte("\x00--data-dir="+f.dir+"/")) {
			continue // it has ended, or is another
		}
		pid := 0
		if err := json.Unmarshal([]byte(filepath.Base(filepath.Dir(file))), &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// load runs n streams of so many tokens at all times, each at most rounds times, until the returned function is called,
// which waits for their end.
func (f *plannedFleet) load(n, tokens, rounds int) (stop func()) {
	var running sync.WaitGroup
	var stopped atomic.Bool
	for range n {
		running.Go(func() {
			for i := 0; i < rounds && !stopped.Load(); i++ {
				a, err := f.stream(f.t.Context(), "/v1/chat/completions", chatOf("planned", "How deep is the lake?", tokens))
				if err != nil || a.status != http.StatusOK || a.err != "" || a.output != tokens {
					f.t.Errorf("a request failed: %+v, %v", a, err)
					return
				}
			}
		})
	}
	return func() {
		stopped.Store(true)
		running.Wait()
	}
}

// readyWorkers counts the workers which take requests.
func (f *plannedFleet) readyWorkers() (n int) {
	for _, w := range f.workers() {
		if w.State == "ready" {
			n++
		}
	}
	return n
}

// TestPlannerScales: a step of the load is answered with more workers, and when it is over some leave. No request fails
// meanwhile, some of them long. SIGTERM of the planner leaves no worker.
func TestPlannerScales(t *testing.T) {
	t.Parallel()
	startPlanned(t, "1..3", 1).followLoad(3)
}

// TestUpScales: up with a planner does the same: its own worker stays, and processes come and go beside it. It serves the plan.
func TestUpScales(t *testing.T) {
	t.Parallel()
	f := &plannedFleet{process: &process{server: server{t: t, log: &logBuffer{}, client: &http.Client{}}}, dir: t.TempDir()}
	t.Cleanup(f.client.CloseIdleConnections)
	f.url = f.startPlanner("up", "--workers=1", "--planner", "--planner-workers=aggregated=0..3")
	f.serves("planned", 1)
	f.eventually("a plan", func() bool {
		resp, data := f.do(http.MethodGet, "/v1/plan", nil)
		var plan struct {
			Connector string
			Roles     []struct{ Actual, Order int }
		}
		return resp.StatusCode == http.StatusOK && json.Unmarshal(data, &plan) == nil && plan.Connector == config.ConnectorProcess &&
			len(plan.Roles) == 1 && plan.Roles[0].Actual == 1 && plan.Roles[0].Order == 1
	})
	f.followLoad(2)
}

// followLoad has a step of the load answered by three workers, of which so many are processes, and fewer when it is over.
func (f *plannedFleet) followLoad(processes int) {
	t := f.t
	stopLong := f.load(1, 150, math.MaxInt)
	stopShort := f.load(12, 50, math.MaxInt)
	f.eventually("three workers for the load", func() bool { return t.Failed() || f.readyWorkers() == 3 })
	stopShort()
	f.eventually("fewer workers after the load", func() bool { return t.Failed() || len(f.workerProcesses()) < processes })
	stopLong()
	if err := f.planner.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := f.planner.Wait(); err != nil {
		t.Errorf("planner: %v\n%s", err, f.log)
	}
	if left := f.workerProcesses(); len(left) > 0 {
		t.Errorf("the workers %v outlive the planner\n%s", left, f.log)
	}
}

// TestPlannerKilled: the workers of a planner which is killed finish their requests, and end.
func TestPlannerKilled(t *testing.T) {
	t.Parallel()
	f := startPlanned(t, "1..1", 1)
	stop := f.load(2, 400, 1)
	f.eventually("requests run", func() bool {
		w := f.workers()
		return t.Failed() || len(w) == 1 && w[0].Load.Reported != nil && w[0].Load.Reported.Running == 2
	})
	if err := f.planner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	stop()
	f.eventually("no worker is left", func() bool { return len(f.workerProcesses()) == 0 })
}
