package engineevents_test

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"penstock/core/engineevents"
	"penstock/core/kv"
)

// The directories of testdata/captured hold what real engines published while they served the requests in
// the files (test/interop/engines/capture.py). The engines' own reports of cached tokens are the oracle:
// they must follow from the earlier events.

// capture is one scenario: the requests, in order, and the messages.
type capture struct {
	Engine    string
	Version   string
	Scenario  string
	BlockSize int `json:"block_size"`
	Asked     []request
	Frames    [][][]byte // live messages: topic, number, batch
	Replayed  [][][]byte // answers to a request for the batches from recordedFrom on
}

// request is one answered prompt.
type request struct {
	Model     string
	Salt      string
	Prompt    []kv.Token
	Generated []kv.Token
	// CachedTokens is the number of tokens which the engine reported as reused. Old versions omit it if it
	// is zero.
	CachedTokens *int `json:"cached_tokens"`
}

func load(t *testing.T, dir, scenario string) capture {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, scenario+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var c capture
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatalf("%s: %v", scenario, err)
	}
	if c.Scenario != scenario || c.BlockSize == 0 || len(c.Frames)+len(c.Replayed)+len(c.Asked) == 0 {
		t.Fatalf("%s: not a recording of it", scenario)
	}
	return c
}

// chain hashes the full blocks of tokens as requests are hashed.
func (r request) chain(t *testing.T, blockSize int, tokens []kv.Token) []kv.SeqHash {
	t.Helper()
	salt := kv.Salt{Namespace: r.Salt}
	if r.Model != "tiny" {
		salt.LoRA = r.Model
	}
	h, err := kv.NewHasher(blockSize, salt)
	if err != nil {
		t.Fatal(err)
	}
	return h.AppendSeqHashes(nil, tokens, nil)
}

// computed returns the tokens whose keys and values the engine has after r: all except the last sampled
// one.
func (r request) computed() []kv.Token {
	return append(slices.Clone(r.Prompt), r.Generated[:len(r.Generated)-1]...)
}

// listener is a table, and the state of a consumer of its events.
type listener struct {
	t     *testing.T
	table *engineevents.Table
	size  int
	known map[kv.SeqHash]bool
	dec   engineevents.Decoder
	batch engineevents.Batch

	strange int // removals of unknown blocks
}

