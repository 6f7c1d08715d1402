package config

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"penstock/internal/engine/launch"
)

// SetExecCommand sets the command line of the engine which the worker starts (--exec).
func (fl *Flags) SetExecCommand(argv []string) { fl.execCommand = slices.Clone(argv) }

// execKind returns the kind of the engine which the worker starts; "" detects it.
func (c *Config) execKind() string {
	if c.Exec.Dialect == "auto" {
		return ""
	}
	return c.Exec.Dialect
}

// applyExecCommand makes the engine which the worker starts its engine. The value lacks the port and the endpoints, which
// [Loaded.PlanExec] adds when the engine is started.
func (l *Loaded) applyExecCommand(argv []string) error {
	if len(argv) == 0 {
		return nil
	}
	kind, err := launch.DetectKind(argv, l.execKind())
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if _, err := exec.LookPath(argv[0]); err != nil {
		return fmt.Errorf("exec: %w: install it, or give its path", err)
	}
	var errs []error
	if l.IsSet("engine") {
		errs = append(errs, errors.New("engine: --exec starts the engine, so that it is not named: leave engine out; exec-options has the options behind its URL"))
	}
	for _, key := range []string{"kv-events", "kv-replay"} {
		if l.IsSet(key) {
			errs = append(errs, fmt.Errorf("%s: --exec adds the endpoints to the engine's command: leave it out, or give the engine the flag", key))
		}
	}
	plan := launch.Plan{Kind: kind, HTTP: "127.0.0.1"}
	l.ExecCommand, l.Engine.Engines, l.origin["engine"] = argv, Engines{plan.Setting(l.Exec.Options)}, "flag --exec"
	return errors.Join(errs...)
}

// PlanExec completes the command line of the engine which the worker starts, and returns the settings with that engine. dir
// is a directory for its sockets, and drawPorts draws consecutive free ports.
func (l *Loaded) PlanExec(dir string, drawPorts func(n int) (int, error)) (*launch.Plan, *Loaded, error) {
	o := launch.Options{Kind: l.execKind(), Dir: dir, MaxRanks: maxRanks, DrawPorts: drawPorts}
	if l.IsSet("kv-cache-block-size") {
		o.BlockSize = l.Engine.BlockSize
	}
	plan, err := launch.PlanCommand(l.ExecCommand, o)
	if err != nil {
		return nil, nil, AsSettingError(fmt.Errorf("exec: %w", err))
	}
	own := *l
	own.Engine.Engines = Engines{plan.Setting(l.Exec.Options)}
	if err := errors.Join(own.Validate(), own.validateCommand(own.Command)); err != nil {
		return nil, nil, AsSettingError(fmt.Errorf("exec: %w", err))
	}
	return plan, &own, nil
}
