package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"penstock/core/plan"
)

// The connectors of a planner.
const (
	ConnectorNone    = "none"
	ConnectorProcess = "process"
	ConnectorVirtual = "virtual"
	ConnectorWebhook = "webhook"
)

// PlannerSettings are the settings of the planner.
type PlannerSettings struct {
	Enabled       bool     `key:"planner" group:"common" on:"up" bare:"true" help:"size this fleet, as penstock planner does: show how many workers its targets need, and with planner-apply start and drain processes beside the workers of up"`
	Server        string   `key:"planner-server" on:"planner" group:"common" default:"http://127.0.0.1:8000" valid:"url" help:"URL of a frontend or router whose workers are planned, as penstock workers takes it (also --server); empty is none: the connector then knows the workers"`
	CA            string   `key:"planner-ca" on:"planner" help:"file with the certificates that sign an https server's (PEM); empty is the system's (also --ca)"`
	Metrics       []string `key:"planner-metrics" on:"planner" valid:"url" help:"URL of a page of metrics in the Prometheus format, of a Penstock frontend or a vLLM, repeatable: their requests are added up; none is the page of planner-server"`
	Model         string   `key:"planner-model" help:"model whose requests and workers count; empty is all"`
	Interval      Duration `key:"planner-interval" group:"common" default:"30s" help:"time between two plans, at least 2s (for penstock planner also --interval)"`
	Sample        Duration `key:"planner-sample" default:"5s" help:"time between two looks at arrivals and queues within an interval: a burst is then answered before the interval ends; 0s is none, as is a time that is no less than planner-interval"`
	StartUp       Duration `key:"planner-startup" default:"1m" valid:"positive" help:"time from the order of a worker to its first request: loads are forecast that far"`
	StartTimeout  Duration `key:"planner-start-timeout" default:"10m" valid:"positive" help:"time after which an ordered worker that is not ready is withdrawn"`
	DownAfter     Duration `key:"planner-down-after" default:"5m" valid:"positive" help:"time in which no more workers were needed before some leave; workers for traffic which is over leave when planner-startup and an interval have shown that"`
	Attainment    float64  `key:"planner-attainment" default:"0.99" valid:"0.01..0.9999" help:"share of requests that are to keep ttft-target and itl-target"`
	Workers       []string `key:"planner-workers" group:"common" default:"aggregated=1..64" help:"role of workers with its least and largest number, ROLE=LEAST..MOST, or ROLE=LEAST..MOST:ACCELERATORS if a worker takes several; repeatable: aggregated, or prefill and decode"`
	Budget        int      `key:"planner-budget" valid:"0..1048576" help:"accelerators that the workers of all roles take at most; 0 is no bound"`
	Connector     string   `key:"planner-connector" group:"common" default:"none" help:"what starts and drains workers: none, process (penstock worker processes on this machine), virtual (decisions for an agent, in NATS or in data-dir) or webhook (for penstock planner also --connector); up has none and process"`
	Apply         bool     `key:"planner-apply" group:"common" bare:"true" help:"have the connector act; without it plans are shown, and nothing is started or drained (for penstock planner also --apply)"`
	Webhook       string   `key:"planner-webhook" on:"planner" valid:"url" help:"URL that planner-connector webhook posts decisions to"`
	WebhookSecret string   `key:"planner-webhook-secret-file" on:"planner" help:"file with the secret that signs these decisions; empty signs none"`
}

// PlannerAliases are the short names of flags of the planner.
func PlannerAliases() map[string]string {
	return map[string]string{
		"server": "planner-server", "ca": "planner-ca", "interval": "planner-interval", "connector": "planner-connector", "apply": "planner-apply",
	}
}

// minPlannerInterval is the least interval of a planner, and minPlannerSample the least time between two samples.
const (
	minPlannerInterval = 2 * time.Second
	minPlannerSample   = time.Second
)

// PlannedRoles returns the roles of planner-workers, with their floors, ceilings and accelerators.
func (c *Config) PlannedRoles(command Command) ([]plan.RoleConfig, error) {
	var roles []plan.RoleConfig
	for _, text := range c.Planner.Workers {
		r, err := parsePlannedRole(text)
		if err != nil {
			return nil, err
		}
		if command == Up { // the workers in its process do not leave
			r.Floor = max(r.Floor, c.ownWorkers(r.Role))
		}
		roles = append(roles, r)
	}
	return roles, nil
}

func parsePlannedRole(text string) (plan.RoleConfig, error) {
	refuse := func() (plan.RoleConfig, error) {
		return plan.RoleConfig{}, fmt.Errorf("%.60q is not ROLE=LEAST..MOST or ROLE=LEAST..MOST:ACCELERATORS, such as aggregated=1..8 or prefill=0..4:2", text)
	}
	name, numbers, _ := strings.Cut(text, "=")
	numbers, accelerators, several := strings.Cut(numbers, ":")
	least, most, isRange := strings.Cut(numbers, "..")
	role, known := plan.ParseRole(name)
	floor, err1 := strconv.Atoi(least)
	ceiling, err2 := strconv.Atoi(most)
	each, err3 := 1, error(nil)
	if several {
		each, err3 = strconv.Atoi(accelerators)
	}
	if !known || role == plan.Encode || !isRange || errors.Join(err1, err2, err3) != nil || floor < 0 || ceiling < max(floor, 1) || each < 1 || max(ceiling, each) > 1<<16 {
		return refuse()
	}
	if floor == 0 {
		floor = -1 // as core/plan has it
	}
	return plan.RoleConfig{Role: role, Floor: floor, Ceiling: ceiling, Accelerators: each}, nil
}