func newListener(t *testing.T, blockSize int) *listener {
	t.Helper()
	table, err := engineevents.NewTable(engineevents.Config{BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	return &listener{t: t, table: table, size: blockSize, known: make(map[kv.SeqHash]bool)}
}

func (l *listener) hear(events []kv.Event) {
	l.t.Helper()
	for _, e := range events {
		switch e.Kind {
		case kv.Stored:
			seq := e.Parent
			for i, b := range e.Blocks {
				seq = kv.ExtendSeq(seq, e.Start+uint32(i), b)
				l.known[seq] = true
			}
		case kv.Removed:
			for _, seq := range e.Seqs {
				if !l.known[seq] {
					l.strange++
				}
				delete(l.known, seq)
			}
		case kv.Cleared:
			clear(l.known)
		}
	}
}

func (l *listener) apply(payload []byte) {
	l.t.Helper()
	if err := l.dec.Decode(payload, &l.batch); err != nil {
		l.t.Fatal(err)
	}
	if l.batch.Unknown+l.batch.Skipped+l.batch.Lost != 0 {
		l.t.Errorf("not understood: %d unknown, %d skipped, %d lost", l.batch.Unknown, l.batch.Skipped, l.batch.Lost)
	}
	if l.batch.Rank != 0 {
		l.t.Errorf("rank %d, want 0", l.batch.Rank)
	}
	l.hear(l.table.Apply(&l.batch, nil))
}

// predicted returns how many tokens of r's prompt the engine will reuse: its leading known full blocks,
// without the block of the last token.
func (l *listener) predicted(r request) int {
	n := 0
	for _, seq := range r.chain(l.t, l.size, r.Prompt[:len(r.Prompt)-1]) {
		if !l.known[seq] {
			break
		}
		n += l.size
	}
	return n
}

func (l *listener) holds(r request, tokens []kv.Token) bool {
	return !slices.ContainsFunc(r.chain(l.t, l.size, tokens), func(s kv.SeqHash) bool { return !l.known[s] })
}

// play applies a scenario's messages. Before them, the engine's report for each request must equal the
// prediction.
func (l *listener) play(c capture) {
	l.t.Helper()
	for i, r := range c.Asked {
		if c.Scenario == "twice" {
			break // nothing is reported for two at once
		}
		reported := 0
		if r.CachedTokens != nil {
			reported = *r.CachedTokens
		}
		// A restarted engine has nothing cached, and announces it only with its first message.
		if got := l.predicted(r); got != reported && c.Scenario != "restart" && c.Scenario != "reset" {
			l.t.Errorf("%s: request %d: predicted %d cached tokens, the engine reported %d", c.Scenario, i, got, reported)
		}
	}
	for _, r := range c.Asked {
		if r.Salt != "" {
			l.table.RecordSalted(r.Prompt)
		}
	}
	for _, frames := range c.Frames {
		l.apply(frames[len(frames)-1])
	}
}

// engines runs f for each recorded engine.
func engines(t *testing.T, f func(t *testing.T, dir string)) {
	dirs, err := filepath.Glob("testdata/captured/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) { f(t, dir) })
	}
}

// saltless is the recorded engine which does not report cache salts: its salted blocks look unsalted, and
// are not hashed here.
const saltless = "vllm-0.16.0"

// recordedFrom is the first batch requested in the recorded replays.
const recordedFrom = 4

// blocksOfEngine is how many blocks the recorded engines had; one is never used.
const blocksOfEngine = 24

func TestCapturedEventsSayWhatIsCached(t *testing.T) {
	engines(t, func(t *testing.T, dir string) {
		cold := load(t, dir, "cold")
		l := newListener(t, cold.BlockSize)

		l.play(cold)
		want := make(map[kv.SeqHash]bool)
		for _, r := range cold.Asked {
			for _, seq := range r.chain(t, l.size, r.computed()) {
				want[seq] = true
			}
		}
		if !maps.Equal(l.known, want) {
			t.Fatalf("after a cold prompt %d blocks are known, want the %d of the prompt and the answer", len(l.known), len(want))
		}

		hot := load(t, dir, "hot")
		if l.play(hot); *hot.Asked[0].CachedTokens == 0 || len(hot.Frames) != 0 {
			t.Errorf("a hot prompt: %d tokens reused, %d messages", *hot.Asked[0].CachedTokens, len(hot.Frames))
		}
		for _, name := range []string{"longer", "salt", "twice"} {
			c := load(t, dir, name)
			l.play(c)
			for i, r := range c.Asked {
				if told := r.Salt == "" || filepath.Base(dir) != saltless; l.holds(r, r.computed()) != told {
					t.Errorf("%s: blocks of request %d: known %v, want %v", name, i, !told, told)
				}
			}
		}
		if got := l.table.Stats().Duplicates; got == 0 {
			t.Error("two equal answers at once: no block was announced twice")
		}

		eviction := load(t, dir, "eviction")
		l.play(eviction)
		last := eviction.Asked[len(eviction.Asked)-1]
		if first := cold.Asked[len(cold.Asked)-1]; l.predicted(first) != 0 {
			t.Error("the oldest prompt is still known")
		}
		if !l.holds(last, last.computed()) {
			t.Error("the newest prompt is not known")
		}
		if len(l.known) >= blocksOfEngine || len(l.known) < blocksOfEngine/2 {
			t.Errorf("%d blocks are known of an engine with %d, which is full", len(l.known), blocksOfEngine)
		}

		reset := load(t, dir, "reset")
		l.play(reset)
		r := reset.Asked[0]
		if blocks := len(r.chain(t, l.size, r.computed())); !l.holds(r, r.computed()) || len(l.known) != blocks {
			t.Errorf("after a reset and one prompt %d blocks are known, want its %d", len(l.known), blocks)
		}

		old := filepath.Base(dir) == saltless
		if l.strange != 0 {
			t.Errorf("%d blocks were removed that were not known", l.strange)
		}
		s := l.table.Stats()
		if (s.Nameless != 0) != old || (l.table.SuppressedBySalt() != 0) != old {
			t.Errorf("%d blocks have no name, %d because of salts", s.Nameless, l.table.SuppressedBySalt())
		}
		left := s.Orphans + s.OtherGroup + s.Misaligned + s.Partial + s.OtherBlockSize + s.Pairs + s.Tokenless + s.Refused
		if left+s.UnknownRemoved+s.UnknownMedium+s.UnknownEvents+s.SkippedEvents+s.DamagedBatches != 0 {
			t.Errorf("not all was taken in: %+v", s)
		}
	})
}

func TestCapturedKeysAndHashes(t *testing.T) {
	engines(t, func(t *testing.T, dir string) {
		for _, name := range []string{"adapter", "binary"} {
			if _, err := os.Stat(filepath.Join(dir, name+".json")); err != nil {
				t.Logf("%s was not recorded: this version could not do it", name)
				continue
			}
			c := load(t, dir, name)
			l := newListener(t, c.BlockSize)
			l.play(c)
			for i, r := range c.Asked {
				if !l.holds(r, r.computed()) {
					t.Errorf("%s: blocks of request %d (model %s) are not known", name, i, r.Model)
				}
			}
		}
	})
}

// follower applies a Machine's effects to a listener.
type follower struct {
	*listener
	machine *engineevents.Machine
	now     kv.Mono
	asked   []engineevents.Effect
	forgot  []engineevents.ForgetReason
}

func (f *follower) do(effects []engineevents.Effect) {
	f.t.Helper()
	for _, e := range effects {
		switch e.Kind {
		case engineevents.Apply:
			f.apply(e.Payload)
		case engineevents.Forget:
			f.forgot = append(f.forgot, e.Reason)
			f.hear(f.table.Clear(nil))
		case engineevents.Ask:
			f.asked = append(f.asked, e)
		}
	}
	if err := f.machine.Check(); err != nil {
		f.t.Error(err)
	}
}

func (f *follower) live(frames [][][]byte) {
	f.t.Helper()
	for _, message := range frames {
		f.now++
		f.do(f.machine.HandleLive(f.now, message, nil))
	}
}

func TestCapturedRepairAndRestart(t *testing.T) {
	engines(t, func(t *testing.T, dir string) {
		answers := load(t, dir, "replay").Replayed
		end := answers[len(answers)-1]
		straight := newListener(t, load(t, dir, "cold").BlockSize)
		f := &follower{listener: newListener(t, straight.size), machine: engineevents.NewMachine(engineevents.MachineConfig{Replay: engineevents.HasReplay})}
		f.do(f.machine.Connected(f.now, nil))
		for _, e := range f.asked { // the engine has published nothing
			f.do(f.machine.HandleReplay(f.now, e.Attempt, end, nil))
		}
		f.asked = nil

		for _, name := range []string{"cold", "hot", "longer", "salt", "twice", "eviction", "reset"} {
			c := load(t, dir, name)
			for _, m := range c.Frames {
				straight.apply(m[len(m)-1])
			}
			if name != "eviction" { // its messages are lost
				f.live(c.Frames)
			}
		}
		if len(f.asked) != 1 || f.asked[0].From < recordedFrom {
			t.Fatalf("after a gap the machine asked %+v, want once, of what was recorded", f.asked)
		}
		if maps.Equal(f.known, straight.known) {
			t.Fatal("the lost messages make no difference: this recording is of no use")
		}
		for _, a := range answers {
			if binary.BigEndian.Uint64(a[len(a)-2]) < f.asked[0].From {
				continue // the engine would not have sent it
			}
			f.do(f.machine.HandleReplay(f.now, f.asked[0].Attempt, a, nil))
		}
		if !maps.Equal(f.known, straight.known) {
			t.Errorf("after the repair %d blocks are known, without the loss %d", len(f.known), len(straight.known))
		}
		if h := f.machine.Health(); h.Repaired == 0 || h.Unrepaired != 0 || h.Malformed != 0 || len(f.forgot) != 0 {
			t.Errorf("the repair: %+v, forgot %v", h, f.forgot)
		}

		restart := load(t, dir, "restart")
		f.asked = nil
		f.live(restart.Frames)
		for _, e := range f.asked {
			// Its buffer has only the batches of this epoch, in the framing of this version.
			for _, m := range restart.Frames {
				answer := append([][]byte{}, m[1:]...)
				if len(end) == 4 {
					answer = m
				}
				f.do(f.machine.HandleReplay(f.now, e.Attempt, append([][]byte{nil}, answer...), nil))
			}
			f.do(f.machine.HandleReplay(f.now, e.Attempt, end, nil))
		}
		if len(f.forgot) == 0 || f.forgot[len(f.forgot)-1] != engineevents.Restarted {
			t.Errorf("the engine was restarted, and what was forgotten is %v", f.forgot)
		}
		r := restart.Asked[len(restart.Asked)-1]
		if blocks := len(r.chain(t, f.size, r.computed())); !f.holds(r, r.computed()) || len(f.known) != blocks {
			t.Errorf("after the restart %d blocks are known, want the %d of its prompt", len(f.known), blocks)
		}
	})
}
