package planner

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
)

// ProcessConfig configures a ProcessConnector.
type ProcessConfig struct {
	// Launch starts a process, LaunchProcess if nil.
	Launch LaunchFunc
	// Binary is the program, and Args are its arguments before the ones which the connector adds: --role, --data-dir and
	// --json.
	Binary string
	Args   []string
	// Dir has the directories of the workers: DIR/worker-N with the worker's log and its data. It must exist.
	Dir string
	// DrainTimeout is what running requests have to finish. A process which is there killAfter later is killed.
	DrainTimeout time.Duration
	Log          *slog.Logger
}

const (
	// killAfter is the time beyond DrainTimeout after which a process is killed.
	killAfter = 15 * time.Second
	// maxFailedStarts is how many workers of a role may end in a row before they served for steadyAfter: no further ones
	// are started then, until fewer are ordered, or one again after startAgainAfter.
	maxFailedStarts = 5
	steadyAfter     = time.Minute
	startAgainAfter = 10 * time.Minute
	// maxStartsAtOnce bounds the processes which one decision starts.
	maxStartsAtOnce = 64
	// maxGone bounds the ids of ended workers which are remembered, because tables list them for a while.
	maxGone = 1024
	// maxKeptDirs is the number of ended workers whose directories, with their logs, stay.
	maxKeptDirs = 64
	// maxReadyLine bounds the line with which a worker says that it is ready, in bytes.
	maxReadyLine = 64 << 10
)

// LaunchFunc starts a process whose output is in files of dir.
type LaunchFunc func(binary string, args []string, dir string) (LaunchedProcess, error)

// LaunchedProcess is a process which was started.
type LaunchedProcess interface {
	// Output is what it prints, until it ends.
	Output() io.Reader
	// Drain asks it to finish its requests and end; Kill ends it at once.
	Drain() error
	Kill() error
	// Wait returns when it has ended, with why. It is called once, after Output has ended.
	Wait() error
}

// ProcessConnector has workers as processes on this machine.
//
// Each process is in one of these states:
//
//	state     means                            leaves it
//	starting  started, not registered          its line on standard output: ready
//	ready     it serves                        SIGTERM: draining
//	draining  it finishes its requests         it has ended; killed after DrainTimeout and killAfter
//	ended     forgotten with the next decision
type ProcessConnector struct {
	cfg     ProcessConfig
	waiting sync.WaitGroup
	count   int // of processes which were started
	mu      struct {
		sync.Mutex
		children []*childWorker
		gone     []kv.WorkerID
		kept     []string                // directories of ended workers
		order    map[plan.WorkerRole]int // the last one
		failed   map[plan.WorkerRole]int // starts in a row which failed
		failedAt map[plan.WorkerRole]time.Time
		refused  map[plan.WorkerRole]int
		foreign  map[plan.WorkerRole]int    // workers of others which are too many
		last     map[plan.WorkerRole]string // of the last failure: where its log is, or why it could not start
	}
}

// childWorker is a process. The connector's mutex guards its state.
type childWorker struct {
	number   int
	role     plan.WorkerRole
	process  LaunchedProcess
	state    childState
	id       kv.WorkerID // from ready on
	dir      string
	readyAt  time.Time
	killTime *time.Timer
}

type childState uint8

const (
	childStarting childState = iota
	childReady
	childDraining
	childEnded
)

// NewProcessConnector returns a connector which has started nothing.
func NewProcessConnector(cfg ProcessConfig) (*ProcessConnector, error) {
	if cfg.Launch == nil {
		cfg.Launch = LaunchProcess
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Binary == "" || cfg.Dir == "" {
		return nil, errors.New("planner: connector process needs a program and a directory for the logs of workers")
	}
	c := &ProcessConnector{cfg: cfg}
	c.mu.order, c.mu.failed, c.mu.failedAt = map[plan.WorkerRole]int{}, map[plan.WorkerRole]int{}, map[plan.WorkerRole]time.Time{}
	c.mu.refused, c.mu.foreign, c.mu.last = map[plan.WorkerRole]int{}, map[plan.WorkerRole]int{}, map[plan.WorkerRole]string{}
	return c, nil
}

// ApplyDecision implements Connector.
func (c *ProcessConnector) ApplyDecision(_ context.Context, d *FleetDecision, leaving []FleetWorker) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.children = slices.DeleteFunc(c.mu.children, func(w *childWorker) bool { return w.state == childEnded })
	var errs []error
	for i := range d.Roles {
		if role, known := plan.ParseRole(d.Roles[i].Role); known {
			errs = append(errs, c.applyRoleLocked(role, d.Roles[i].Workers, leaving))
		}
	}
	return errors.Join(errs...)
}

