package node

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/internal/node/engines"
	"penstock/internal/node/planes"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// metric has what both the document and the registry say about a metric, in the form of
// the document.
type metric struct{ labels, meaning string }

// TestMetricsAreDocumented checks that docs/metrics.md lists exactly the metrics which a
// node registers, each with its type, its labels and its help, in lines of at most 120
// characters. An item is "* **`NAME`** (TYPE; LABELS): HELP", wrapped.
func TestMetricsAreDocumented(t *testing.T) {
	registered, types := documentedMetrics(t)
	documented := map[string]metric{}
	data, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(data), "\n") {
		if n := utf8.RuneCountInString(line); n > 120 {
			t.Errorf("docs/metrics.md:%d has %d characters, at most 120 are allowed", i+1, n)
		}
	}
	unwrapped := strings.ReplaceAll(string(data), "\n  ", " ")
	item := regexp.MustCompile("(?m)^\\* \\*\\*`(penstock_\\w+)`\\*\\* \\((\\w+)(?:; ([^)]*))?\\): (.*)$")
	for _, m := range item.FindAllStringSubmatch(unwrapped, -1) {
		name, typ := m[1], m[2]
		if _, twice := documented[name]; twice {
			t.Errorf("%s is listed twice", name)
		}
		documented[name] = metric{labels: m[3], meaning: m[4]}
		if want, known := types[name]; known && typ != want {
			t.Errorf("%s is listed as a %s and is a %s", name, typ, want)
		}
		if (typ == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is no name for a %s", name, typ)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if have, want := documented[name], registered[name]; have != want {
			t.Errorf("docs/metrics.md says of %s %q, want the item\n\n%s\n", name, have, formatItem(name, types[name], want))
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/metrics.md lists %s, which does not exist", name)
	}
}

// formatItem returns the item of a metric as docs/metrics.md has it. The type is "" if the metric has no value yet: its
// name then tells a counter, and its code the others.
func formatItem(name, typ string, m metric) string {
	switch {
	case typ != "":
	case strings.HasSuffix(name, "_total"):
		typ = "counter"
	default:
		typ = "gauge or histogram"
	}
	if m.labels != "" {
		typ += "; " + m.labels
	}
	var lines []string
	line := "*"
	for word := range strings.FieldsSeq(fmt.Sprintf("**`%s`** (%s): %s", name, typ, m.meaning)) {
		if utf8.RuneCountInString(line+" "+word) > 120 {
			lines, line = append(lines, line), " "
		}
		line += " " + word
	}
	return strings.Join(append(lines, line), "\n")
}

// documentedMetrics returns the processes' own metrics, and the types of the metrics with a value before any
// traffic. Up has the metrics of a frontend and of a worker.
func documentedMetrics(t *testing.T) (metrics map[string]metric, types map[string]string) {
	t.Helper()
	metrics, types = map[string]metric{}, map[string]string{}
	for command, as := range map[config.Command]func(*process) role{
		config.Up:             func(p *process) role { return newUpRole(p, nil) },
		config.Router:         func(p *process) role { return &routerRole{process: p} },
		config.PlannerCommand: func(p *process) role { return &plannerRole{process: p} },
	} {
		cfg, err := config.Load("", []string{"PENSTOCK_NATS_LISTEN=127.0.0.1:0", "PENSTOCK_POOL=0=/dev/null:1MiB"}, config.NoFlags(command))
		if err != nil {
			t.Fatal(err)
		}
		log, err := newLogger(cfg, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		// Nothing runs, so the planes are not used.
		p := &process{
			cfg: cfg, log: log, metrics: obs.NewMetrics(), model: &engines.LocalModel{},
			planes: &planes.Set{Events: bus.NewMemBus(), Registry: disco.NewMemRegistry(), RPC: rpc.NewMemPlane()},
		}
		if err := as(p).buildServices(); err != nil {
			t.Fatal(err)
		}
		describeMetrics(t, p.metrics.Gatherer().(*prometheus.Registry), metrics, types)
	}
	return metrics, types
}

// describeMetrics adds the registered metrics.
func describeMetrics(t *testing.T, all *prometheus.Registry, metrics map[string]metric, types map[string]string) {
	t.Helper()
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		all.Describe(described)
	}()
	desc := regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: "(.*)", unit: ".*", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)
	for d := range described {
		m := desc.FindStringSubmatch(d.String())
		switch {
		case m == nil:
			t.Errorf("cannot read %v", d)
			continue
		case !strings.HasPrefix(m[1], obs.Namespace+"_"):
			continue // of the Go runtime or the process
		}
		labels := ""
		if m[3] != "" {
			labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
		}
		metrics[m[1]] = metric{labels: labels, meaning: m[2]}
	}
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
}
