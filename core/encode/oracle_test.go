package encode

import (
	"encoding/binary"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock/core/splitmix"
)

// twins are a machine and its naive twin, which do the same.
type twins struct {
	*naive
	m    *Machine
	draw func(n int) int
	// seen counts what has happened, so that a test can say that all of it did.
	seen map[string]int
	err  error
}

func newTwins(draw func(n int) int, seen map[string]int) *twins {
	cfg := Config{
		MaxJobs: 1 + draw(12), MaxBatch: 1 + draw(8), MaxBatchCost: draw(2) * (4 + draw(8)), BatchWait: time.Duration(draw(6)),
		MaxAttempts: 1 + draw(3), Timeout: time.Duration(draw(4) * 40), CPUBudget: int64(30 + draw(40) + draw(2)*draw(150)), StagingBudget: int64(30 + draw(100)),
		MaxObjects: 8 + draw(40), Cache: one(draw, NoCache, NoCache, WithCache),
	}
	m, err := New(cfg)
	return &twins{naive: newNaive(cfg), m: m, draw: draw, seen: seen, err: err}
}

// one returns one of some values.
func one[T any](draw func(n int) int, all ...T) T { return all[draw(len(all))] }

// chance is true in one of n cases.
func (w *twins) chance(n int) bool { return w.draw(n) == 0 }

// step does one thing with both, and returns what differs.
func (w *twins) step() error {
	full := w.weight() > w.cfg.MaxObjects-4 && !w.chance(12)
	switch d := w.draw(12); {
	case d < 2 && !full:
		w.doSubmit()
	case d == 2 && len(w.requests) > 0:
		w.doReplace()
	case d == 3:
		w.now = w.now.Add(time.Duration(w.draw(8)))
		w.compareEvent("tick", w.m.Tick(w.now, nil), nil, true, w.tick)
	case d == 4:
		w.doEncoder()
	case d == 5 || d == 6:
		w.doRun()
	default:
		w.doChange()
	}
	return w.err
}

// compareEvent compares the actions of an event, and then everything else. want is what the twin does.
func (w *twins) compareEvent(name string, got []Action, err error, legal bool, want func()) {
	w.seen[name]++
	if !legal {
		w.seen[name+", illegal"]++
	}
	w.actions = nil
	want()
	fail := func(format string, args ...any) {
		if w.err == nil {
			w.err = fmt.Errorf("%s at %d: "+format, append([]any{name, w.now}, args...)...)
		}
	}
	if (err == nil) != legal {
		fail("error %v, legal: %t", err, legal)
	}
	if a, b := sortActions(got), sortActions(w.actions); !slices.Equal(a, b) {
		fail("actions\n%q, want\n%q", a, b)
	}
	if got, want := w.m.Stats(), w.figures(); got != want {
		fail("statistics\n%+v, want\n%+v", got, want)
	}
	at, ok := w.m.Deadline()
	if wantAt, wantOK := w.deadline(); at != wantAt || ok != wantOK {
		fail("deadline %d %t, want %d %t", at, ok, wantAt, wantOK)
	}
	if err := w.m.Check(); err != nil {
		fail("%v", err)
	}
	if w.everLarger > w.cfg.CPUBudget || w.staged() > w.cfg.StagingBudget || w.permits() > w.cfg.MaxJobs {
		fail("beyond a bound: %d bytes, %d staged, %d permits", w.everLarger, w.staged(), w.permits())
	}
	if ended := len(w.ends); ended+len(w.requests) != int(w.lastID) {
		fail("%d submits, %d ends and %d requests", w.lastID, ended, len(w.requests))
	}
	w.compareStates(fail)
}

func (w *twins) compareStates(fail func(string, ...any)) {
	for _, q := range w.requests {
		first, found := 0, false
		for i, o := range q.objects {
			want := q.state
			if q.state == Encoding {
				want = o.state
			}
			if got, err := w.m.StateOf(q.id, i); err != nil || got != want {
				fail("object %d.%d is in state %v (%v), want %v", q.id, i, got, err, want)
			}
			if o.state != EncodedCPU && (!found || o.Position < first) {
				first, found = o.Position, true
			}
		}
		if at, ok, err := w.m.FirstUnfinished(q.id); at != first || ok != found || err != nil {
			fail("request %d is unfinished from %d (%t, %v), want %d (%t)", q.id, at, ok, err, first, found)
		}
	}
}

