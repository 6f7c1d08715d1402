package encode

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts: the specification of the machine by example. Time starts at 0 with "new".
// Commands:
//
//	new [jobs=N] [batch=N] [cost=N] [wait=D] [attempts=N] [timeout=D] [cpu=N] [staging=N] [objects=N] [cache]
//	encoder id=N [jobs=N] [runs=N]
//	lose id=N
//	submit [branches=N] [multi-turn] [prefix-caching] [speculative] [places=KIND@POSITION,…]
//	    lines: KIND@POSITION BYTES [tokens=N] [shape=N] [key=N] [held=N] [cost=N]; a kind is a letter. An object has
//	    as many tokens as bytes unless it says otherwise. The placeholders are where the objects are.
//	replace id=N takes=(I,…) [as submit]
//	finish run=N [tokens=N] [bytes=N] [cached] [fail=(I,KIND,…)]
//	split run=N items=(I,…)                         prints the part
//	fail run=N kind=KIND                            KIND as FailureKind prints it, with - for a space
//	stage | copied | merged | prefilled | end | cancel | release id=N
//	wait for=D                                      then Tick
//	drop-kept
//	deadline | states id=N | stats | encoders
//
// Each prints the actions, and after an event the memory and the permits which are used. Check runs after each.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := s.run(t, d)
			if err != nil {
				out += err.Error() + "\n"
			}
			if s.m == nil {
				return out
			}
			if err := s.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m       *Machine
	now     kv.Mono
	objects map[RequestID][]SubmittedObject
	runs    map[RunID][]Item
}

func (s *script) run(t *testing.T, d *datadriven.TestData) (string, error) {
	switch d.Cmd {
	case "new":
		return "", s.create(t, d)
	case "deadline":
		if at, ok := s.m.Deadline(); ok {
			return fmt.Sprintf("in %v\n", at.Sub(s.now)), nil
		}
		return "none\n", nil
	case "split":
		return s.split(t, d)
	case "states":
		return s.states(number[RequestID](t, d, "id")), nil
	case "stats":
		return s.stats(), nil
	case "encoders":
		var out strings.Builder
		for _, e := range s.m.AppendEncoders(nil) {
			fmt.Fprintf(&out, "encoder %d: %d of %d objects, %.2f\n", e.Encoder, e.InFlight, e.Capacity, e.Utilization())
		}
		return out.String(), nil
	}
	all, err := s.handle(t, d)
	var out strings.Builder
	for _, a := range all {
		fmt.Fprintln(&out, a)
		if a.Kind == RunBatch {
			s.runs[a.Run] = a.Items
		}
	}
	if err != nil {
		return out.String(), err
	}
	st := s.m.Stats()
	fmt.Fprintf(&out, "-- cpu %d", st.CPUBytes)
	if st.KeptBytes > 0 {
		fmt.Fprintf(&out, " (%d kept)", st.KeptBytes)
	}
	fmt.Fprintf(&out, ", staging %d, permits %d\n", st.StagingBytes, st.RunningObjects)
	return out.String(), nil
}

func (s *script) create(t *testing.T, d *datadriven.TestData) (err error) {
	cfg := testConfig()
	for name, at := range map[string]*int{"jobs": &cfg.MaxJobs, "batch": &cfg.MaxBatch, "cost": &cfg.MaxBatchCost, "attempts": &cfg.MaxAttempts, "objects": &cfg.MaxObjects} {
		d.MaybeScanArgs(t, name, at)
	}
	d.MaybeScanArgs(t, "cpu", &cfg.CPUBudget)
	d.MaybeScanArgs(t, "staging", &cfg.StagingBudget)
	cfg.BatchWait, cfg.Timeout = duration(t, d, "wait", cfg.BatchWait), duration(t, d, "timeout", cfg.Timeout)
	if d.HasArg("cache") {
		cfg.Cache = WithCache
	}
	*s = script{objects: map[RequestID][]SubmittedObject{}, runs: map[RunID][]Item{}}
	s.m, err = New(cfg)
	return err
}

// testConfig has the settings' defaults, and budgets of 1000 bytes.
func testConfig() Config {
	return Config{
		MaxJobs: 32, MaxBatch: 8, BatchWait: 5 * time.Millisecond, MaxAttempts: 3, Timeout: time.Minute,
		CPUBudget: 1000, StagingBudget: 1000, MaxObjects: 1000,
	}
}

