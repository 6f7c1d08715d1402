package engineevents

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"penstock/core/kv"
)

// fixture is testdata/*/want.json, which tools/fixtures/make_engine_events.py writes.
type fixture struct {
	Block   int
	Batches []struct {
		Name    string
		Time    float64
		Rank    int
		Unknown int
		Events  []fixtureEvent
	}
	Cached []struct {
		Tokens  []kv.Token
		Blocks  int
		Tier    string
		LoRA    string
		Salt    string
		Media   [][3]any
		Without []int
	}
}

type fixtureEvent struct {
	Kind       string
	Hashes     []string
	Parent     string
	Tokens     []kv.Token
	Size       int
	Medium     string
	Tier       string
	LoRA       string
	LoRAID     *int64 `json:"lora_id"`
	Salt       string
	Extra      [][]any
	Group      *int
	Spec       string
	Pairs      bool
	Odd        bool
	Everywhere bool
}

// TestFixtures: the batches of each dialect decode as the script which made them says, and leave its
// prompts in the table.
func TestFixtures(t *testing.T) {
	dirs, err := filepath.Glob("testdata/*/want.json")
	if err != nil || len(dirs) < 8 {
		t.Fatalf("%d dialects: %v", len(dirs), err)
	}
	for _, file := range dirs {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var f fixture
			if err := json.Unmarshal(raw, &f); err != nil {
				t.Fatal(err)
			}
			feed, err := os.ReadFile(filepath.Join(dir, "feed.txt"))
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(string(feed)), "\n")
			if len(lines) != len(f.Batches) {
				t.Fatalf("%d batches, %d are described", len(lines), len(f.Batches))
			}
			table := newTable(t, Config{BlockSize: f.Block})
			follow := follower{tierPrefixes: tierPrefixes{}, t: t}
			pull := PullDecoder{BlockSize: f.Block}
			var dec Decoder
			var b Batch
			for i, line := range lines {
				name, text, _ := strings.Cut(line, " ")
				w := &f.Batches[i]
				if strings.HasPrefix(text, "[") {
					lost, err := pull.Decode([]byte(text), &b)
					if err != nil || lost {
						t.Fatalf("%s: lost is %v, error %v", name, lost, err)
					}
				} else {
					payload, err := hex.DecodeString(text)
					if err != nil {
						t.Fatal(err)
					}
					if err := dec.Decode(payload, &b); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
				want := Batch{Time: w.Time, Rank: w.Rank, Unknown: w.Unknown}
				for j := range w.Events {
					want.Events = append(want.Events, w.Events[j].event(t))
				}
				if diff := sameBatch(&b, &want); name != w.Name || diff != "" {
					t.Fatalf("%s, as %s: %s", name, w.Name, diff)
				}
				follow.apply(table.Apply(&b, nil))
			}
			if got, want := follow.tierPrefixes, f.cached(t); !got.same(want) {
				t.Errorf("told of\n%v, cached is\n%v; %+v", got, want, table.Stats())
			}
			if err := table.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func (f *fixtureEvent) event(t *testing.T) Event {
	e := Event{
		Kind: map[string]ChangeKind{"stored": Stored, "removed": Removed, "cleared": Cleared}[f.Kind], Tokens: f.Tokens, BlockSize: f.Size, Medium: f.Medium,
		Tier: tierNamed(f.Tier), LoRA: f.LoRA, Salt: f.Salt, Group: -1, Spec: f.Spec, Bigrams: f.Pairs, InvalidTokens: f.Odd, AllTiers: f.Everywhere,
	}
	for _, h := range f.Hashes {
		e.Hashes = append(e.Hashes, engineHash(t, h))
	}
	if f.Parent != "" {
		e.Parent, e.HasParent = engineHash(t, f.Parent), true
	}
	if f.LoRAID != nil {
		e.LoRAID, e.HasLoRAID = *f.LoRAID, true
	}
	if f.Group != nil {
		e.Group = *f.Group
	}
	for _, block := range f.Extra {
		var x Extra
		for _, key := range block {
			switch key := key.(type) {
			case string:
				x.Keys = append(x.Keys, ExtraKey{Kind: KeyText, Text: []byte(key)})
			case []any:
				x.Keys = append(x.Keys, ExtraKey{Kind: KeyMedia, Text: []byte(key[0].(string)), Offset: int64(key[1].(float64))})
			default:
				x.Keys = append(x.Keys, ExtraKey{Kind: KeyOpaque})
			}
		}
		e.Extra = append(e.Extra, x)
	}
	return e
}

func engineHash(t *testing.T, s string) kv.EngineHash {
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kv.EngineHash(u)
}

func tierNamed(s string) kv.Tier {
	for tier := range kv.Tier(kv.Tiers) {
		if s == tier.String() {
			return tier
		}
	}
	return kv.TierDevice
}

// cached returns the prefixes which a router would look up.
func (f *fixture) cached(t *testing.T) tierPrefixes {
	w := tierPrefixes{}
	for _, c := range f.Cached {
		h, err := kv.NewHasher(f.Block, kv.Salt{LoRA: c.LoRA, Namespace: c.Salt})
		if err != nil {
			t.Fatal(err)
		}
		var media []kv.Media
		for _, m := range c.Media {
			hash, _ := kv.MediaHash(fmt.Sprint(m[0]))
			media = append(media, kv.Media{Hash: hash, Start: int(m[1].(float64)), End: int(m[2].(float64))})
		}
		without := map[int]bool{}
		for _, i := range c.Without {
			without[i] = true
		}
		for i, seq := range h.AppendSeqHashes(nil, c.Tokens, media)[:c.Blocks] {
			if !without[i] {
				w.add(tierNamed(c.Tier), seq)
			}
		}
	}
	return w
}