// sortActions prints actions: first the ones whose order matters, by kind, then the others in any order.
func sortActions(all []Action) []string {
	var ordered, others []string
	for _, a := range all {
		for i := range a.Failures {
			a.Failures[i].Detail = ""
		}
		switch a.Kind {
		case RunBatch:
			ordered = append(ordered, "1 "+a.String())
		case CopyRows:
			ordered = append(ordered, "2 "+a.String())
		case RequestReady, RequestEnded:
			ordered = append(ordered, "3 "+a.String())
		default:
			others = append(others, "4 "+a.String())
		}
	}
	slices.SortStableFunc(ordered, func(a, b string) int { return int(a[0]) - int(b[0]) })
	slices.Sort(others)
	return append(ordered, others...)
}

func (w *twins) doSubmit() {
	s := Submission{Usage: w.drawUsage()}
	for i := range w.draw(5) {
		s.Objects = append(s.Objects, w.drawObject(i))
	}
	w.drawPlaceholders(&s)
	id, got, err := w.m.SubmitRequest(w.now, s, nil)
	legal := w.accepts(&s, w.weight())
	w.compareEvent("submit", got, err, legal, func() {
		if want, _ := w.submit(&s); want != id && w.err == nil {
			w.err = fmt.Errorf("request %d, want %d", id, want)
		}
	})
}

func (w *twins) drawUsage() Usage {
	return Usage{Branches: w.draw(3), MultiTurn: w.chance(2), PrefixCaching: w.chance(4), Speculative: w.chance(5)}
}

func (w *twins) drawObject(i int) SubmittedObject {
	o := SubmittedObject{Kind: uint8(1 + w.draw(2)), Position: 3*i + w.draw(3), Tokens: 1 + w.draw(9), Cost: w.draw(4)}
	o.Bytes = int64(2 * o.Tokens)
	o.Shape[0] = w.draw(2)
	if w.chance(2) {
		o.Key[0] = byte(1 + w.draw(9))
		o.Tokens = 1 + int(o.Key[0]) // rows of equal keys are equal
		o.Bytes = int64(2 * o.Tokens)
	}
	if w.cfg.Cache == WithCache && w.chance(4) {
		o.Held = o.Tokens
	}
	return o
}

// drawPlaceholders adds the placeholders of a submission, and sometimes a fault.
func (w *twins) drawPlaceholders(s *Submission) {
	for i := range s.Objects {
		s.Placeholders = append(s.Placeholders, Placeholder{s.Objects[i].Position, s.Objects[i].Kind})
	}
	if w.chance(3) {
		slices.Reverse(s.Placeholders)
	}
	n := len(s.Objects)
	if n == 0 || !w.chance(10) {
		return
	}
	o := &s.Objects[w.draw(n)]
	switch w.draw(9) {
	case 0:
		o.Position++
	case 1:
		o.Kind++
	case 2:
		o.Tokens = 0
	case 3:
		o.Bytes = int64(w.draw(200))
	case 4:
		o.Cost += 9
	case 5:
		o.Held = w.draw(4)
	case 6:
		s.Placeholders = s.Placeholders[1:]
	case 7:
		s.Placeholders[w.draw(n)].Position = s.Placeholders[w.draw(n)].Position - w.draw(2)
	case 8:
		*o = s.Objects[w.draw(n)]
	}
}