func (s *script) handle(t *testing.T, d *datadriven.TestData) ([]Action, error) {
	id := number[RequestID](t, d, "id")
	switch d.Cmd {
	case "encoder":
		return s.m.AddEncoder(s.now, EncoderID(id), EncoderLimits{Jobs: number[int](t, d, "jobs"), Runs: number[int](t, d, "runs")}, nil)
	case "lose":
		return s.m.LoseEncoder(s.now, EncoderID(id), nil)
	case "submit":
		return s.submit(t, d)
	case "replace":
		return s.replace(t, d)
	case "finish":
		run := number[RunID](t, d, "run")
		return s.m.FinishRun(s.now, run, s.results(t, d, s.runs[run]), nil)
	case "fail":
		return s.m.FailRun(s.now, number[RunID](t, d, "run"), failureOf(t, d, text(t, d, "kind")), "as told", nil)
	case "stage":
		return s.m.StageRequest(s.now, id, nil)
	case "copied":
		return s.m.MarkCopied(s.now, id, nil)
	case "merged":
		return s.m.MarkMerged(s.now, id, nil)
	case "prefilled":
		return s.m.MarkPrefilled(s.now, id, nil)
	case "end":
		return s.m.EndRequest(s.now, id, nil)
	case "cancel":
		return s.m.CancelRequest(s.now, id, nil)
	case "release":
		return s.m.ReleaseStaging(s.now, id, nil)
	case "wait":
		s.now = s.now.Add(duration(t, d, "for", 0))
		return s.m.Tick(s.now, nil), nil
	case "drop-kept":
		return s.m.DropKept(s.now, nil), nil
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return nil, nil
}

func (s *script) submit(t *testing.T, d *datadriven.TestData) ([]Action, error) {
	sub := submission(t, d)
	id, out, err := s.m.SubmitRequest(s.now, sub, nil)
	s.objects[id] = sub.Objects
	return out, err
}

// replace replaces a request. The items of its runs name the new one.
func (s *script) replace(t *testing.T, d *datadriven.TestData) ([]Action, error) {
	sub, old, takes := submission(t, d), number[RequestID](t, d, "id"), []int{}
	arg, _ := d.Arg("takes")
	for _, v := range arg.Vals {
		takes = append(takes, decimal(t, d, v))
	}
	id, taken, out, err := s.m.ReplaceRequest(s.now, old, sub, takes, nil)
	s.objects[id] = sub.Objects
	for i := range taken {
		if !taken[i] {
			continue
		}
		for _, items := range s.runs {
			for k := range items {
				if items[k].Request == old && items[k].Index == takes[i] {
					items[k].Request, items[k].Index = id, i
				}
			}
		}
	}
	return out, err
}

func submission(t *testing.T, d *datadriven.TestData) Submission {
	sub := Submission{Usage: Usage{
		Branches: number[int](t, d, "branches"), MultiTurn: d.HasArg("multi-turn"),
		PrefixCaching: d.HasArg("prefix-caching"), Speculative: d.HasArg("speculative"),
	}}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		place := placeOf(t, d, words[0])
		o := SubmittedObject{Kind: place.Kind, Position: place.Position, Bytes: int64(decimal(t, d, words[1]))}
		o.Tokens = int(o.Bytes)
		for _, w := range words[2:] {
			name, value, _ := strings.Cut(w, "=")
			switch n := decimal(t, d, value); name {
			case "tokens":
				o.Tokens = n
			case "shape":
				o.Shape[0] = n
			case "key":
				o.Key[0] = byte(n)
			case "held":
				o.Held = n
			case "cost":
				o.Cost = n
			default:
				d.Fatalf(t, "unknown %s", w)
			}
		}
		sub.Objects = append(sub.Objects, o)
		sub.Placeholders = append(sub.Placeholders, place)
	}
	if places := text(t, d, "places"); places != "" {
		sub.Placeholders = nil
		for p := range strings.SplitSeq(places, "+") {
			sub.Placeholders = append(sub.Placeholders, placeOf(t, d, p))
		}
	}
	return sub
}

