package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// TestTranscripts runs the scripts of testdata/http: what goes in and what comes
// out, to the byte. Each file is one world, on virtual time, in which no request waits
// for workers.
//
//	worker id=N [batch=N cached=N die=N frames=N end-early refuse=CODE numerics=S context=N turn=TEXT]
//	    starts a worker that says the input; die and frames count frames with tokens.
//	gone id=N            takes the worker out of discovery
//	post PATH [H=V …]    sends the input; "brief" shortens what all chunks have in common
//	get PATH, METHOD PATH
//	metric SERIES        prints a metric's value
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/http", func(t *testing.T, path string) {
		inWorld(t, Config{MigrationWait: new(time.Duration(0))}, func(t *testing.T, w *world) {
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				return w.command(d)
			})
		})
	})
}

func (w *world) command(d *datadriven.TestData) string {
	switch d.Cmd {
	case "worker":
		return w.workerCommand(d)
	case "gone":
		w.registry.remove(kv.WorkerID(intArg(d, "id", 0)))
		synctest.Wait()
		return "ok\n"
	case "metric":
		var b strings.Builder
		for line := range strings.Lines(d.Input) {
			line = strings.TrimSpace(line)
			fmt.Fprintf(&b, "%s %s\n", line, w.metric(line))
		}
		return b.String()
	}
	method := strings.ToUpper(d.Cmd)
	var headers []string
	brief := false
	for _, arg := range d.CmdArgs[1:] {
		if brief = brief || arg.Key == "brief"; arg.Key == "brief" {
			continue
		}
		headers = append(headers, arg.Key, arg.Vals[0])
	}
	headers = append([]string{"x-request-id", "r"}, headers...)
	resp := w.send(w.t.Context(), method, d.CmdArgs[0].Key, strings.NewReader(d.Input), headers...)
	return printAnswer(read(resp), brief)
}

func (w *world) workerCommand(d *datadriven.TestData) string {
	s := constant(strings.TrimSuffix(d.Input, "\n"))
	s.batch, s.cached, s.dieAfter, s.frames = intArg(d, "batch", 1), intArg(d, "cached", 0), intArg(d, "die", 0), intArg(d, "frames", 0)
	s.endEarly = d.HasArg("end-early")
	if d.HasArg("refuse") {
		var code string
		d.ScanArgs(w.t, "refuse", &code)
		s.refuse = map[string]error{
			"overloaded": &fault.Error{Code: fault.Overloaded, Message: "worker is full", RetryAfter: 3 * time.Second},
			"invalid":    fault.InvalidParam("prompt", "the prompt can never fit"),
			"internal":   fault.New(fault.Internal, "the engine is broken"),
			"plain":      errors.New("secret"),
		}[code]
	}
	w.worker(kv.WorkerID(intArg(d, "id", 0)), s, func(c *engine.Card) {
		c.ContextLength = intArg(d, "context", c.ContextLength)
		for key, field := range map[string]*string{"tools": &c.ToolParser, "reasoning": &c.ReasoningParser} {
			if d.HasArg(key) {
				d.ScanArgs(w.t, key, field)
			}
		}
		c.StructuredOutput = d.HasArg("guided")
		if d.HasArg("numerics") {
			d.ScanArgs(w.t, "numerics", &c.Numerics)
		}
	})
	return "ok\n"
}

func intArg(d *datadriven.TestData, key string, n int) int {
	if arg, ok := d.Arg(key); ok {
		return must(strconv.Atoi(arg.Vals[0]))
	}
	return n
}

// callID finds the ids of calls, which are random for each request.
var callID = regexp.MustCompile(`("(?:fc_)?)call_\w{24}(")`)

// printAnswer prints a response without the headers of every response.
func printAnswer(a answerOf, brief bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", a.status, http.StatusText(a.status))
	names := make([]string, 0, len(a.header))
	for name := range a.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Date", "Content-Length", "Cache-Control", "X-Accel-Buffering":
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(a.header[name], ", "))
	}
	b.WriteByte('\n')
	for line := range strings.Lines(a.body) {
		if i := strings.Index(line, `"choices":`); brief && i > 0 {
			line = strings.Repeat("data: ", strings.Count(line[:i], "data: ")) + "{…" + line[i:]
		}
		b.WriteString(callID.ReplaceAllString(line, "${1}call_…$2"))
	}
	if a.err != nil {
		fmt.Fprintf(&b, "read: %v\n", a.err)
	}
	return b.String()
}
