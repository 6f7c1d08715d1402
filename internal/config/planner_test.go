package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"penstock/core/plan"
)

// loadPlanner returns the settings of a command with a planner and the given flags.
func loadPlanner(t *testing.T, command Command, path string, environ []string, args ...string) (*Loaded, error) {
	t.Helper()
	fs := pflag.NewFlagSet(string(command), pflag.ContinueOnError)
	flags := AddFlags(fs, command)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(path, environ, flags)
}

// TestPlannedRoles: planner-workers has a range for each role.
func TestPlannedRoles(t *testing.T) {
	l, err := loadPlanner(t, PlannerCommand, "", nil, "--planner-workers=prefill=0..4:2", "--planner-workers=decode=3..8")
	if err != nil {
		t.Fatal(err)
	}
	roles, err := l.PlannedRoles(l.Command)
	if err != nil || len(roles) != 2 {
		t.Fatal(roles, err)
	}
	if r := roles[0]; r.Role != plan.Prefill || r.Floor != -1 || r.Ceiling != 4 || r.Accelerators != 2 {
		t.Errorf("%+v", r)
	}
	if r := roles[1]; r.Role != plan.Decode || r.Floor != 3 || r.Ceiling != 8 || r.Accelerators != 1 {
		t.Errorf("%+v", r)
	}
}

// TestPlannerSettings: what a planner cannot do is refused with what to do.
func TestPlannerSettings(t *testing.T) {
	checkPlanners(t, PlannerCommand, []plannerCase{
		{"", ""},
		{"--planner-workers=aggregated", "is not ROLE=LEAST..MOST"},
		{"--planner-workers=aggregated=2..1", "is not ROLE=LEAST..MOST"},
		{"--planner-workers=aggregated=1..2:0", "is not ROLE=LEAST..MOST"},
		{"--planner-workers=encode=1..2", "is not ROLE=LEAST..MOST"},
		{"--planner-workers=prefill=1..2", "aggregated workers, or prefill and decode workers"},
		{"--planner-connector=kubernetes", "kubernetes is not there yet: choose virtual"},
		{"--planner-connector=magic", "is not one of none, process, virtual, webhook"},
		{"--planner-apply", "there is no connector that could act"},
		{"--planner-connector=virtual", "virtual needs a place for decisions"},
		{"--planner-connector=virtual --data-dir=/tmp", ""},
		{"--planner-connector=webhook", "needs the URL"},
		{"--planner-connector=webhook --planner-webhook=http://u:p@h/", "planner-webhook: want a URL"},
		{"--planner-connector=process --engine=sim", "need the fleet's NATS server"},
		{"--planner-connector=process --nats=nats://h:1", "say which engine"},
		{"--planner-connector=process --nats=nats://h:1 --engine=sim", ""},
		{"--planner-connector=process --nats=nats://h:1 --engine=vllm=http://h:1", "which are no further engines"},
		{"--planner-server= --planner-metrics=http://h:1/metrics", "nothing says which workers exist"},
		{"--planner-server= --planner-metrics=http://h:1/metrics --planner-apply --planner-connector=webhook --planner-webhook=http://h:2", "nothing says which workers exist"},
		{"--planner-server= --planner-metrics=http://h:1/metrics --planner-apply --planner-connector=virtual --data-dir=/tmp", ""},
		{"--planner-server=", "there is nothing to read"},
		{"--planner-metrics=file:///etc/passwd", "planner-metrics: want a URL"},
		{"--planner-metrics=", "planner-metrics: want a URL"},
		{"--planner-metrics=http://h:1 --planner-metrics=", "planner-metrics: want a URL"},
		{"--planner-interval=1s", "1s is less than 2s"},
		{"--planner-sample=500ms", "500ms is less than 1s"},
		{"--planner-sample=-5s", "is less than"},
		{"--planner-sample=0s", ""},
		{"--planner-interval=2s --planner-sample=5s", ""},
		{"--ttft-target=0s", "needs ttft-target and itl-target"},
	})
	_, err := loadPlanner(t, PlannerCommand, "", []string{"PENSTOCK_PLANNER_METRICS=http://h:1,"})
	if err == nil || !strings.Contains(err.Error(), "planner-metrics: want a URL") {
		t.Errorf("a variable with an empty URL: %v", err)
	}
	if _, err := loadPlanner(t, PlannerCommand, "", []string{"PENSTOCK_PLANNER_METRICS="}); err != nil {
		t.Errorf("a variable with no URL: %v", err)
	}
}