// doReplace replaces a request by one with some of its objects, and others.
func (w *twins) doReplace() {
	q := w.requests[w.draw(len(w.requests))]
	if q.state != Encoding && w.chance(2) {
		q = w.requests[len(w.requests)-1]
	}
	s, takes, old := Submission{Usage: w.drawUsage()}, []int(nil), q.id
	for k, o := range q.objects {
		if w.chance(4) {
			continue
		}
		takes = append(takes, k)
		again := o.SubmittedObject
		again.Position = 3 * len(s.Objects)
		if !w.chance(8) {
			again.Held = 0
		}
		s.Objects = append(s.Objects, again)
	}
	for range w.draw(3) {
		takes = append(takes, -1)
		s.Objects = append(s.Objects, w.drawObject(len(s.Objects)))
	}
	w.drawPlaceholders(&s)
	if len(takes) > 0 && w.chance(12) {
		switch k := w.draw(len(takes)); w.draw(6) {
		case 0:
			takes[k] = w.draw(4) - 2
		case 1:
			takes = takes[1:]
		case 2:
			old = RequestID(w.draw(int(w.lastID) + 2))
		case 3:
			s.Objects[k].Shape[1]++
		case 4:
			s.Objects[k].Key[0]++
		case 5:
			again := s.Objects[k]
			again.Position = 3 * len(s.Objects)
			s.Objects, takes = append(s.Objects, again), append(takes, takes[k])
			s.Placeholders = append(s.Placeholders, Placeholder{again.Position, again.Kind})
		}
	}
	for _, k := range takes {
		if k >= 0 && k < len(q.objects) && old == q.id && slices.ContainsFunc(w.runs, func(r *naiveRun) bool { return slices.Contains(r.objects, q.objects[k]) }) {
			w.seen["take a running object"]++
		}
	}
	w.actions = nil
	want, wantTaken, legal := w.replace(old, &s, takes)
	actions := w.actions
	id, taken, got, err := w.m.ReplaceRequest(w.now, old, s, takes, nil)
	w.compareEvent("replace", got, err, legal, func() { w.actions = actions })
	if (id != want || !slices.Equal(taken, wantTaken)) && w.err == nil {
		w.err = fmt.Errorf("request %d has taken %t, want %d and %t", id, taken, want, wantTaken)
	}
	if legal {
		w.seen[fmt.Sprintf("taken: %t", slices.Contains(taken, true))]++
	}
}

func (w *twins) doEncoder() {
	id := EncoderID(w.draw(4))
	there := slices.ContainsFunc(w.encoders, func(e *naiveEncoder) bool { return e.id == id })
	if there && w.chance(4) || !there && w.chance(6) {
		got, err := w.m.LoseEncoder(w.now, id, nil)
		w.compareEvent("lose encoder", got, err, there, func() { w.loseEncoder(id) })
		return
	}
	limits := EncoderLimits{Jobs: w.draw(2) * (1 + w.draw(12)), Runs: w.draw(4)}
	got, err := w.m.AddEncoder(w.now, id, limits, nil)
	w.compareEvent("add encoder", got, err, !there, func() { w.addEncoder(id, limits) })
}

func (w *twins) doRun() {
	id, size := RunID(1+w.draw(int(w.lastRun)+1)), 0
	switch {
	case len(w.runs) > 0 && !w.chance(12):
		id = w.runs[w.draw(len(w.runs))].id
	case w.chance(2):
		w.doSubmit()
		return
	}
	r := w.findRun(id)
	if r != nil {
		size = len(r.items)
		for _, o := range r.objects {
			if o == nil {
				w.seen["a run ends with objects which have left"]++
			}
		}
	}
	if w.chance(3) {
		w.doSplit(id, size)
		return
	}
	if w.chance(4) {
		kind := FailureKind(1 + w.draw(failureKinds-1))
		got, err := w.m.FailRun(w.now, id, kind, "some", nil)
		w.compareEvent("fail run", got, err, r != nil, func() { w.failRun(id, kind) })
		return
	}
	results := make([]Result, size)
	for i := range results {
		o := &results[i]
		if r.objects[i] != nil {
			*o = Result{Tokens: r.objects[i].Tokens, Bytes: r.objects[i].Bytes}
		}
		if w.cfg.Cache == WithCache && w.chance(2) {
			o.Place = InCache
		}
		switch w.draw(30) {
		case 0:
			o.Failure = FailureKind(1 + w.draw(failureKinds-1))
		case 1:
			o.Tokens++
		case 2:
			o.Bytes--
		}
	}
	got, err := w.m.FinishRun(w.now, id, results, nil)
	w.compareEvent("finish run", got, err, r != nil, func() { w.finish(id, results) })
}

// doSplit splits a run of some items.
func (w *twins) doSplit(id RunID, items int) {
	var places []int
	for at := range items {
		if w.chance(2) {
			places = append(places, at)
		}
	}
	if w.chance(12) {
		places = append(places, w.draw(items+2)-1)
	}
	legal, want := false, RunID(0)
	twin := func() {
		want, legal = w.split(id, places)
	}
	w.actions = nil
	twin()
	actions := w.actions
	part, got, err := w.m.SplitRun(id, places, nil)
	w.compareEvent("split run", got, err, legal, func() { w.actions = actions })
	if part != want && w.err == nil {
		w.err = fmt.Errorf("part %d, want %d", part, want)
	}
}

