package paged

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"penstock/core/fault"
	"penstock/core/kv"
)

// TestScripts runs testdata: the specification of the scheduler by example. All invariants are checked
// after each of these commands:
//
//	new blocks=N size=N seqs=N budget=N context=N waiting=N [reuse=off] [chunking=off] [remote=all]
//	add id=N tokens=1-4,9 [prompt=N] [lora=S] [ns=S] [media=hash:start-end,…] [unfinished=start-end,…] [reopens] [transfer=N] [late] [hold]
//	finish id=N range=N  finish an unfinished range, by its index
//	import id=N end=N    write and import tokens up to end
//	local id=N           end a transfer without its tokens
//	table id=N           tokens which are computed, and the block table
//	reopen id=N       make all ranges of a waiting sequence unfinished again
//	step              plan a batch; prints id, start+tokens, block table
//	commit [noBlock] [ID=TOKEN…]  each sampled sequence gets 100*id + outputs so far
//	run n=N           step and commit, N times
//	remove id=N
//	clear
//	events | dump | stats | states | queues | blocks | transfers
//
// Prefixes are printed as the tokens of their blocks, "1-4/5-8", and a block after the one before it as
// "/5-8".
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		d := &scripted{t: t, names: map[kv.SeqHash]string{}}
		datadriven.RunTest(t, path, d.run)
	})
}

// everything is remote memory with all blocks.
type everything struct{}

func (everything) Has(kv.SeqHash) bool { return true }

type scripted struct {
	t     *testing.T
	rig   *rig
	names map[kv.SeqHash]string // of prefixes
}

func (d *scripted) run(t *testing.T, cmd *datadriven.TestData) string {
	if cmd.Cmd == "new" {
		return d.create(cmd)
	}
	out, err := d.do(cmd)
	if err != nil {
		d.t.Fatalf("%s: %s: %v", cmd.Pos, cmd.Cmd, err)
	}
	if out == "" {
		out = "ok\n"
	}
	return out
}

func (d *scripted) create(cmd *datadriven.TestData) string {
	cfg := Config{BlockSize: 4, MaxSeqs: 8, TokenBudget: 64, MaxContext: 64, MaxWaiting: 8}
	for _, a := range cmd.CmdArgs {
		switch v := a.Vals[0]; a.Key {
		case "reuse":
			cfg.Reuse = Off
		case "chunking":
			cfg.Chunking = Off
		case "remote":
			cfg.Remote = everything{}
		default:
			n, err := strconv.Atoi(v)
			if err != nil {
				d.t.Fatalf("%s: %v", cmd.Pos, err)
			}
			*map[string]*int{
				"blocks": &cfg.Blocks, "size": &cfg.BlockSize, "seqs": &cfg.MaxSeqs,
				"budget": &cfg.TokenBudget, "context": &cfg.MaxContext, "waiting": &cfg.MaxWaiting,
			}[a.Key] = n
		}
	}
	r, err := newRig(cfg)
	if err != nil {
		return err.Error() + "\n"
	}
	d.rig = r
	return "ok\n"
}