// applyRoleLocked starts or drains workers of a role. The workers of others which exist are part of the order. A worker of
// the table may be a process whose line was not read yet: none drains because it may be of others, and none starts in its
// place because it may be own.
func (c *ProcessConnector) applyRoleLocked(role plan.WorkerRole, order int, leaving []FleetWorker) error {
	unknown := 0
	for _, w := range leaving {
		if w.Role == role && !c.isOwnLocked(w.ID) {
			unknown++
		}
	}
	own := c.listLocked(role, childStarting, childReady)
	foreign := max(unknown-c.countNamelessLocked(role), 0)
	c.mu.refused[role], c.mu.foreign[role] = 0, max(foreign-order, 0)
	surplus := len(own) - max(order-foreign, 0)
	if surplus < 0 {
		surplus = min(len(own)-max(order-unknown, 0), 0)
	}
	if order < c.mu.order[role] || slices.ContainsFunc(own, func(w *childWorker) bool { return w.isSteady() && w.readyAt.After(c.mu.failedAt[role]) }) {
		c.mu.failed[role] = 0
	}
	c.mu.order[role] = order
	if surplus >= 0 {
		for _, w := range c.chooseLeavingLocked(own, leaving)[:surplus] {
			c.drainLocked(w)
		}
		return nil
	}
	missing := -surplus
	most := maxStartsAtOnce
	if c.mu.failed[role] >= maxFailedStarts {
		if time.Since(c.mu.failedAt[role]) < startAgainAfter {
			c.mu.refused[role] = missing
			return nil
		}
		most = 1
	}
	for n := range missing {
		if n == most {
			break
		}
		if err := c.startLocked(role); err != nil {
			err = fmt.Errorf("start a worker of role %s: %w", role, err)
			c.countFailureLocked(role, err.Error())
			c.mu.refused[role] = missing - n
			return err
		}
	}
	return nil
}

// isOwnLocked reports whether a worker is or was a process of this connector.
func (c *ProcessConnector) isOwnLocked(id kv.WorkerID) bool {
	return slices.Contains(c.mu.gone, id) ||
		slices.ContainsFunc(c.mu.children, func(w *childWorker) bool { return w.id == id && w.state != childStarting })
}

func (c *ProcessConnector) listLocked(role plan.WorkerRole, states ...childState) []*childWorker {
	var out []*childWorker
	for _, w := range c.mu.children {
		if w.role == role && slices.Contains(states, w.state) {
			out = append(out, w)
		}
	}
	return out
}

// chooseLeavingLocked returns the processes in the order in which they should leave: the ones which start, the last one
// first, then as leaving has them.
func (c *ProcessConnector) chooseLeavingLocked(own []*childWorker, leaving []FleetWorker) []*childWorker {
	rank := func(w *childWorker) int {
		if w.state == childStarting {
			return -1
		}
		return slices.IndexFunc(leaving, func(l FleetWorker) bool { return l.ID == w.id }) // -1 if it has not registered yet
	}
	out := slices.Clone(own)
	slices.SortFunc(out, func(a, b *childWorker) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.number, a.number))
	})
	return out
}

// countNamelessLocked counts the processes whose worker id is not known yet.
func (c *ProcessConnector) countNamelessLocked(role plan.WorkerRole) (n int) {
	for _, w := range c.listLocked(role, childStarting, childDraining) {
		if w.id == 0 {
			n++
		}
	}
	return n
}

// countFailureLocked records a start which failed, and where to look.
func (c *ProcessConnector) countFailureLocked(role plan.WorkerRole, last string) {
	c.mu.failed[role]++
	c.mu.failedAt[role], c.mu.last[role] = time.Now(), last
}

// isSteady reports whether a worker serves, and has done so for steadyAfter.
func (w *childWorker) isSteady() bool {
	return w.state == childReady && time.Since(w.readyAt) >= steadyAfter
}

// startLocked starts a worker.
func (c *ProcessConnector) startLocked(role plan.WorkerRole) error {
	c.count++
	w := &childWorker{number: c.count, role: role, dir: filepath.Join(c.cfg.Dir, "worker-"+strconv.Itoa(c.count))}
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	args := append(slices.Clone(c.cfg.Args), "--role="+role.String(), "--data-dir="+filepath.Join(w.dir, "data"), "--json")
	var err error
	if w.process, err = c.cfg.Launch(c.cfg.Binary, args, w.dir); err != nil {
		_ = os.RemoveAll(w.dir) // nothing has run there
		return err
	}
	c.mu.children = append(c.mu.children, w)
	c.cfg.Log.Info("worker started", "worker", w.number, "role", role.String(), "log", w.dir)
	c.waiting.Go(func() { c.followChild(w) })
	return nil
}

