package engineevents

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestOrphanScripts runs the golden scripts of orphans. "table block=N [engine=N] [whole]" creates the
// table of an engine which has, or with "whole" has not, served before. The lines of "do" are
//
//	sent NAME TOKENS [lora=X] [salt=X]   TOKENS are letters, each one a token
//	reported NAME N
//	grew NAME TOKENS
//	ended NAME [broken]
//	stored PARENT HASH,HASH TOKENS [lora=X] [salt=X]   PARENT "-" is none
//	removed HASH,HASH
//	cleared
//	mark
//	forget LORA                          forgets everything under an adapter from before the mark
//	name TOKENS [lora=X] [salt=X]        prints the blocks of TOKENS by their tokens
//	wait DURATION                        advances the clock, and runs what is due
//
// After each line come the events: "+" the tokens up to the end of each stored block, "-" of each removed
// one. "stats" prints the table's contents.
func TestOrphanScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/orphans", func(t *testing.T, path string) {
		var s *orphanScript
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "table":
				cfg := Config{Capacity: 100, Clears: ClearsAll, ReloadForgets: true}
				d.ScanArgs(t, "block", &cfg.BlockSize)
				d.MaybeScanArgs(t, "engine", &cfg.EngineBlockSize)
				d.MaybeScanArgs(t, "room", &cfg.Capacity)
				s = &orphanScript{Table: newTable(t, cfg), sent: map[string]uint64{}, texts: map[kv.SeqHash]string{}}
				if !d.HasArg("whole") {
					s.SetHistory(PartialHistory, nil)
				}
				return ""
			case "stats":
				st := s.Stats()
				return fmt.Sprintf("held=%d orphans=%d waiting=%d adopted=%d inferred=%d resolved=%d doubtful=%d refuted=%d exact=%v\n",
					st.Held, st.Orphans, st.Waiting, st.Adopted, st.Inferred, st.Resolved, st.Doubtful, st.Refuted, st.Known)
			case "do":
				var out strings.Builder
				for line := range strings.Lines(d.Input) {
					line = strings.TrimSpace(line)
					fmt.Fprintf(&out, "%s:%s\n", line, s.line(t, strings.Fields(line)))
				}
				return out.String()
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

type orphanScript struct {
	*Table
	sent  map[string]uint64
	texts map[kv.SeqHash]string // the last tokens of the blocks of sent prompts
	now   kv.Mono
	mark  uint64
}

func letters(text string) (tokens []kv.Token) {
	for _, c := range text {
		tokens = append(tokens, kv.Token(c))
	}
	return tokens
}

func (s *orphanScript) line(t *testing.T, f []string) string {
	var out []kv.Event
	apply := func(e Event) {
		e.Group = -1
		out = s.Apply(&Batch{Events: []Event{e}}, nil)
	}
	switch f[0] {
	case "sent":
		salt := kv.Salt{LoRA: option(f, "lora"), Namespace: option(f, "salt")}
		s.sent[f[1]] = s.RecordSent(letters(f[2]), nil, salt)
		s.name(t, f[2], salt)
	case "reported":
		n := 0
		if _, err := fmt.Sscan(f[2], &n); err != nil {
			t.Fatal(err)
		}
		out = s.RecordCached(s.sent[f[1]], n, nil)
	case "grew":
		s.RecordGenerated(s.sent[f[1]], letters(f[2]))
		p := s.requests.findRequest(s.sent[f[1]])
		var text strings.Builder
		for _, token := range p.tokens {
			text.WriteRune(rune(token))
		}
		s.name(t, text.String(), p.salt)
	case "ended":
		end := Served
		if len(f) > 2 {
			end = Broken
		}
		s.RecordEnd(s.sent[f[1]], end, s.now)
	case "stored":
		e := Event{Kind: Stored, Salt: option(f, "salt"), LoRA: option(f, "lora"), Tokens: letters(f[3]), BlockSize: s.cfg.EngineBlockSize, Hashes: scriptHashes(t, f[2])}
		if f[1] != "-" {
			e.HasParent, e.Parent = true, scriptHashes(t, f[1])[0]
		}
		apply(e)
	case "mark":
		s.mark = s.ArrivalMark()
	case "forget":
		out = s.ForgetAdapter(f[1], s.mark, nil)
	case "name":
		s.name(t, f[1], kv.Salt{LoRA: option(f, "lora"), Namespace: option(f, "salt")})
	case "removed":
		apply(Event{Kind: Removed, Hashes: scriptHashes(t, f[1])})
	case "cleared":
		apply(Event{Kind: Cleared})
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(d)
	default:
		t.Fatalf("unknown line %q", f)
	}
	if at, due := s.NextResolve(); !due || at <= s.now || f[0] == "stored" {
		out = s.ResolveHashes(s.now, out)
	}
	for _, err := range []error{s.inferred.check(), s.orphans.check(), s.roots.check(s.Table)} {
		if err != nil {
			t.Error(err)
		}
	}
	return s.print(out)
}

// option returns the value of an option of a line, "" if absent.
func option(f []string, name string) string {
	for _, opt := range f {
		if value, found := strings.CutPrefix(opt, name+"="); found {
			return value
		}
	}
	return ""
}

func scriptHashes(t *testing.T, text string) (all []kv.EngineHash) {
	for name := range strings.SplitSeq(text, ",") {
		var h uint64
		if _, err := fmt.Sscan(name, &h); err != nil {
			t.Fatal(err)
		}
		all = append(all, kv.EngineHash(h))
	}
	return all
}

// name records the blocks of a text.
func (s *orphanScript) name(t *testing.T, text string, salt kv.Salt) {
	h, err := kv.NewHasher(s.cfg.BlockSize, salt)
	if err != nil {
		t.Fatal(err)
	}
	for i, seq := range h.AppendSeqHashes(nil, letters(text), nil) {
		s.texts[seq] = text[:(i+1)*s.cfg.BlockSize]
	}
}

func (s *orphanScript) print(events []kv.Event) string {
	var out []string
	text := func(sign string, seq kv.SeqHash) {
		known := s.texts[seq]
		if known == "" {
			known = "?"
		}
		out = append(out, sign+known)
	}
	for _, ev := range events {
		switch ev.Kind {
		case kv.Cleared:
			out = append(out, "cleared")
		case kv.Stored:
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				text("+", seq)
			}
		default:
			gone := slices.Clone(ev.Seqs)
			for _, seq := range gone {
				text("-", seq)
			}
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " " + strings.Join(out, " ")
}