func (d *scripted) do(cmd *datadriven.TestData) (string, error) {
	r := d.rig
	switch cmd.Cmd {
	case "add":
		return d.add(cmd)
	case "remove":
		return "", r.remove(d.id(cmd))
	case "finish":
		var index int
		cmd.ScanArgs(d.t, "range", &index)
		if d.isFinished(d.id(cmd), index) {
			return "nothing to finish\n", r.finish(d.id(cmd), index)
		}
		return "", r.finish(d.id(cmd), index)
	case "import":
		var end int
		cmd.ScanArgs(d.t, "end", &end)
		if q := r.twin.find(d.id(cmd)); !r.twin.imports(q, end) {
			return "nothing to import\n", r.importTokens(d.id(cmd), end)
		}
		err := r.importTokens(d.id(cmd), end)
		for _, q := range r.seqs {
			d.name(q)
		}
		return "", err
	case "local":
		if q := r.s.byID[d.id(cmd)]; q == nil || !q.awaitsTransfer() {
			return "awaits no transfer\n", r.finishTransfer(d.id(cmd))
		}
		return "", r.finishTransfer(d.id(cmd))
	case "table":
		ready, blocks := r.s.SequenceBlocks(d.id(cmd))
		return fmt.Sprintf("%d in %v\n", ready, blocks), nil
	case "transfers":
		st := r.s.Stats()
		return fmt.Sprintf("encoding %d, held %d; prefill %d\nprompt %d, hit %d, imported %d, computed %d\n",
			st.Encoding, st.Held, st.PrefillTokens, st.PromptTokens, st.CachedTokens, st.ImportedTokens, st.ComputedTokens), nil
	case "reopen":
		if q := r.s.byID[d.id(cmd)]; q == nil || q.queue != inWaiting || !q.partial.reopens() {
			return "nothing to reopen\n", r.reopen(d.id(cmd))
		}
		return "", r.reopen(d.id(cmd))
	case "step":
		return d.step()
	case "commit":
		return "", d.commit(cmd.CmdArgs)
	case "run":
		var n int
		cmd.ScanArgs(d.t, "n", &n)
		var all strings.Builder
		for range n {
			out, err := d.step()
			if err != nil {
				return "", err
			}
			if err := d.commit(nil); err != nil {
				return "", err
			}
			all.WriteString(out)
		}
		return all.String(), nil
	case "clear":
		return "", r.clear()
	case "events":
		events := r.s.AppendEvents(nil)
		r.twin.events = nil
		return d.events(events), replay(r.replica, events, nil)
	case "dump":
		events := r.s.AppendDump(nil)
		set := map[kv.SeqHash]bool{}
		if err := replay(set, events, nil); err != nil {
			return "", err
		}
		return d.events(events), r.same(set)
	case "stats":
		st := r.s.Stats()
		return fmt.Sprintf("running %d, waiting %d; used %d, cached %d, free %d; prefill %d\nprompt %d, hit %d; preempted %d, evicted %d, collided %d\n",
			st.Running, st.Waiting, st.UsedBlocks, st.CachedBlocks, st.FreeBlocks, st.PrefillTokens,
			st.PromptTokens, st.CachedTokens, st.Preemptions, st.Evictions, st.Collisions), nil
	case "states":
		st := r.s.Stats()
		return fmt.Sprintf("running %d, waiting %d; encoding %d, active %d; used %d, reserved %d\n",
			st.Running, st.Waiting, st.Encoding, st.Active, st.UsedBlocks, st.ReservedBlocks), nil
	case "queues":
		out := fmt.Sprintf("running %v\nwaiting %v\n", ids(&r.s.running), ids(&r.s.waiting))
		if r.s.paused.len > 0 {
			out += fmt.Sprintf("paused %v\n", ids(&r.s.paused))
		}
		if r.s.held.len > 0 {
			out += fmt.Sprintf("held %v\n", ids(&r.s.held))
		}
		return out, nil
	case "blocks":
		return d.blocks(), nil
	}
	return "", fmt.Errorf("unknown command")
}