// TestPlannerInUp: the planner of up plans the roles which up has, and its connector starts processes only.
func TestPlannerInUp(t *testing.T) {
	checkPlanners(t, Up, []plannerCase{
		{"--planner", ""},
		{"--planner --engine=vllm=http://h:1", ""},
		{"--planner --planner-apply", "there is no connector that could act"},
		{"--planner --planner-apply --planner-connector=process", ""},
		{"--planner --planner-apply --planner-connector=webhook", "up starts and drains processes only"},
		{"--planner --planner-apply --planner-connector=process --engine=vllm=http://h:1", "which are no further engines"},
		{"--planner --workers=9 --planner-workers=aggregated=1..8", "up itself has 9 workers of role aggregated"},
		{"--planner --prefill-workers=1", "plan the same roles"},
		{"--planner --prefill-workers=1 --planner-workers=prefill=1..2 --planner-workers=decode=1..4", ""},
		{"--planner --planner-workers=prefill=1..2 --planner-workers=decode=1..4", "plan the same roles"},
		{"--planner-apply --planner-connector=process", "there is no planner here without --planner"},
		{"--planner --planner-interval=1s", "1s is less than 2s"},
		{"--planner --planner-apply --planner-connector=process --encode-workers=1 --embedding-cache-disk=/tmp/e", "embedding-cache-disk: it is of one process alone"},
		{"--planner --planner-apply --planner-connector=process --embedding-events=tcp://:5560", "embedding-events: it is of one process alone"},
		{"--planner --planner-connector=process --embedding-cache-disk=/tmp/e --embedding-events=tcp://:5560", ""},
	})
	l, err := loadPlanner(t, Up, "", nil, "--planner", "--workers=3", "--ttft-target=2s")
	if err != nil {
		t.Fatal(err)
	}
	own := Defaults(PlannerCommand).Router
	if ttft, itl := l.PlannerTargets(); ttft != 2*time.Second || itl != time.Duration(own.ITLTarget) || l.Router.ITLTarget != 0 {
		t.Errorf("targets %v and %v", ttft, itl)
	}
	if roles, err := l.PlannedRoles(Up); err != nil || roles[0].Floor != 3 {
		t.Errorf("%+v, %v: the workers of up stay", roles, err)
	}
	if roles, err := l.PlannedRoles(PlannerCommand); err != nil || roles[0].Floor != 1 { // as with the setting planner in a shared file
		t.Errorf("%+v, %v: a planner process has no workers of its own", roles, err)
	}
}

// plannerCase is a command line with what its error says, "" if it is valid.
type plannerCase struct{ args, wants string }

func checkPlanners(t *testing.T, command Command, cases []plannerCase) {
	t.Helper()
	for _, tt := range cases {
		_, err := loadPlanner(t, command, "", nil, strings.Fields(tt.args)...)
		switch {
		case tt.wants == "" && err != nil:
			t.Errorf("%s: %v", tt.args, err)
		case tt.wants != "" && (err == nil || !strings.Contains(err.Error(), tt.wants)):
			t.Errorf("%s: %v, want %q", tt.args, err, tt.wants)
		}
	}
}

// TestPlannerURLsShown: config show has the URLs of a planner without what could be a secret, and keeps them for the planner.
func TestPlannerURLsShown(t *testing.T) {
	l, err := loadPlanner(t, PlannerCommand, "", nil, "--planner-webhook=http://h:1/scale?token=hidden#hidden", "--planner-metrics=http://a:1/metrics?k=hidden",
		"--planner-metrics=http://b:1/metrics", "--planner-server=http://c:1/?hidden", "--nats=nats://hidden@n:1,nats://m:1")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, s := range l.Settings() {
		shown[s.Key] = fmt.Sprint(s.Value)
	}
	for key, want := range map[string]string{
		"planner-webhook": "http://h:1/scale?xxxxx#xxxxx", "planner-metrics": "[http://a:1/metrics?xxxxx http://b:1/metrics]",
		"planner-server": "http://c:1/?xxxxx", "nats": "nats://xxxxx@n:1,nats://m:1",
	} {
		if shown[key] != want {
			t.Errorf("%s is shown as %s, want %s", key, shown[key], want)
		}
	}
	if l.Planner.Webhook != "http://h:1/scale?token=hidden#hidden" || l.Planner.Metrics[0] != "http://a:1/metrics?k=hidden" {
		t.Errorf("the planner has %q and %q", l.Planner.Webhook, l.Planner.Metrics)
	}
}

// TestWorkerArgs: a worker gets the flags which it has, too, but the planner's own; its command line is valid.
func TestWorkerArgs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "penstock.yaml")
	if err := os.WriteFile(file, []byte("nats: nats://h:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := loadPlanner(t, PlannerCommand, file, []string{"PENSTOCK_MAX_NUM_SEQS=7"}, "--planner-connector=process", "--engine=sim", "--sim-speedup=2", "--sim-prefill=1,2.5",
		"--served-model-name=a", "--served-model-name=b c", "--http-addr=127.0.0.1:9", "--data-dir=/tmp", "--drain-timeout=90s", "--planner-interval=5s", "--ttft-target=1s")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"worker", "--config=" + file, "--engine=sim", "--served-model-name=a", "--served-model-name=b c", "--sim-prefill=1,2.5", "--sim-speedup=2",
		"--drain-timeout=1m30s", "--http-addr=", "--nats-listen=", "--rpc-addr=", "--bulk-addr=", "--event-addr=", "--worker-id=0",
	}
	args := l.WorkerArgs("")
	if !slices.Equal(args, want) {
		t.Errorf("arguments %q\nwant      %q", args, want)
	}
	if args := l.WorkerArgs("nats://127.0.0.1:7"); !slices.Contains(args, "--nats=nats://127.0.0.1:7") || !slices.Contains(args, "--discovery=nats") {
		t.Errorf("arguments in up %q", args)
	}
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	flags := AddFlags(fs, Worker)
	fs.String("config", "", "")
	if err := fs.Parse(args[1:]); err != nil {
		t.Fatal(err)
	}
	w, err := Load(file, []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:9", "PENSTOCK_WORKER_ID=5"}, flags)
	if err != nil {
		t.Fatal(err)
	}
	if w.HTTP.Addr != "" || w.Fleet.WorkerID != 0 || w.Simulation.Speedup != 2 {
		t.Errorf("the worker has %q, id %d, speedup %g", w.HTTP.Addr, w.Fleet.WorkerID, w.Simulation.Speedup)
	}
}
