package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"penstock/internal/config"
	"penstock/internal/engine/launch"
	"penstock/internal/node/engines"
	"penstock/internal/obs"
)

// EngineExitError is the end of an engine which the worker started.
type EngineExitError = launch.ExitError

// engineProcess is the engine which a worker starts.
type engineProcess struct {
	plan    *launch.Plan
	process *launch.EngineProcess
	dir     string   // for sockets
	logFile *os.File // of exec-log; nil without
}

// prepareEngine plans the engine which the worker starts, and returns the settings with it; nil if it starts none. The
// caller closes it.
func prepareEngine(cfg *config.Loaded) (*engineProcess, *config.Loaded, error) {
	if len(cfg.ExecCommand) == 0 {
		return nil, cfg, nil
	}
	dir, err := os.MkdirTemp("", "penstock-")
	if err != nil {
		return nil, nil, fmt.Errorf("exec: directory for sockets: %w", err)
	}
	e := &engineProcess{dir: dir}
	if e.plan, cfg, err = cfg.PlanExec(dir, drawPorts); err == nil && cfg.Exec.Log != "" {
		if e.logFile, err = os.OpenFile(cfg.Exec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			err = config.AsSettingError(fmt.Errorf("exec-log: %w", err))
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, e.close())
	}
	return e, cfg, nil
}

// close removes what the engine needed; the process has ended.
func (e *engineProcess) close() error {
	if e == nil {
		return nil
	}
	err := os.RemoveAll(e.dir)
	if e.logFile != nil {
		err = errors.Join(err, e.logFile.Close())
	}
	return err
}

// newProcess makes the process. isServing reports whether the engine serves.
func (e *engineProcess) newProcess(cfg *config.Loaded, stderr io.Writer, isServing func() bool, log *slog.Logger) {
	log = obs.Component(log, "engine")
	e.process = launch.NewProcess(launch.ProcessConfig{
		Args: e.plan.Args, Dir: e.dir, Restarts: cfg.Exec.Restarts, Hint: e.plan.Hint,
		ServeTimeout: time.Duration(cfg.Engine.Wait), StopTimeout: time.Duration(cfg.Exec.StopTimeout),
		IsServing: isServing, WriteLine: e.lineWriter(cfg, stderr, log), Log: log,
	})
	log.Info("the worker starts an engine", "kind", e.plan.Kind, "program", filepath.Base(e.plan.Args[0]), "http", e.plan.HTTP, "added_flags", strings.Join(e.plan.Added, " "))
	if !launch.EndsWithParent {
		log.Warn("this system does not end the engine if the worker is killed: stop it then")
	}
}

// outputPrefix marks lines of the engine among lines of the worker.
const outputPrefix = "engine | "

// lineWriter returns what keeps the lines of the engine: in exec-log, else on standard error in the form of the log.
func (e *engineProcess) lineWriter(cfg *config.Loaded, stderr io.Writer, log *slog.Logger) func(line []byte) {
	switch {
	case e.logFile != nil:
		return func(line []byte) { _, _ = e.logFile.Write(append(line[:len(line):len(line)], '\n')) } // a full disk does not stop serving
	case cfg.Log.Format == string(obs.JSONFormat):
		return func(line []byte) { log.Info("output of the engine", "line", string(line)) }
	}
	return func(line []byte) { _, _ = stderr.Write([]byte(outputPrefix + string(line) + "\n")) }
}

// run runs the engine, until ctx ends.
func (e *engineProcess) run(ctx context.Context) error { return e.process.Run(ctx) }

// stopError returns the exit code of an engine which was stopped as an error; nil if it is 0, or if there is none.
func (e *engineProcess) stopError() error {
	if e == nil || e.process == nil {
		return nil
	}
	return e.process.StopError()
}

// isEngineServing reports whether the first engine serves.
func isEngineServing(s *engines.Supervisor) bool {
	return s.Statuses()[0].State == engines.StateServing
}

const (
	// Ports are drawn below the ports which systems give to connections: an engine may bind one only minutes later.
	firstPort, lastPort = 15000, 29999
	// maxDraws bounds the attempts to find free ports.
	maxDraws = 1000
)

// drawPorts returns the first of n consecutive ports which are free on this machine.
func drawPorts(n int) (int, error) {
	for range maxDraws {
		first, ok := pickPort(n)
		if !ok {
			break
		}
		if arePortsFree(first, n) {
			return first, nil
		}
	}
	return 0, fmt.Errorf("%d consecutive free ports were not found between %d and %d: give the engine its ports", n, firstPort, lastPort)
}

// pickPort picks the first of n consecutive ports at random; false if there are fewer.
func pickPort(n int) (first int, ok bool) {
	choices := lastPort - firstPort + 2 - n
	if choices < 1 {
		return 0, false
	}
	return firstPort + rand.N(choices), true
}

func arePortsFree(first, n int) bool {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return false
		}
		defer l.Close()
	}
	return true
}