func (d *scripted) add(cmd *datadriven.TestData) (string, error) {
	seq := Sequence{ID: d.id(cmd)}
	for _, a := range cmd.CmdArgs {
		switch a.Key {
		case "tokens":
			for _, v := range a.Vals {
				from, to := d.span(v)
				for t := from; t <= to; t++ {
					seq.Tokens = append(seq.Tokens, kv.Token(t))
				}
			}
		case "prompt":
			cmd.ScanArgs(d.t, "prompt", &seq.Prompt)
		case "reuse":
			seq.Reuse = Off
		case "lora":
			seq.Salt.LoRA = a.Vals[0]
		case "ns":
			seq.Salt.Namespace = a.Vals[0]
		case "unfinished":
			for _, v := range a.Vals {
				from, to := d.span(v)
				seq.Unfinished = append(seq.Unfinished, TokenRange{from, to})
			}
		case "reopens":
			seq.Reopens = true
		case "transfer":
			cmd.ScanArgs(d.t, "transfer", &seq.TransferEnd)
		case "late":
			seq.LateTransfer = true
		case "hold":
			seq.Hold = true
		case "media":
			for _, v := range a.Vals {
				hash, span, _ := strings.Cut(v, ":")
				h, err := strconv.ParseUint(hash, 10, 64)
				if err != nil {
					return "", err
				}
				from, to := d.span(span)
				seq.Media = append(seq.Media, kv.Media{Hash: h, Start: from, End: to})
			}
		}
	}
	if !cmd.HasArg("prompt") {
		seq.Prompt = len(seq.Tokens)
	}
	_, known := d.rig.seqs[seq.ID]
	if err := d.rig.add(seq); err != nil {
		return "", err
	}
	if _, ok := d.rig.seqs[seq.ID]; !ok || known {
		err := d.rig.s.AddSequence(seq)
		return fmt.Sprintf("%v: %v\n", fault.CodeOf(err), err), nil
	}
	return "", nil
}

// isFinished says whether a sequence has no such range which is unfinished.
func (d *scripted) isFinished(id SeqID, index int) bool {
	q := d.rig.s.byID[id]
	return q == nil || !q.partial.isUnfinished(index)
}

func (d *scripted) step() (string, error) {
	r := d.rig
	if err := r.plan(); err != nil {
		return "", err
	}
	var out strings.Builder
	for _, w := range r.step.Work {
		fmt.Fprintf(&out, "%d: %d+%d in ", w.ID, w.Start, len(w.Tokens))
		if len(w.Blocks) > 50 {
			fmt.Fprintf(&out, "%d blocks", len(w.Blocks))
		} else {
			fmt.Fprint(&out, w.Blocks)
		}
		if w.Cached > 0 {
			fmt.Fprintf(&out, " hit %d", w.Cached)
		}
		if w.Fetched > 0 {
			fmt.Fprintf(&out, " fetch %d", w.Fetched)
		}
		if w.Sample {
			out.WriteString(" sample")
		}
		out.WriteByte('\n')
	}
	for _, v := range r.step.Reserved {
		fmt.Fprintf(&out, "%d: reserved, %d ready\n", v.ID, v.Ready)
	}
	for _, id := range r.step.Preempted {
		fmt.Fprintf(&out, "%d: preempted\n", id)
	}
	for _, v := range r.step.PassedOver {
		fmt.Fprintf(&out, "%d: passed over, %d ready\n", v.ID, v.Ready)
	}
	for _, id := range r.step.Failed {
		fmt.Fprintf(&out, "%d: failed\n", id)
	}
	if out.Len() == 0 {
		out.WriteString("nothing to do\n")
	}
	return out.String(), nil
}

func (d *scripted) commit(args []datadriven.CmdArg) error {
	r := d.rig
	var sampled []SampledToken
	if r.planned {
		if err := r.compute(); err != nil {
			return err
		}
		for _, w := range r.step.Work {
			q, live := r.seqs[w.ID]
			if w.Sample && live && len(args) == 0 {
				sampled = append(sampled, SampledToken{w.ID, kv.Token(100*int(w.ID) + len(q.Tokens) - q.Prompt)})
			}
		}
	}
	for _, a := range args {
		if a.Key == "none" {
			continue
		}
		id, _ := d.span(a.Key)
		token, _ := d.span(a.Vals[0])
		sampled = append(sampled, SampledToken{SeqID(id), kv.Token(token)})
	}
	if err := r.commit(sampled); err != nil {
		return err
	}
	for _, q := range r.seqs {
		d.name(q)
	}
	return nil
}