// checkPlanner checks the settings of the planner.
func (p *problems) checkPlanner(c *Config) {
	s := &c.Planner
	if s.Connector == "kubernetes" {
		p.report("planner-connector", "kubernetes is not there yet: choose virtual and an agent in the cluster, or webhook")
	} else {
		p.requireOneOf("planner-connector", s.Connector, ConnectorNone, ConnectorProcess, ConnectorVirtual, ConnectorWebhook)
	}
	if time.Duration(s.Interval) < minPlannerInterval {
		p.report("planner-interval", fmt.Sprintf("%v is less than %v", s.Interval, minPlannerInterval))
	}
	if d := time.Duration(s.Sample); d != 0 && d < minPlannerSample {
		p.report("planner-sample", fmt.Sprintf("%v is less than %v: 0s is for no samples", s.Sample, minPlannerSample))
	}
	if _, err := c.PlannedRoles(PlannerCommand); err != nil {
		p.report("planner-workers", err.Error())
	}
}

// requireURL checks the URL of a server over HTTP. Its message does not repeat it, because it may contain a secret.
func (p *problems) requireURL(key, text string) {
	if u, err := url.Parse(text); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		p.report(key, "want a URL like http://10.0.0.5:8000, without user and password")
	}
}

// PlannerTargets returns the targets of a planner. The one in up has the ones of penstock planner where the router has none.
func (l *Loaded) PlannerTargets() (ttft, itl time.Duration) {
	ttft, itl = time.Duration(l.Router.TTFTTarget), time.Duration(l.Router.ITLTarget)
	if l.Command == Up {
		own := Defaults(PlannerCommand).Router
		ttft, itl = cmp.Or(ttft, time.Duration(own.TTFTTarget)), cmp.Or(itl, time.Duration(own.ITLTarget))
	}
	return ttft, itl
}

// IsOneProcess reports whether all workers of up are in its process: no planner starts others.
func (l *Loaded) IsOneProcess() bool {
	return l.Command == Up && !(l.Planner.Enabled && l.Planner.Apply)
}

// checkPlannerInUp checks what a planner in up needs.
func (p *problems) checkPlannerInUp(c *Config) {
	if s := &c.Planner; s.Connector != ConnectorNone && s.Connector != ConnectorProcess {
		p.report("planner-connector", fmt.Sprintf("up starts and drains processes only: for %.40q start penstock planner beside it", s.Connector))
	}
	p.checkConnector(c, "process")
	p.checkPlannedRoles(c)
	roles, err := c.PlannedRoles(Up)
	if err != nil {
		return
	}
	for _, r := range roles {
		if n := c.ownWorkers(r.Role); r.Ceiling < n {
			p.report("planner-workers", fmt.Sprintf("up itself has %d workers of role %v, which do not leave: raise the largest number, or lower workers or prefill-workers", n, r.Role))
		}
		if isSplit := r.Role != plan.Aggregated; isSplit != (c.Engine.PrefillWorkers > 0) {
			p.report("planner-workers", "up has prefill and decode workers with prefill-workers above 0, and aggregated ones without: plan the same roles")
			return
		}
	}
}

// ownWorkers returns how many workers of a role up has in its process.
func (c *Config) ownWorkers(role plan.WorkerRole) int {
	switch {
	case c.HasRemoteEngines():
		return 0
	case role == plan.Prefill:
		return c.Engine.PrefillWorkers
	}
	return c.Engine.Workers
}

// checkConnector checks whether the connector can act, of the ones which a command has.
func (p *problems) checkConnector(c *Config, has string) {
	s := &c.Planner
	if s.Apply && s.Connector == ConnectorNone {
		p.report("planner-apply", "there is no connector that could act: choose one with --planner-connector "+has)
	}
	if s.Connector == ConnectorProcess && s.Apply {
		p.refuseUnshared("embedding-cache-disk", c.Media.EmbeddingDisk, "share embedding-cache-object-store-gb in its place")
		p.refuseUnshared("embedding-events", c.Media.EmbeddingEvents, "the router has the events of all workers")
	}
	if s.Connector == ConnectorProcess && c.HasRemoteEngines() {
		p.report("planner-connector", "process starts further workers of an engine that runs already, which are no further engines: choose an engine of this program (tiny, sim), or start penstock planner with connector virtual or webhook, whose agent starts engines with their workers")
	}
}

