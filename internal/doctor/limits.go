package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/node/planes"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/plane/natsd"
)

// hostProbe reads this machine's limits; tests replace its functions.
type hostProbe struct {
	// files returns how many files this process may have open.
	files func() (n uint64, known bool)
	// open returns how many files this process has open.
	open func() (n uint64, known bool)
	// free returns how many bytes may be written to the file system of a directory.
	free func(dir string) (n uint64, known bool)
}

// newHostProbe reads the limits of the machine on which this process runs.
func newHostProbe() hostProbe { return hostProbe{files: fileLimit, open: openFiles, free: freeBytes} }

// checkFiles compares the limit on open files with what a process with these settings may need; cfg is nil if
// the settings are invalid. It returns no finding where the limit is unknown.
func (h hostProbe) checkFiles(cfg *config.Loaded) (f findings) {
	const check = "files"
	limit, known := h.files()
	if !known {
		return nil
	}
	need := uint64(fewFiles)
	if cfg != nil && (cfg.Command == config.Up || cfg.Command == config.Frontend) {
		need = max(need, uint64(cfg.HTTP.MaxInflight)+1024) // a connection for each, and others
	}
	if limit < need {
		f.reportWarning(check, fmt.Sprintf("raise it before the start: ulimit -n %d, or LimitNOFILE=%d in the systemd unit", 4*need, 4*need), "a process may have %d files open, and %d may be needed", limit, need)
	} else {
		f.reportOK(check, "a process may have %d files open", limit)
	}
	return f
}

// checkOpenFiles compares this process's open files with the limit. It returns no finding where either is
// unknown.
func (h hostProbe) checkOpenFiles() (f findings) {
	const check = "open files"
	limit, known := h.files()
	open, counted := h.open()
	if !known || !counted {
		return nil
	}
	if float64(open) > nearlyFull*float64(limit) {
		f.reportWarning(check, fmt.Sprintf("raise it and start the process again: ulimit -n %d, or LimitNOFILE=%d in the systemd unit", 4*limit, 4*limit), "%d files are open, and %d may be: at the limit, new connections are refused", open, limit)
	} else {
		f.reportOK(check, "%d files are open, and %d may be", open, limit)
	}
	return f
}

// checkRoom compares the free space on the file system of dir with what JetStream, or a worker's state, may
// need there. It returns no finding where the free space is unknown.
func (h hostProbe) checkRoom(dir string) (f findings) {
	const check = "data-dir"
	const remedy = "make room there, or choose another place with --data-dir: when it is full, JetStream takes no events"
	free, known := h.free(dir)
	switch {
	case !known:
	case free < fullDisk:
		f.reportFailure(check, remedy, "%s is full: %s are free, and %s are needed", dir, formatBytes(free), formatBytes(fullDisk))
	case free < littleDisk:
		f.reportWarning(check, remedy, "%s has %s free, less than %s", dir, formatBytes(free), formatBytes(littleDisk))
	default:
		f.reportOK(check, "%s has %s free", dir, formatBytes(free))
	}
	return f
}

// dataDir is the directory to which a process with these settings writes, or its nearest existing parent; ""
// if it writes to none.
func dataDir(cfg *config.Loaded) string {
	dir := cfg.DataDir
	if dir == "" {
		if cfg.Command == config.Up || cfg.NATS.Listen != "" {
			return os.TempDir() // of the embedded NATS server
		}
		return ""
	}
	for {
		up := filepath.Dir(dir)
		if _, err := os.Stat(dir); err == nil || up == dir {
			return dir
		}
		dir = up
	}
}

// checkStore compares what the embedded server stores, and has reserved for streams, with its limit.
func checkStore(used, reserved, limit uint64) (f findings) {
	const check = "jetstream"
	if float64(max(used, reserved)) > nearlyFull*float64(limit) {
		f.reportWarning(check, "remove streams that are not used, or start a NATS server with more room and name it with --nats", "the embedded server stores %s and has promised %s of %s to streams: when it is full, events are lost", formatBytes(used), formatBytes(reserved), formatBytes(limit))
	} else {
		f.reportOK(check, "the embedded server stores %s of %s", formatBytes(used), formatBytes(limit))
	}
	return f
}

// LimitMonitor checks the limits of this process while it runs.
type LimitMonitor struct {
	host   hostProbe
	cfg    *config.Loaded
	server *natsd.Server // nil unless NATS is embedded
	conn   *nats.Conn    // nil without NATS
	log    limitLog
}

// NewLimitMonitor returns the monitor of a process with these settings and planes. It starts nothing.
func NewLimitMonitor(cfg *config.Loaded, p *planes.Set, log *slog.Logger) *LimitMonitor {
	return &LimitMonitor{host: newHostProbe(), cfg: cfg, server: p.Server, conn: p.Conn, log: limitLog{log: log, logged: map[string]loggedLimit{}}}
}

// LogAtStart logs which limits are short when the process starts, from the doctor's checks which it can run
// itself.
func (l *LimitMonitor) LogAtStart(ctx context.Context) {
	found := append(l.host.checkFiles(l.cfg), l.checkStorage()...)
	if l.conn != nil && l.server == nil {
		found.checkJetStream(ctx, l.conn, DefaultTimeout)
	}
	l.log.logFindings(found, time.Now())
}

// checkStorage returns the findings about what this process writes on this machine.
func (l *LimitMonitor) checkStorage() (found findings) {
	if dir := dataDir(l.cfg); dir != "" {
		found = l.host.checkRoom(dir)
	}
	if l.server != nil {
		if used, reserved, limit, ok := l.server.StoreUsage(); ok {
			found = append(found, checkStore(used, reserved, limit)...)
		}
	}
	return found
}

const (
	// limitsEvery is the interval between checks of a running process.
	limitsEvery = 15 * time.Second
	// limitsAgain is the interval after which a persisting shortage is logged again.
	limitsAgain = 10 * time.Minute
)

// RunChecks checks the storage of this process, and its open files, until ctx ends.
func (l *LimitMonitor) RunChecks(ctx context.Context) error {
	tick := time.NewTicker(limitsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.log.logFindings(append(l.checkStorage(), l.host.checkOpenFiles()...), time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// limitLog logs findings which are not ok: each when it appears or changes status, then at intervals, and
// once when it is resolved.
type limitLog struct {
	log    *slog.Logger
	logged map[string]loggedLimit // by check
}

// loggedLimit is a finding that has been logged.
type loggedLimit struct {
	status string
	at     time.Time
}

func (l *limitLog) logFindings(found findings, now time.Time) {
	for _, f := range found {
		last, told := l.logged[f.Check]
		switch {
		case f.Status == CheckOK && told:
			delete(l.logged, f.Check)
			l.log.Info("this process is no longer short", "check", f.Check, "detail", f.Detail)
		case f.Status == CheckOK || told && last.status == f.Status && now.Sub(last.at) < limitsAgain:
		default:
			l.logged[f.Check] = loggedLimit{f.Status, now}
			level := slog.LevelWarn
			if f.Status == CheckFail {
				level = slog.LevelError
			}
			l.log.Log(context.Background(), level, "this process is short of what it may need", "check", f.Check, "detail", f.Detail, "remedy", f.Remedy)
		}
	}
}