// followChild reads what a worker prints until it ends.
func (c *ProcessConnector) followChild(w *childWorker) {
	lines := bufio.NewReaderSize(w.process.Output(), maxReadyLine)
	for {
		line, err := lines.ReadSlice('\n')
		var said struct {
			WorkerID kv.WorkerID `json:"worker_id"`
		}
		if err == nil && json.Unmarshal(line, &said) == nil && said.WorkerID != 0 {
			c.markReady(w, said.WorkerID)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	if old := c.markEnded(w, w.process.Wait()); old != "" {
		_ = os.RemoveAll(old) // what cannot be removed stays
	}
}

func (c *ProcessConnector) markReady(w *childWorker, id kv.WorkerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.id, w.readyAt = id, time.Now()
	if w.state == childStarting {
		w.state = childReady
		c.cfg.Log.Info("worker ready", "worker", w.number, "worker_id", uint64(id), "role", w.role.String())
	}
}

// markEnded records the end of a worker. It returns the directory of an earlier one which need not stay, "" if there is none.
func (c *ProcessConnector) markEnded(w *childWorker, cause error) (old string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.kept = append(c.mu.kept, w.dir); len(c.mu.kept) > maxKeptDirs {
		old, c.mu.kept = c.mu.kept[0], c.mu.kept[1:]
	}
	asked := w.state == childDraining
	if w.killTime != nil {
		w.killTime.Stop()
	}
	w.state = childEnded
	if w.id != 0 {
		c.mu.gone = append(c.mu.gone, w.id)
		c.mu.gone = c.mu.gone[max(len(c.mu.gone)-maxGone, 0):]
	}
	if asked {
		c.cfg.Log.Info("worker drained", "worker", w.number, "worker_id", uint64(w.id))
		return old
	}
	if w.id == 0 || time.Since(w.readyAt) < steadyAfter {
		c.countFailureLocked(w.role, "see the log in "+w.dir)
	} else {
		c.mu.failed[w.role] = 0
	}
	c.cfg.Log.Warn("a worker ended by itself", "worker", w.number, "role", w.role.String(), "cause", cause, "log", w.dir)
	return old
}

// drainLocked asks a worker to finish its requests and end.
func (c *ProcessConnector) drainLocked(w *childWorker) {
	w.state = childDraining
	c.cfg.Log.Info("worker drains", "worker", w.number, "worker_id", uint64(w.id), "role", w.role.String())
	if err := w.process.Drain(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.cfg.Log.Warn("a worker cannot be asked to drain: it is killed", "worker", w.number, "error", err)
		_ = w.process.Kill() // it has ended, if that fails
		return
	}
	w.killTime = time.AfterFunc(c.cfg.DrainTimeout+killAfter, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if w.state == childDraining {
			c.cfg.Log.Warn("a worker has not ended in its time: it is killed", "worker", w.number, "worker_id", uint64(w.id))
			_ = w.process.Kill() // it has ended, if that fails
		}
	})
}

// DescribeFleet implements Connector.
func (c *ProcessConnector) DescribeFleet(_ context.Context, roles []plan.WorkerRole) (fleet []plan.RoleFleet, problems []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, role := range roles {
		fleet = append(fleet, plan.RoleFleet{
			Ready:    len(c.listLocked(role, childReady)),
			Starting: len(c.listLocked(role, childStarting)),
			Draining: len(c.listLocked(role, childDraining)),
			Refused:  c.mu.refused[role],
		})
		if n := c.mu.failed[role]; n >= maxFailedStarts {
			problems = append(problems, fmt.Sprintf("connector process: %d workers of role %s in a row did not start, or ended before they had served for %v: no more are started for %v; %s", n, role, steadyAfter, startAgainAfter, c.mu.last[role]))
		}
		if n := c.mu.foreign[role]; n > 0 {
			problems = append(problems, fmt.Sprintf("connector process: %d workers of role %s are more than ordered, and this planner has not started them: stop them yourself", n, role))
		}
	}
	return fleet, problems
}

// Close drains all workers and returns when they have ended.
func (c *ProcessConnector) Close() error {
	c.mu.Lock()
	for _, w := range c.mu.children {
		if w.state == childStarting || w.state == childReady {
			c.drainLocked(w)
		}
	}
	c.mu.Unlock()
	c.waiting.Wait()
	return nil
}