// doChange takes a request further, or does something else to it.
func (w *twins) doChange() {
	id := RequestID(w.draw(int(w.lastID) + 2))
	if len(w.requests) > 0 && !w.chance(20) {
		id = w.requests[w.draw(len(w.requests))].id
	}
	if orphans := slices.DeleteFunc(slices.Clone(w.stages), func(s *naiveStage) bool { return s.of != nil }); len(orphans) > 0 && w.chance(3) {
		id = orphans[w.draw(len(orphans))].id
	}
	c := change(w.draw(changes))
	if !w.chance(5) {
		c = w.nextChange(id)
	}
	if w.chance(300) {
		w.compareEvent("drop kept", w.m.DropKept(w.now, nil), nil, true, w.dropKept)
		return
	}
	w.doChangeOf(c, id)
}

// nextChange returns what comes next for a request.
func (w *twins) nextChange(id RequestID) change {
	q, s := w.find(id), w.stageOf(id)
	switch {
	case q == nil:
		return changeRelease
	case s != nil && s.granted && !s.copied:
		return changeCopied
	case q.state == EncodedCPU:
		return changeStage
	case q.state == Staged:
		return changeMerged
	case q.state == Merged:
		return changePrefilled
	case q.state == Prefilled:
		return one(w.draw, changeEnd, changeStage)
	}
	return one(w.draw, changeCopied, changeMerged, changePrefilled)
}

func (w *twins) doChangeOf(c change, id RequestID) {
	call := []func() ([]Action, error){
		changeStage:     func() ([]Action, error) { return w.m.StageRequest(w.now, id, nil) },
		changeCopied:    func() ([]Action, error) { return w.m.MarkCopied(w.now, id, nil) },
		changeMerged:    func() ([]Action, error) { return w.m.MarkMerged(w.now, id, nil) },
		changePrefilled: func() ([]Action, error) { return w.m.MarkPrefilled(w.now, id, nil) },
		changeEnd:       func() ([]Action, error) { return w.m.EndRequest(w.now, id, nil) },
		changeCancel:    func() ([]Action, error) { return w.m.CancelRequest(w.now, id, nil) },
		changeRelease:   func() ([]Action, error) { return w.m.ReleaseStaging(w.now, id, nil) },
	}[c]
	name := [...]string{"stage", "copied", "merged", "prefilled", "end", "cancel", "release"}[c]
	if q := w.find(id); q != nil && c == changeCancel {
		w.seen[fmt.Sprintf("cancel in %v", q.state)]++
	}
	w.actions = nil
	legal := w.apply(c, id)
	want := w.actions
	got, err := call()
	w.compareEvent(name, got, err, legal, func() { w.actions = want })
}

// drain takes all requests to their end without any fault, and reports what remains.
func (w *twins) drain() error {
	for rounds := 0; len(w.requests)+len(w.runs)+len(w.stages) > 0 && w.err == nil; rounds++ {
		if rounds > 1000 {
			return fmt.Errorf("%d requests, %d runs and %d stages remain", len(w.requests), len(w.runs), len(w.stages))
		}
		if len(w.encoders) == 0 {
			got, err := w.m.AddEncoder(w.now, 9, EncoderLimits{}, nil)
			w.compareEvent("add encoder", got, err, true, func() { w.addEncoder(9, EncoderLimits{}) })
		}
		if w.now = w.now.Add(1); rounds%2 == 0 {
			w.compareEvent("tick", w.m.Tick(w.now, nil), nil, true, w.tick)
		}
		for _, r := range slices.Clone(w.runs) {
			results := make([]Result, len(r.items))
			for i, o := range r.objects {
				if o != nil {
					results[i] = Result{Tokens: o.Tokens, Bytes: o.Bytes}
				}
			}
			got, err := w.m.FinishRun(w.now, r.id, results, nil)
			w.compareEvent("finish run", got, err, true, func() { w.finish(r.id, results) })
		}
		for _, s := range slices.Clone(w.stages) {
			if s.of == nil {
				w.doChangeOf(changeRelease, s.id)
			}
		}
		for _, q := range slices.Clone(w.requests) {
			if c := w.nextChange(q.id); q.state == Prefilled {
				w.doChangeOf(changeEnd, q.id)
			} else if q.state != Encoding {
				w.doChangeOf(c, q.id)
			}
		}
	}
	w.compareEvent("drop kept", w.m.DropKept(w.now, nil), nil, true, w.dropKept)
	if s := w.m.Stats(); w.err == nil && (s.CPUBytes != 0 || s.StagingBytes != 0 || s.RunningObjects != 0 || len(w.rows) != 0) {
		return fmt.Errorf("an idle machine has %+v", s)
	}
	return w.err
}