// name records the hashes of a sequence's prefixes.
func (d *scripted) name(q *Sequence) {
	size := d.rig.s.cfg.BlockSize
	h, err := kv.NewHasher(size, q.Salt)
	if err != nil {
		d.t.Fatal(err)
	}
	path := ""
	for i, seq := range h.AppendSeqHashes(nil, q.Tokens, q.Media) {
		if i > 0 {
			path += "/"
		}
		path += short(q.Tokens[i*size : (i+1)*size])
		name := path
		if q.Salt != (kv.Salt{}) {
			name = q.Salt.LoRA + ":" + q.Salt.Namespace + ":" + path
		}
		for _, m := range q.Media {
			if m.Start < (i+1)*size {
				name += fmt.Sprintf("+%d", m.Hash)
			}
		}
		d.names[seq] = name
	}
}

func (d *scripted) events(events []kv.Event) string {
	var out strings.Builder
	for _, e := range events {
		fmt.Fprint(&out, e.Kind)
		parent := e.Parent
		if e.Start > 0 {
			fmt.Fprintf(&out, " at %d after %s:", e.Start, d.names[parent])
		}
		for i, b := range e.Blocks {
			parent = kv.ExtendSeq(parent, e.Start+uint32(i), b)
			name := d.names[parent]
			if e.Start > 0 || i > 0 {
				name = name[strings.LastIndexByte(name, '/'):]
			}
			fmt.Fprintf(&out, " %s", name)
		}
		for _, seq := range e.Seqs {
			fmt.Fprintf(&out, " %s", d.names[seq])
		}
		out.WriteByte('\n')
	}
	if out.Len() == 0 {
		return "none\n"
	}
	return out.String()
}

// blocks prints every physical block used so far, with its holders and its state.
func (d *scripted) blocks() string {
	var out strings.Builder
	p := &d.rig.s.pool
	for b := range p.blocks {
		fmt.Fprintf(&out, "%d:", b)
		switch blk := &p.blocks[b]; blk.state {
		case stateFree:
			out.WriteString(" free")
		case statePrivate:
			fmt.Fprintf(&out, " private of %v", d.holders(int32(b)))
		case stateRegistered:
			fmt.Fprintf(&out, " %s of %v", d.names[blk.seq], d.holders(int32(b)))
		}
		out.WriteByte('\n')
	}
	var order []int32
	for b := p.oldest; b != noBlock; b = p.blocks[b].next {
		order = append(order, b)
	}
	fmt.Fprintf(&out, "evict next: %v\n", order)
	return out.String()
}

func (d *scripted) holders(b int32) (all []SeqID) {
	for _, q := range d.rig.s.holders() {
		if slices.Contains(q.blocks, b) {
			all = append(all, q.id)
		}
	}
	return all
}

func (d *scripted) id(cmd *datadriven.TestData) SeqID {
	var id int
	cmd.ScanArgs(d.t, "id", &id)
	return SeqID(id)
}

// span parses "3-7" or "3".
func (d *scripted) span(v string) (from, to int) {
	a, b, ok := strings.Cut(v, "-")
	if !ok {
		b = a
	}
	var err error
	if from, err = strconv.Atoi(a); err == nil {
		to, err = strconv.Atoi(b)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return from, to
}

func ids(l *sequenceQueue) []SeqID {
	all := []SeqID{}
	for q := l.head; q != nil; q = q.next {
		all = append(all, q.id)
	}
	return all
}

// short writes runs of tokens as ranges.
func short(tokens []kv.Token) string {
	var parts []string
	for i := 0; i < len(tokens); {
		j := i + 1
		for j < len(tokens) && tokens[j] == tokens[j-1]+1 {
			j++
		}
		if j-i > 1 {
			parts = append(parts, fmt.Sprintf("%d-%d", tokens[i], tokens[j-1]))
		} else {
			parts = append(parts, fmt.Sprint(tokens[i]))
		}
		i = j
	}
	return strings.Join(parts, ",")
}