// refuseUnshared reports a setting of one process alone, which the processes of connector process would have too.
func (p *problems) refuseUnshared(key, value, instead string) {
	if value != "" {
		p.report(key, "it is of one process alone, and connector process starts several: leave it out, also in the file and the environment; "+instead)
	}
}

// checkPlannedRoles checks which roles are planned together.
func (p *problems) checkPlannedRoles(c *Config) {
	roles, err := c.PlannedRoles(PlannerCommand)
	if err != nil {
		return // it is reported
	}
	has := func(role plan.WorkerRole) bool {
		return slices.ContainsFunc(roles, func(r plan.RoleConfig) bool { return r.Role == role })
	}
	split := has(plan.Prefill) && has(plan.Decode)
	if len(roles) == 0 || has(plan.Aggregated) && len(roles) != 1 || !has(plan.Aggregated) && !(split && len(roles) == 2) {
		p.report("planner-workers", "a fleet has aggregated workers, or prefill and decode workers, each once")
	}
}

// checkPlannerCommand checks what a planner process needs.
func (p *problems) checkPlannerCommand(c *Config) {
	s := &c.Planner
	if c.Router.TTFTTarget <= 0 || c.Router.ITLTarget <= 0 {
		p.report("ttft-target", "a planner needs ttft-target and itl-target above 0s: it finds the least number of workers that keeps them")
	}
	if s.Server == "" && len(s.Metrics) == 0 {
		p.report("planner-server", "there is nothing to read: name a server, or pages with planner-metrics")
	}
	if s.Server == "" && len(s.Metrics) > 0 && (!s.Apply || s.Connector == ConnectorWebhook) {
		p.report("planner-server", "nothing says which workers exist before the first decision, so that there is none: name a server, whose table has them, or let process or virtual act (planner-connector, planner-apply), which know them first")
	}
	p.checkConnector(c, "process, virtual or webhook")
	switch s.Connector {
	case ConnectorProcess:
		if c.NATS.URLs == "" && c.Fleet.Discovery == DiscoveryNATS {
			p.report("nats", "the workers that connector process starts need the fleet's NATS server: name it with --nats nats://HOST:PORT")
		}
	case ConnectorVirtual:
		if c.NATS.URLs == "" && c.DataDir == "" {
			p.report("planner-connector", "virtual needs a place for decisions: a NATS server (--nats), or a directory (--data-dir)")
		}
	case ConnectorWebhook:
		if s.Webhook == "" {
			p.report("planner-webhook", "connector webhook needs the URL to post decisions to")
		}
	}
	p.checkPlannedRoles(c)
}

// checkPlannedWorkers checks that the workers which a planner starts are the ones which the user wants.
func (l *Loaded) checkPlannedWorkers() error {
	if l.Command == PlannerCommand && l.Planner.Connector == ConnectorProcess && !l.IsSet("engine") {
		return errors.New("engine: say which engine the workers that connector process starts have, for example --engine tiny")
	}
	if l.Command == Up && !l.Planner.Enabled && strings.HasPrefix(l.origin["planner-apply"], "flag ") {
		return errors.New("planner-apply: there is no planner here without --planner")
	}
	return nil
}

// ownPlannerSettings are the settings which a planner has for itself, though workers have them too.
func ownPlannerSettings() []string {
	return []string{"http-addr", "tls-cert", "tls-key", "api-key-file", "metrics-access", "max-connections", "data-dir"}
}

// WorkerArgs returns the command line of a worker process with the settings of a planner: the configuration file, and the
// flags which were given and which a worker has, too. The process inherits the variables. natsURL is where it reaches the
// NATS server which this process embeds, "" if it embeds none.
func (l *Loaded) WorkerArgs(natsURL string) []string {
	args := []string{string(Worker)}
	if l.file != "" {
		args = append(args, "--config="+l.file)
	}
	for _, s := range listSettings() {
		isIdle := strings.HasPrefix(s.key, "sim-") && l.EngineKind() != EngineSim // the planner's model of time
		if isIdle || !s.appliesTo(Worker) || !strings.HasPrefix(l.origin[s.key], "flag ") || slices.Contains(ownPlannerSettings(), s.key) {
			continue
		}
		for _, value := range formatFlag(s.pointer(&l.Config)) {
			args = append(args, "--"+s.key+"="+value)
		}
	}
	if natsURL != "" { // the planes are the ones of up
		args = append(args, "--nats="+natsURL, "--discovery="+DiscoveryNATS, "--event-plane="+PlaneNATS,
			"--nats-token-file="+l.NATS.TokenFile, "--rpc-token-file="+l.RPC.TokenFile)
	}
	// What several processes of one machine cannot share.
	return append(args, "--http-addr=", "--nats-listen=", "--rpc-addr=", "--bulk-addr=", "--event-addr=", "--worker-id=0")
}

// formatFlag returns the values of the flags which give a setting its value.
func formatFlag(target any) []string {
	switch p := target.(type) {
	case *[]string:
		return *p
	case *Engines:
		return *p
	case *[]float64:
		return []string{formatNumbers(*p)}
	}
	return []string{fmt.Sprint(reflect.ValueOf(target).Elem().Interface())}
}