// walk does steps, and drains the machine.
func walk(draw func(n int) int, steps int, seen map[string]int, more func() bool) error {
	w := newTwins(draw, seen)
	for i := 0; i < steps && w.err == nil && more(); i++ {
		if err := w.step(); err != nil {
			return fmt.Errorf("step %d of %+v: %w", i, w.cfg, err)
		}
	}
	if err := w.drain(); err != nil {
		return fmt.Errorf("drain of %+v: %w", w.cfg, err)
	}
	for name, n := range map[string]uint64{
		"evictions": w.stats.Evictions, "hits": w.stats.CacheHits, "late reports": w.stats.LateReports, "repeats": w.stats.Repeats,
		"completed": w.stats.Ended[Completed], "failed": w.stats.Ended[Failed], "cancelled": w.stats.Ended[Cancelled],
	} {
		seen[name] += int(n)
	}
	for k, n := range w.stats.Failures {
		seen[FailureKind(k).String()] += int(n)
	}
	return nil
}

func always() bool { return true }

// TestTwin compares the machine with its naive twin.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") }
		if err := walk(draw, rapid.IntRange(1, 150).Draw(t, "steps"), map[string]int{}, always); err != nil {
			t.Fatal(err)
		}
	})
}

var manySteps = flag.Int("steps", 100_000, "steps of TestManySteps")

// TestManySteps compares the machine with its twin over many random steps of machines with other bounds. After each
// step all sums, budgets, permits and states are compared, and Check holds. A million steps:
//
//	go test ./core/encode -run TestManySteps -steps 1000000
func TestManySteps(t *testing.T) {
	seen, rounds := map[string]int{}, *manySteps/1000
	for seed := range uint64(rounds) {
		drawn := uint64(0)
		draw := func(n int) int {
			drawn++
			return int(splitmix.Mix(seed<<32+drawn*splitmix.Step) % uint64(n))
		}
		if err := walk(draw, 1000, seen, always); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	t.Logf("%d steps: %v", 1000*rounds, seen)
	for _, name := range []string{
		"submit, illegal", "lose encoder", "split run", "split run, illegal",
		"replace", "replace, illegal", "take a running object", "taken: true", "taken: false", "a run ends with objects which have left", "drop kept",
		"evictions", "hits", "late reports", "repeats", "completed", "failed", "cancelled",
		"cancel in ENCODING", "cancel in ENCODED_CPU", "cancel in STAGED", "cancel in MERGED", "cancel in PREFILLED",
		"stage, illegal", "copied, illegal", "merged, illegal", "prefilled, illegal", "end, illegal", "cancel, illegal", "release, illegal",
		"corrupt", "out of memory", "deadline", "encoder lost", "size differs", "encoder failed",
	} {
		if rounds >= 10 && seen[name] < rounds/10 {
			t.Errorf("%s: only %d times in %d steps", name, seen[name], 1000*rounds)
		}
	}
}

// FuzzTwin has a fuzzer draw the steps.
func FuzzTwin(f *testing.F) {
	for seed := range uint64(4) {
		var b []byte
		for i := range uint64(400) {
			b = binary.LittleEndian.AppendUint16(b, uint16(splitmix.Mix(seed<<32+i*splitmix.Step)))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		steps = steps[:min(len(steps), 4000)]
		draw := func(n int) int {
			if len(steps) < 2 {
				steps = nil
				return 0
			}
			v := binary.LittleEndian.Uint16(steps)
			steps = steps[2:]
			return int(v) % n
		}
		if err := walk(draw, 1000, map[string]int{}, func() bool { return len(steps) > 0 }); err != nil {
			t.Fatal(err)
		}
	})
}
