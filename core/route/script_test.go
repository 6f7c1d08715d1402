package route

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
)

// chain returns the SeqHash of every prefix of path, which has one letter per block.
func chain(path string) []kv.SeqHash {
	var out []kv.SeqHash
	var seq kv.SeqHash
	for i, name := range []byte(path) {
		seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(name))
		out = append(out, seq)
	}
	return out
}

func mustTable(t testing.TB, blockSize int) *activeseq.ReservationTable {
	t.Helper()
	table, err := activeseq.New(activeseq.Config{BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func mustRouter(t testing.TB, cfg Config, active *activeseq.ReservationTable) *Router {
	t.Helper()
	r, err := New(cfg, active)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestScripts runs the golden scripts. Blocks have 16 tokens, and a path has one letter per block. Commands:
//
//	router [mode=M|default] (default: kv) [weight=F] [temperature=F] [seed=N] [busy-blocks=F] [busy-tokens=N]
//	       [near=F] [queue-weight=F] [threshold=F] [sessions=soft|hard|off] [ttl=DURATION] [most=N]
//	       [ttft=DURATION] [itl=DURATION] [miss=wait|refuse]
//	workers                    lines: W STATE [block-size=N] [blocks=N] [batch=N] [router] [experts=LAYER.EXPERT[*SHARE]+…] [adapters=NAME+…] [loaded=NAME+…]
//	loaded w=W [adapters=NAME+…]
//	state w=W state=STATE at=DURATION
//	busy [blocks=F] [tokens=N]
//	reserve id=ID w=W chain=PATH [overlap=N] [prefilled]
//	prefilled id=ID
//	pick id=ID [QUERY] [at=DURATION] [times=N]
//	explain [QUERY] [at=DURATION]
//	full [QUERY]
//	check [QUERY] [waited=DURATION] the targets
//	available [adapter=NAME]
//	free id=ID
//	first id=ID [cached=N]         the first token
//	answer id=ID answered=N        the end of an answer, and free
//	evicted w=W
//	cached w=W blocks=N
//
// with QUERY any of chain=PATH, tokens=N (default: the tokens of the chain), overlap=(W:N,…) where N may be
// DEVICE+HOST+DISK+POOL, labelled=(W:N,…) and attachable=(W:N,…) as parts of that, pin=W, media=(START-END,…), exclude=(ID,…),
// allow=(ID,…), moving, session=ID, last, adapter=NAME, and the overrides mode=M, weight=F, temperature=F,
// ttft-ms=F, itl-ms=F, layer=N, experts=(N,…), group=N, strict, alone, untracked. A worker is ID or ID.RANK, an id a name or
// NAME.ATTEMPT. With times, each pick is freed at once and the line counts the workers which were picked.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{active: mustTable(t, 16)}
		s.router = mustRouter(t, Config{Mode: KV}, s.active)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			if err := s.active.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	active *activeseq.ReservationTable
	router *Router
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "router":
		cfg := Config{OverlapWeight: float(t, d, "weight")}
		mode := string(KV)
		if d.MaybeScanArgs(t, "mode", &mode); mode != "default" {
			cfg.Mode = Mode(mode)
		}
		if v := float(t, d, "temperature"); v != nil {
			cfg.Temperature = *v
		}
		d.MaybeScanArgs(t, "seed", &cfg.Seed)
		if v := float(t, d, "near"); v != nil {
			cfg.NearCost = *v
		}
		cfg.QueueWeight, cfg.QueueThreshold = float(t, d, "queue-weight"), float(t, d, "threshold")
		var stickiness, ttl string
		d.MaybeScanArgs(t, "sessions", &stickiness)
		cfg.Sessions.Stickiness = Stickiness(stickiness)
		if d.MaybeScanArgs(t, "ttl", &ttl); ttl != "" {
			cfg.Sessions.TTL = duration(t, ttl)
		}
		d.MaybeScanArgs(t, "most", &cfg.Sessions.MaxSessions)
		cfg.Busy = thresholds(t, d, "busy-blocks", "busy-tokens")
		cfg.Targets = Targets{TTFT: durationArg(t, d, "ttft"), ITL: durationArg(t, d, "itl")}
		var miss string
		d.MaybeScanArgs(t, "miss", &miss)
		cfg.OnMiss = MissPolicy(miss)
		s.active = mustTable(t, 16)
		r, err := New(cfg, s.active)
		if err != nil {
			return err.Error() + "\n"
		}
		s.router = r
	case "workers":
		if err := s.router.SetWorkers(targets(t, d)); err != nil {
			return err.Error() + "\n"
		}
	case "state":
		var w, state string
		d.ScanArgs(t, "w", &w)
		d.ScanArgs(t, "state", &state)
		return fmt.Sprintln("changed:", s.router.SetState(worker(t, w), states[state], when(t, d)))
	case "loaded":
		var w, names string
		d.ScanArgs(t, "w", &w)
		d.MaybeScanArgs(t, "adapters", &names)
		s.router.SetLoaded(worker(t, w), strings.Split(names, "+"))
	case "busy":
		if err := s.router.SetBusyThresholds(thresholds(t, d, "blocks", "tokens")); err != nil {
			return err.Error() + "\n"
		}
	case "reserve":
		q := query(t, d)
		demand := activeseq.Demand{Chain: q.Chain, PromptTokens: q.PromptTokens}
		d.MaybeScanArgs(t, "overlap", &demand.OverlapBlocks)
		var w string
		d.ScanArgs(t, "w", &w)
		if err := s.active.Reserve(0, q.Key, worker(t, w), demand); err != nil {
			d.Fatalf(t, "%v", err)
		}
		if d.HasArg("prefilled") {
			s.active.MarkPrefilled(q.Key)
		}
	case "pick":
		q := query(t, d)
		if d.HasArg("times") {
			return s.tally(t, d, q)
		}
		dec, err := s.router.Pick(when(t, d), q)
		if err != nil {
			return failure(err)
		}
		return decision(dec)
	case "adopt":
		q := query(t, d)
		var w string
		d.ScanArgs(t, "w", &w)
		s.active.AdoptReservation(when(t, d), activeseq.Reservation{Worker: worker(t, w), Chain: q.Chain, PromptTokens: q.PromptTokens, PrefillTokens: q.PromptTokens})
	case "prefilled":
		s.active.MarkPrefilled(query(t, d).Key)
	case "first":
		cached := UnknownCached
		d.MaybeScanArgs(t, "cached", &cached)
		if !s.router.RecordFirstToken(when(t, d), query(t, d).Key, cached) {
			return "not reserved\n"
		}
	case "answer":
		var tokens int
		d.ScanArgs(t, "answered", &tokens)
		s.router.RecordAnswer(when(t, d), query(t, d).Key, tokens)
		s.active.Free(query(t, d).Key)
	case "evicted":
		var w string
		d.ScanArgs(t, "w", &w)
		blocks := 1
		d.MaybeScanArgs(t, "blocks", &blocks)
		s.router.RecordEviction(when(t, d), worker(t, w), blocks)
	case "cached":
		var w string
		var blocks int
		d.ScanArgs(t, "w", &w)
		d.ScanArgs(t, "blocks", &blocks)
		s.router.RecordCached(worker(t, w), blocks)
	case "available":
		var adapter string
		d.MaybeScanArgs(t, "adapter", &adapter)
		a := s.router.Availability(adapter)
		return fmt.Sprintf("%d of %d ready: %s\n", a.Ready, a.Workers, a.Reason)
	case "full":
		return fmt.Sprintln(s.router.ShouldQueue(when(t, d), query(t, d)))
	case "check":
		q := query(t, d)
		q.Waited = durationArg(t, d, "waited")
		return targetCheck(s.router.CheckTargets(when(t, d), q))
	case "explain":
		ex, err := s.router.Explain(when(t, d), query(t, d))
		return explanation(ex, err)
	case "free":
		s.active.Free(query(t, d).Key)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

func (s *script) tally(t *testing.T, d *datadriven.TestData, q *Query) string {
	var times int
	d.ScanArgs(t, "times", &times)
	counts := map[kv.Worker]int{}
	for range times {
		dec, err := s.router.Pick(0, q)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.active.Free(q.Key)
		counts[dec.Worker]++
	}
	var out strings.Builder
	for _, target := range s.router.Workers() {
		fmt.Fprintf(&out, "%s: %d\n", short(target.Worker), counts[target.Worker])
	}
	return out.String()
}

var states = map[string]WorkerState{"ready": Ready, "draining": Draining, "not-ready": NotReady, "not-answering": NotAnswering, "suspected": Suspected}

// when returns the time argument of a command, 0 if there is none.
func when(t *testing.T, d *datadriven.TestData) kv.Mono {
	at := "0s"
	d.MaybeScanArgs(t, "at", &at)
	return kv.Mono(duration(t, at))
}

// durationArg returns an argument which is a duration, 0 if it is missing.
func durationArg(t *testing.T, d *datadriven.TestData, name string) time.Duration {
	s := "0s"
	d.MaybeScanArgs(t, name, &s)
	return duration(t, s)
}

// targetCheck formats a check of targets.
func targetCheck(c TargetCheck) string {
	if c.Targets == (Targets{}) {
		return "no targets\n"
	}
	out := fmt.Sprintf("met %v late %v idle %v waits %v, least %v", c.Met, c.Late, c.HasIdle, c.ShouldWait(), c.TTFT)
	if c.LatestStart != 0 {
		out += fmt.Sprintf(", to be placed by %v", time.Duration(c.LatestStart))
	}
	out += "\n"
	if err := c.Refusal(); err != nil {
		f, _ := errors.AsType[*fault.Error](err)
		out += fmt.Sprintf("refused, to try again in %v: %s", f.RetryAfter, failure(err))
	}
	return out
}

func duration(t *testing.T, s string) time.Duration {
	v, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func thresholds(t *testing.T, d *datadriven.TestData, blocks, tokens string) (b BusyThresholds) {
	if v := float(t, d, blocks); v != nil {
		b.DecodeBlocks = *v
	}
	d.MaybeScanArgs(t, tokens, &b.PrefillTokens)
	return b
}

func targets(t *testing.T, d *datadriven.TestData) []Target {
	var out []Target
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		state, ok := states[f[1]]
		if !ok {
			d.Fatalf(t, "unknown state %s", f[1])
		}
		target := Target{Worker: worker(t, f[0]), Addr: "addr-" + f[0], BlockSize: 16, State: state}
		for _, more := range f[2:] {
			switch key, v, _ := strings.Cut(more, "="); key {
			case "block-size":
				target.BlockSize = int(*number(t, v))
			case "blocks":
				target.Blocks = int(*number(t, v))
			case "router":
				target.Router = true
			case "reuses-queued":
				target.ReusesQueued = true
			case "batch":
				target.BatchTokens = int(*number(t, v))
			case "adapters":
				target.Adapters = strings.Split(v, "+")
			case "loaded":
				target.Loaded = strings.Split(v, "+")
			case "experts":
				target.Experts = experts(t, v)
			default:
				d.Fatalf(t, "unknown field %s", key)
			}
		}
		out = append(out, target)
	}
	return out
}

func experts(t *testing.T, list string) (out []Expert) {
	for s := range strings.SplitSeq(list, "+") {
		s, share, ok := strings.Cut(s, "*")
		layer, expert, _ := strings.Cut(s, ".")
		e := Expert{Layer: uint32(*number(t, layer)), Expert: uint32(*number(t, expert)), Share: 1}
		if ok {
			e.Share = *number(t, share)
		}
		out = append(out, e)
	}
	return out
}

func query(t *testing.T, d *datadriven.TestData) *Query {
	q := &Query{Key: activeseq.AttemptKey{Attempt: 1}, Moving: d.HasArg("moving")}
	var id, path, pin string
	d.MaybeScanArgs(t, "id", &id)
	name, attempt, ok := strings.Cut(id, ".")
	q.Key.ID = name
	if ok {
		q.Key.Attempt = uint32(*number(t, attempt))
	}
	d.MaybeScanArgs(t, "chain", &path)
	q.Chain, q.PromptTokens = chain(path), 16*len(path)
	d.MaybeScanArgs(t, "tokens", &q.PromptTokens)
	if d.MaybeScanArgs(t, "pin", &pin); pin != "" {
		q.Pin = worker(t, pin)
	}
	for _, arg := range d.CmdArgs {
		switch {
		case arg.Key == "exclude":
			for _, v := range arg.Vals {
				q.Exclude = append(q.Exclude, worker(t, v).ID)
			}
		case arg.Key == "media":
			for _, v := range arg.Vals {
				start, end, _ := strings.Cut(v, "-")
				q.Media = append(q.Media, kv.Media{Start: int(*number(t, start)), End: int(*number(t, end))})
			}
		case arg.Key == "allow":
			for _, v := range arg.Vals {
				q.Allowed = append(q.Allowed, worker(t, v).ID)
			}
		case arg.Key == "held": // worker:object+object
			for _, v := range arg.Vals {
				w, list, _ := strings.Cut(v, ":")
				h := HeldMedia{Worker: worker(t, w)}
				for _, i := range strings.Split(list, "+") {
					h.Objects |= 1 << int(*number(t, i))
				}
				q.Held = append(q.Held, h)
			}
		case arg.Key == "overlap" && d.Cmd != "reserve":
			for _, v := range arg.Vals {
				w, n, _ := strings.Cut(v, ":")
				o := kv.Overlap{Worker: worker(t, w)}
				for tier, n := range strings.Split(n, "+") {
					o.Blocks[tier] = int(*number(t, n))
				}
				q.Overlaps = append(q.Overlaps, o)
			}
		case arg.Key == "labelled" || arg.Key == "attachable":
			for _, v := range arg.Vals {
				w, n, _ := strings.Cut(v, ":")
				at := slices.IndexFunc(q.Overlaps, func(o kv.Overlap) bool { return o.Worker == worker(t, w) })
				part := &q.Overlaps[at].Labelled
				if arg.Key == "attachable" {
					part = &q.Overlaps[at].Attachable
				}
				*part = int(*number(t, n))
			}
		}
	}
	d.MaybeScanArgs(t, "session", &q.Session.ID)
	d.MaybeScanArgs(t, "adapter", &q.Adapter)
	q.Session.Last = d.HasArg("last")
	if d.Cmd == "pick" || d.Cmd == "explain" || d.Cmd == "check" {
		q.Override.TTFTTarget, q.Override.ITLTarget = float(t, d, "ttft-ms"), float(t, d, "itl-ms")
		q.Override.OverlapWeight = float(t, d, "weight")
		q.Override.Temperature = float(t, d, "temperature")
		var mode string
		if d.MaybeScanArgs(t, "mode", &mode); mode != "" {
			q.Override.Mode = new(Mode(mode))
		}
		if d.HasArg("alone") {
			q.Override.AssumeReuse = new(false)
		}
		if d.HasArg("untracked") {
			q.Override.TrackPrefill = new(false)
		}
	}
	q.Override.MoE = moe(t, d)
	return q
}

// moe returns the moe_query of a command, nil if none.
func moe(t *testing.T, d *datadriven.TestData) *MoEQuery {
	layer, group := float(t, d, "layer"), float(t, d, "group")
	if layer == nil && group == nil && !d.HasArg("strict") {
		return nil
	}
	m := &MoEQuery{}
	if layer != nil {
		m.Layer = new(uint32(*layer))
	}
	if group != nil {
		m.Group = new(uint32(*group))
	}
	if d.HasArg("strict") {
		m.Fallback = new(false)
	}
	for _, arg := range d.CmdArgs {
		if arg.Key == "experts" {
			for _, v := range arg.Vals {
				m.Experts = append(m.Experts, uint32(*number(t, v)))
			}
		}
	}
	return m
}

// float returns an argument as a number, nil if it is missing.
func float(t *testing.T, d *datadriven.TestData, arg string) *float64 {
	var s string
	if d.MaybeScanArgs(t, arg, &s); s == "" {
		return nil
	}
	return number(t, s)
}

func number(t *testing.T, s string) *float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return &v
}

func worker(t *testing.T, s string) kv.Worker {
	id, rank, ok := strings.Cut(s, ".")
	w := kv.Worker{ID: kv.WorkerID(*number(t, id))}
	if ok {
		w.Rank = uint32(*number(t, rank))
	}
	return w
}

func short(w kv.Worker) string {
	if w.Rank == 0 {
		return fmt.Sprint(w.ID)
	}
	return fmt.Sprintf("%d.%d", w.ID, w.Rank)
}

func failure(err error) string {
	out := fault.CodeOf(err).String()
	if fe, ok := errors.AsType[*fault.Error](err); ok && fe.Param != "" {
		out += " (" + fe.Param + ")"
	}
	return out + ": " + err.Error() + "\n"
}

func decision(d Decision) string {
	cost := fmt.Sprintf("%g", d.Cost)
	if d.Mode == Time {
		cost = fmt.Sprintf("%.3f ms", d.Cost)
	}
	return fmt.Sprintf("%s at %s by %s, overlap %d of %d tokens, cost %s\n", short(d.Worker), d.Addr, d.Mode, d.OverlapBlocks, d.BlockSize, cost)
}

func explanation(ex Explanation, err error) string {
	var out strings.Builder
	fmt.Fprintf(&out, "weight %g temperature %g prompt %d tokens, %d blocks\n", ex.OverlapWeight, ex.Temperature, ex.PromptTokens, ex.PromptBlocks)
	for _, c := range ex.Candidates {
		if sum := c.Time.Sum(); ex.Mode == Time && math.Abs(sum-c.Cost) > 1e-9*math.Abs(sum) {
			fmt.Fprintf(&out, "the terms of %s add up to %g, not %g\n", short(c.Worker), sum, c.Cost)
		}
		if ex.Decision.Mode == Time {
			fmt.Fprintf(&out, "  %s: overlap %v%s%s cost %.3f probability %.4f%s\n", short(c.Worker), c.Overlap, timeTerms(&c.Time), term("affinity", c.Affinity), c.Cost, c.Probability, targetTerms(&ex, &c))
			continue
		}
		fmt.Fprintf(&out, "  %s: overlap %v prefill %d = %g%s decode %d active %d%s cost %g probability %.4f%s\n",
			short(c.Worker), c.Overlap, c.PrefillTokens, c.PrefillBlocks, term("fetch", c.FetchBlocks), c.DecodeBlocks, c.ActiveRequests,
			term("labels", c.LabelAffinity)+term("experts", c.ExpertAffinity)+term("session", c.SessionAffinity)+term("embeddings", c.EmbeddingAffinity)+term("affinity", c.Affinity),
			c.Cost, c.Probability, map[bool]string{true: " near"}[c.Near && ex.NearCost > 0])
	}
	for _, e := range ex.Excluded {
		fmt.Fprintf(&out, "  %s: %s\n", short(e.Worker), e.Reason)
	}
	if err != nil {
		return out.String() + failure(err)
	}
	return out.String() + decision(ex.Decision)
}

// timeTerms formats the terms of mode time which are not 0, in ms.
func timeTerms(c *TimeCost) (out string) {
	for _, t := range []struct {
		name string
		ms   float64
	}{{"wait", c.Wait}, {"unheard", c.Unheard}, {"own", c.Own}, {"evict", c.Evict}, {"backlog", c.Backlog}, {"step", c.Step}, {"decode", c.Decode}, {"stall", c.Stall}, {"slow", c.Slow}, {"interrupt", c.Interrupt}, {"copy", -c.Copy}} {
		if t.ms != 0 {
			out += fmt.Sprintf(" %s %.3f", t.name, t.ms)
		}
	}
	return out
}

// targetTerms formats the predicted times of a candidate if there are targets.
func targetTerms(ex *Explanation, c *Candidate) string {
	if ex.Targets == (Targets{}) {
		return ""
	}
	return fmt.Sprintf(" ttft %.1f itl %.1f%s", c.TTFT, c.ITL, map[bool]string{true: " misses"}[c.Misses])
}

// term formats a value which is not 0.
func term(name string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(" %s %g", name, v)
}
