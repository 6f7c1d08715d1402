package doctor

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/enginemock/enginemocktest"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/plane/natsd"
)

// TestHostChecks: short limits are found, with a remedy, and unknown limits give no finding.
func TestHostChecks(t *testing.T) {
	l, err := config.Load("", []string{"PENSTOCK_DATA_DIR=/nowhere/data", "PENSTOCK_MAX_INFLIGHT=9000"}, config.NoFlags(config.Up))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name        string
		files, free uint64
		known       bool
		want        []string // statuses of files and room
		remedy      string
	}{
		{"plenty", 1 << 20, 1 << 40, true, []string{CheckOK, CheckOK}, ""},
		{"few files", 10_000, 1 << 40, true, []string{CheckWarn, CheckOK}, "ulimit -n 40096"},
		{"little room", 1 << 20, 1<<30 - 1, true, []string{CheckOK, CheckWarn}, "make room there, or choose another place with --data-dir"},
		{"a full disk", 1 << 20, 1 << 20, true, []string{CheckOK, CheckFail}, "JetStream takes no events"},
		{"nothing known", 0, 0, false, nil, ""},
	} {
		h := hostProbe{files: func() (uint64, bool) { return tt.files, tt.known }, free: func(string) (uint64, bool) { return tt.free, tt.known }}
		found := append(h.checkFiles(l), h.checkRoom(dataDir(l))...)
		remedies := ""
		var got []string
		for _, f := range found {
			got = append(got, f.Status)
			remedies += f.Remedy
		}
		if strings.Join(got, " ") != strings.Join(tt.want, " ") || !strings.Contains(remedies, tt.remedy) {
			t.Errorf("%s: %+v; want %v and %q", tt.name, found, tt.want, tt.remedy)
		}
	}
	if got := dataDir(l); got != "/" {
		t.Errorf("the data directory is looked for at %s", got)
	}
}

// TestLimitsInOperation: a new shortage is logged with its remedy, again after a while, and once when it is
// over.
func TestLimitsInOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := config.Load("", nil, config.NoFlags(config.Up))
		if err != nil {
			t.Fatal(err)
		}
		var free atomic.Uint64
		free.Store(1 << 40)
		var out enginemocktest.LogBuffer
		all := ""
		w := &LimitMonitor{cfg: l, log: limitLog{log: slog.New(slog.NewTextHandler(&out, nil)), logged: map[string]loggedLimit{}}}
		var open atomic.Uint64
		w.host = hostProbe{
			files: func() (uint64, bool) { return 10_000, true },
			open:  func() (uint64, bool) { return open.Load(), true },
			free:  func(string) (uint64, bool) { return free.Load(), true },
		}
		go func() { _ = w.RunChecks(t.Context()) }()
		said := func(after time.Duration) string {
			time.Sleep(after) // virtual time (synctest): the checks run every 15 s
			synctest.Wait()
			s := strings.TrimPrefix(out.String(), all)
			all += s
			return s
		}
		if s := said(time.Minute); s != "" {
			t.Errorf("with room: %s", s)
		}
		free.Store(1 << 29)
		if s := said(time.Minute); strings.Count(s, "\n") != 1 || !strings.Contains(s, "level=WARN") || !strings.Contains(s, "remedy=\"make room there") {
			t.Errorf("with little room: %s", s)
		}
		free.Store(1 << 20)
		if s := said(time.Minute); strings.Count(s, "\n") != 1 || !strings.Contains(s, "level=ERROR") || !strings.Contains(s, "is full") {
			t.Errorf("without room: %s", s)
		}
		if s := said(30 * time.Minute); strings.Count(s, "\n") != 3 {
			t.Errorf("for half an hour without room: %s", s)
		}
		free.Store(1 << 40)
		if s := said(time.Minute); strings.Count(s, "\n") != 1 || !strings.Contains(s, "no longer short") {
			t.Errorf("with room again: %s", s)
		}
		open.Store(9500)
		if s := said(time.Minute); strings.Count(s, "\n") != 1 || !strings.Contains(s, "9500 files are open, and 10000 may be") || !strings.Contains(s, "ulimit -n 40000") {
			t.Errorf("with many open files: %s", s)
		}
		open.Store(100)
		if s := said(time.Minute); strings.Count(s, "\n") != 1 || !strings.Contains(s, "no longer short") {
			t.Errorf("with few open files again: %s", s)
		}
	})
}

// TestStoreWithoutRoom: an embedded server whose whole storage is reserved for streams is reported.
func TestStoreWithoutRoom(t *testing.T) {
	s, err := natsd.Start(natsd.Config{MaxStore: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := s.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	check := func() Finding {
		used, reserved, limit, ok := s.StoreUsage()
		if !ok {
			t.Fatal("the server does not tell")
		}
		return checkStore(used, reserved, limit)[0]
	}
	if f := check(); f.Status != CheckOK {
		t.Errorf("an empty store: %+v", f)
	}
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: "S", Subjects: []string{"s"}, MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if f := check(); f.Status != CheckWarn || f.Remedy == "" {
		t.Errorf("a store that is promised away: %+v", f)
	}
}
