package poolindex

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the scripts in testdata. The command is always run, and a line is
//
//	new [bound=value…]                 a table
//	move AT WORKER TO [pool=N] [access=W,W] [list=W,W] BLOCK…     list: of the blocks
//	doubt AT WORKER | trust WORKER | lost WORKER | detach WORKER | tick AT | drop POOL
//	park POOL BLOCK | stored BLOCK…    the chain of blocks
//	block BLOCK | pools | stats | next
//
// Times are durations from the start, workers are ID or ID.RANK, and blocks are the names of SeqHashes: a
// chain a, ab, abc consists of the blocks a, b, c.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		var r rig
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				r.line(t, &out, strings.Fields(line))
				if r.table != nil {
					if err := r.table.Check(); err != nil {
						t.Fatalf("%s: %s: %v", d.Pos, line, err)
					}
				}
			}
			return out.String()
		})
	})
}

type rig struct{ table *Table }

func at(t *testing.T, s string) kv.Mono {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return kv.Mono(d)
}

func worker(t *testing.T, s string) kv.Worker {
	id, rank, _ := strings.Cut(s, ".")
	n, err := strconv.ParseUint(id, 10, 53)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := strconv.ParseUint("0"+rank, 10, 32)
	return kv.Worker{ID: kv.WorkerID(n), Rank: uint32(r)}
}

// block returns the SeqHash of a chain whose blocks are letters.
func block(name string) kv.SeqHash {
	var seq kv.SeqHash
	for i, c := range name {
		seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(c))
	}
	return seq
}

var states = map[string]kv.PoolState{"local": kv.LocalGPU, "transit": kv.InTransit, "pooled": kv.Pooled, "evicted": kv.Evicted}

// name returns the name of a SeqHash which the scripts use.
func name(seq kv.SeqHash) string {
	for _, n := range []string{"a", "ab", "abc", "abcd", "x", "xy", "xyz"} {
		if block(n) == seq {
			return n
		}
	}
	return fmt.Sprintf("%x", uint64(seq))
}

func (r *rig) line(t *testing.T, out *strings.Builder, f []string) {
	var effects []Effect
	switch f[0] {
	case "new":
		var cfg Config
		for _, o := range f[1:] {
			k, v, _ := strings.Cut(o, "=")
			n, _ := strconv.Atoi(v)
			switch k {
			case "capacity":
				cfg.Capacity = n
			case "blocks":
				cfg.MaxBlocks = n
			case "evicted":
				cfg.MaxEvicted = n
			case "pools":
				cfg.MaxPools = n
			default:
				t.Fatalf("unknown bound %q", k)
			}
		}
		var err error
		if r.table, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		return
	case "move":
		ev := kv.Event{Kind: kv.Moved, Move: kv.PoolMove{To: states[f[3]]}}
		for _, o := range f[4:] {
			switch k, v, isOption := strings.Cut(o, "="); {
			case !isOption:
				ev.Seqs = append(ev.Seqs, block(o))
			case k == "pool":
				n, _ := strconv.Atoi(v)
				ev.Move.Pool, ev.Move.HasPool = kv.PoolID(n), true
			case k == "access", k == "list":
				ev.Move.OfBlocks = k == "list"
				if v == "none" {
					continue
				}
				ev.Move.Access = []kv.Worker{}
				for _, w := range strings.FieldsFunc(v, func(c rune) bool { return c == ',' }) {
					ev.Move.Access = append(ev.Move.Access, worker(t, w))
				}
			}
		}
		effects = r.table.ApplyMove(at(t, f[1]), worker(t, f[2]), &ev, nil)
	case "doubt":
		effects = r.table.SuspectWorker(at(t, f[1]), worker(t, f[2]), nil)
	case "trust":
		effects = r.table.TrustWorker(worker(t, f[1]), nil)
	case "lost":
		r.table.ForgetLost(worker(t, f[1]))
	case "tick":
		effects = r.table.Tick(at(t, f[1]), nil)
	case "detach":
		effects = r.table.DetachWorker(worker(t, f[1]), nil)
	case "drop":
		n, _ := strconv.Atoi(f[1])
		effects = r.table.DropPool(kv.PoolID(n), nil)
	case "park":
		n, _ := strconv.Atoi(f[1])
		r.table.parkBlock(kv.PoolID(n), block(f[2]))
	case "stored":
		ev := kv.Event{Kind: kv.Stored}
		for _, b := range f[1] {
			ev.Blocks = append(ev.Blocks, kv.BlockHash(b))
		}
		effects = r.table.RetryParked(&ev, nil)
	case "block":
		for _, b := range r.table.AppendBlock(nil, block(f[1])) {
			fmt.Fprintf(out, "%s: pool %d %v by %d.%d since %v", f[1], b.Pool, b.State, b.Mover.ID, b.Mover.Rank, time.Duration(b.Since))
			if b.Doubt {
				fmt.Fprint(out, ", in doubt")
			}
			if b.Parked {
				fmt.Fprint(out, ", parked")
			}
			if b.Access != nil {
				fmt.Fprintf(out, ", for %v", b.Access)
			}
			fmt.Fprintln(out)
		}
		if len(r.table.AppendBlock(nil, block(f[1]))) == 0 {
			fmt.Fprintf(out, "%s: nothing\n", f[1])
		}
		return
	case "pools":
		for _, p := range r.table.AppendPools(nil) {
			fmt.Fprintf(out, "pool %d: %d pooled, access %s", p.ID, p.Pooled, access(p.AccessKnown, p.Access))
			if len(p.Attached) > 0 {
				fmt.Fprintf(out, ", attached %v", p.Attached)
			}
			fmt.Fprintln(out)
		}
		return
	case "stats":
		st := r.table.Stats()
		st.Bytes = 0
		fmt.Fprintf(out, "%+v\n", st)
		return
	case "next":
		if m, ok := r.table.Deadline(); ok {
			fmt.Fprintf(out, "next: %v\n", time.Duration(m))
		} else {
			fmt.Fprintln(out, "next: never")
		}
		return
	default:
		t.Fatalf("unknown line %q", f)
	}
	fmt.Fprintf(out, "%s:%s\n", strings.Join(f, " "), effectsOf(effects))
}

func access(said bool, ws []kv.Worker) string {
	if !said {
		return "not said"
	}
	return fmt.Sprint(ws)
}

func effectsOf(effects []Effect) string {
	var b strings.Builder
	for _, e := range effects {
		switch e.Kind {
		case Place:
			fmt.Fprintf(&b, " place in %s:", shareName(e.Pool))
		case Displace:
			fmt.Fprintf(&b, " displace from %s:", shareName(e.Pool))
		case SetAccess:
			fmt.Fprintf(&b, " access of %s: %v", shareName(e.Pool), e.Access)
		case DropPool:
			fmt.Fprintf(&b, " drop %s", shareName(e.Pool))
		}
		for _, s := range e.Seqs {
			b.WriteString(" " + name(s))
		}
		b.WriteString(";")
	}
	return strings.TrimSuffix(b.String(), ";")
}

// shareName returns POOL, or POOL/NUMBER for the blocks with an access list.
func shareName(s kv.PoolShare) string {
	if !s.IsPart() {
		return fmt.Sprint(s.Pool())
	}
	return fmt.Sprintf("%d/%d", s.Pool(), s>>32)
}