// split splits a run.
func (s *script) split(t *testing.T, d *datadriven.TestData) (string, error) {
	id, places := number[RunID](t, d, "run"), []int{}
	arg, _ := d.Arg("items")
	for _, v := range arg.Vals {
		places = append(places, decimal(t, d, v))
	}
	part, all, err := s.m.SplitRun(id, places, nil)
	if err != nil {
		return "", err
	}
	var rest []Item
	out := fmt.Sprintf("run %d:", part)
	for at, item := range s.runs[id] {
		if !slices.Contains(places, at) {
			rest = append(rest, item)
			continue
		}
		s.runs[part] = append(s.runs[part], item)
		out += fmt.Sprintf(" %d.%d", item.Request, item.Index)
	}
	s.runs[id] = rest
	for _, a := range all {
		out += "\n" + a.String()
	}
	return out + "\n", nil
}

// results returns what the estimates say of the items of a run, but for what the command says.
func (s *script) results(t *testing.T, d *datadriven.TestData, items []Item) (all []Result) {
	for _, i := range items {
		o := &s.objects[i.Request][i.Index]
		r := Result{Tokens: o.Tokens, Bytes: o.Bytes}
		d.MaybeScanArgs(t, "tokens", &r.Tokens)
		d.MaybeScanArgs(t, "bytes", &r.Bytes)
		if d.HasArg("cached") {
			r.Place = InCache
		}
		all = append(all, r)
	}
	if arg, ok := d.Arg("fail"); ok {
		for i := 0; i+1 < len(arg.Vals); i += 2 {
			all[decimal(t, d, arg.Vals[i])] = Result{Failure: failureOf(t, d, arg.Vals[i+1]), Detail: "as told"}
		}
	}
	return all
}

func (s *script) states(id RequestID) string {
	var out []string
	for i := range s.objects[id] {
		state, err := s.m.StateOf(id, i)
		if err != nil {
			return err.Error() + "\n"
		}
		out = append(out, state.String())
	}
	text := strings.Join(out, " ")
	if at, ok, _ := s.m.FirstUnfinished(id); ok {
		text += fmt.Sprintf(", text up to %d", at)
	}
	return text + "\n"
}

func (s *script) stats() string {
	st := s.m.Stats()
	failures := slices.Clone(st.Failures[:])
	return fmt.Sprintf("requests: %d, ended %v; %d encoding, %d ready, %d active\n", st.Requests, st.Ended[1:], st.EncodingRequests, st.ReadyRequests, st.ActiveRequests) +
		fmt.Sprintf("jobs: %d and %d repeated in %d runs; %d encoded to %d bytes in %v; failures %v, %d late\n", st.Jobs, st.Repeats, st.Runs, st.Encoded, st.EncodedBytes, st.EncodeTime, failures[1:], st.LateReports) +
		fmt.Sprintf("cache: %d hits, %d misses, %d evictions; %d kept\n", st.CacheHits, st.CacheMisses, st.Evictions, st.KeptRows) +
		fmt.Sprintf("objects: %d queued, %d running, %d completed; requests waiting: %d for memory, %d for staging\n", st.QueuedObjects, st.RunningObjects, st.CompletedObjects, st.WaitingRequests, st.StagingRequests)
}

func placeOf(t *testing.T, d *datadriven.TestData, text string) Placeholder {
	kind, position, ok := strings.Cut(text, "@")
	if !ok || len(kind) != 1 {
		d.Fatalf(t, "%s is no place", text)
	}
	return Placeholder{Kind: kind[0], Position: decimal(t, d, position)}
}

func failureOf(t *testing.T, d *datadriven.TestData, name string) FailureKind {
	for k := Corrupt; k < failureKinds; k++ {
		if k.String() == strings.ReplaceAll(name, "-", " ") {
			return k
		}
	}
	d.Fatalf(t, "no failure is called %s", name)
	return NotFailed
}

func text(t *testing.T, d *datadriven.TestData, arg string) (s string) {
	d.MaybeScanArgs(t, arg, &s)
	return s
}

func number[T ~int | ~uint64](t *testing.T, d *datadriven.TestData, arg string) T {
	var n uint64
	d.MaybeScanArgs(t, arg, &n)
	return T(n)
}

func decimal(t *testing.T, d *datadriven.TestData, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

func duration(t *testing.T, d *datadriven.TestData, arg string, otherwise time.Duration) time.Duration {
	s := text(t, d, arg)
	if s == "" {
		return otherwise
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}
