package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// cardOf returns a small valid card.
func cardOf(name string, context int) engine.Card {
	return engine.Card{Name: name, BlockSize: 4, Ranks: 1, ContextLength: context, VocabSize: 100}
}

func instanceOf(t testing.TB, id kv.WorkerID, card engine.Card) disco.Instance {
	t.Helper()
	meta, err := engine.EncodeCard(card)
	if err != nil {
		t.Fatal(err)
	}
	return disco.Instance{Kind: KindOf(card.Role), ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Host: fmt.Sprint("h", id), Meta: meta}
}

// check verifies what holds of every snapshot.
func (s *Snapshot) check() error {
	placed := map[*Worker]*Model{}
	for i, m := range s.Models {
		if i > 0 && s.Models[i-1].Card.Name >= m.Card.Name {
			return fmt.Errorf("model %s is listed after %s", m.Card.Name, s.Models[i-1].Card.Name)
		}
		if s.Find(m.Card.Name) != m {
			return fmt.Errorf("the name %s does not find its model", m.Card.Name)
		}
		for i, w := range m.Workers {
			switch {
			case w.Problem != "" || w.Unfit != "" || s.Worker(w.ID) != w:
				return fmt.Errorf("model %s has the unusable worker %d", m.Card.Name, w.ID)
			case !w.Card.Role.TakesRequests():
				return fmt.Errorf("requests for %s go to worker %d of role %s", m.Card.Name, w.ID, w.Card.Role)
			case w.Checksum != m.Checksum || w.Checksum != w.Card.Checksum():
				return fmt.Errorf("model %s has worker %d of another card", m.Card.Name, w.ID)
			case i > 0 && m.Workers[i-1].ID >= w.ID:
				return fmt.Errorf("the workers of %s are not ascending", m.Card.Name)
			case m.Parent != "" && !w.Card.ServesAdapter(m.Card.Name):
				return fmt.Errorf("worker %d does not serve the adapter %s", w.ID, m.Card.Name)
			}
			if m.Parent == "" {
				placed[w] = m
			}
		}
		for role, list := range map[engine.Role][]*Worker{engine.RolePrefill: m.PrefillWorkers, engine.RoleEncode: m.EncodeWorkers} {
			for i, w := range list {
				fits := slices.ContainsFunc(m.Workers, func(of *Worker) bool { return w.Card.DescribeDifference(of.Card) == "" })
				if w.Card.Role != role || w.Unfit != "" || m.Parent == "" && !fits || i > 0 && list[i-1].ID >= w.ID {
					return fmt.Errorf("model %s has %s worker %d, which does not belong there", m.Card.Name, role, w.ID)
				}
				if m.Parent == "" {
					placed[w] = m
				}
			}
		}
	}
	for _, c := range s.clashes {
		hidden := s.Find(c.Hidden)
		if c.Model == c.Hidden || s.Find(c.Alias) != s.Find(c.Model) || len(hidden.Workers) == 0 || !slices.Contains(hidden.Card.Aliases, c.Alias) {
			return fmt.Errorf("%+v is no clash", c)
		}
	}
	for i, w := range s.Workers {
		if i > 0 && s.Workers[i-1].ID >= w.ID {
			return fmt.Errorf("the workers are not ascending")
		}
		m := s.Find(w.Card.Name)
		switch {
		case w.Problem != "":
		case !w.Card.Role.TakesRequests():
			// A worker of a name that no model has is in no list, and fits.
			if m != nil && m.Card.Name == w.Card.Name && len(m.Workers) > 0 && m.Parent == "" && (w.Unfit == "") != (placed[w] == m) {
				return fmt.Errorf("worker %d of role %s is in none or both of the lists of %s", w.ID, w.Card.Role, w.Card.Name)
			}
		case m == nil || m.Card.Name != w.Card.Name || m.Parent != "":
			return fmt.Errorf("the model of worker %d is unknown", w.ID)
		case (w.Unfit == "") != (placed[w] == m) || (w.Unfit != "") != slices.Contains(m.Unfit, w.ID):
			return fmt.Errorf("worker %d is in none or both of the lists of %s", w.ID, w.Card.Name)
		}
	}
	return nil
}

// TestScripts runs the golden scripts. The command "set" has one line for each instance:
//
//	ID MODEL [role=R] [kind=K] [block=N] [numerics=N] [media=K,…] [args=JSON]
//	         [context=N] [aliases=A,…] [adapters=A,…] [miscounts=K,…] [epoch=N] [component=C] [broken]
//
// Time is the number of the command, in seconds. It prints the snapshot that follows, and what was found.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s, now := NewSnapshot(), 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			now++
			var set []disco.Instance
			for line := range strings.Lines(d.Input) {
				set = append(set, parseInstance(t, strings.Fields(line)))
			}
			s = s.Next(Selection{"penstock", "backend"}, set, time.Unix(int64(now), 0))
			if err := s.check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return s.describe()
		})
	})
}

func parseInstance(t *testing.T, fields []string) disco.Instance {
	id, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	card := cardOf(fields[1], 100)
	epoch, component, broken, kind := 1, "backend", false, disco.Kind("")
	for _, f := range fields[2:] {
		key, value, _ := strings.Cut(f, "=")
		list := strings.Split(value, ",")
		switch key {
		case "role":
			card.Role, err = engine.ParseRole(value)
		case "kind":
			kind = disco.Kind(value)
		case "block":
			card.BlockSize, err = strconv.Atoi(value)
		case "numerics":
			card.Numerics = value
		case "media":
			card.Media = list
		case "args":
			card.ProcessorArgs = value
		case "context":
			card.ContextLength, err = strconv.Atoi(value)
		case "aliases":
			card.Aliases = list
		case "adapters":
			card.Adapters = list
		case "miscounts":
			card.MiscountedMedia = list
		case "epoch":
			epoch, err = strconv.Atoi(value)
		case "component":
			component = value
		case "broken":
			broken = true
		default:
			t.Fatalf("%q is not known", f)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	in := instanceOf(t, kv.WorkerID(id), card)
	in.Kind, in.Epoch, in.Component = cmp.Or(kind, in.Kind), uint64(epoch), component
	if broken {
		in.Meta = []byte("{}")
	}
	return in
}

// describe prints the models with their workers, the names which find them, and what was found.
func (s *Snapshot) describe() string {
	var out bytes.Buffer
	ids := func(workers []*Worker) (list []kv.WorkerID) {
		for _, w := range workers {
			list = append(list, w.ID)
		}
		return list
	}
	names := map[*Model][]string{}
	for _, name := range slices.Sorted(maps.Keys(s.names)) {
		names[s.names[name]] = append(names[s.names[name]], name)
	}
	for _, m := range s.Models {
		fmt.Fprintf(&out, "%s %v context=%d since=%d names=%v", m.Card.Name, ids(m.Workers), m.Card.ContextLength, m.FirstSeen.Unix(), names[m])
		if m.Parent != "" {
			fmt.Fprintf(&out, " of=%s", m.Parent)
		}
		if len(m.Unfit) > 0 {
			fmt.Fprintf(&out, " unfit=%v", m.Unfit)
		}
		for _, of := range [...]struct {
			role engine.Role
			list []*Worker
		}{{engine.RolePrefill, m.PrefillWorkers}, {engine.RoleEncode, m.EncodeWorkers}} {
			if len(of.list) > 0 {
				fmt.Fprintf(&out, " %s=%v", of.role, ids(of.list))
			}
		}
		if len(m.Card.MiscountedMedia) > 0 {
			fmt.Fprintf(&out, " miscounts=%v", m.Card.MiscountedMedia)
		}
		out.WriteByte('\n')
	}
	for _, f := range s.findings {
		text, _, _ := strings.Cut(f.text, "\n")
		fmt.Fprintf(&out, "found: worker=%d model=%s adapter=%s: %s\n", f.worker, f.model, f.adapter, text)
	}
	for _, c := range s.clashes {
		fmt.Fprintf(&out, "clash: the alias %s of %s leads to %s\n", c.Alias, c.Hidden, c.Model)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

// TestSnapshotsByChance: whatever workers come and go, a model keeps its card while any worker has it.
func TestSnapshotsByChance(t *testing.T) {
	for seed := range uint64(200) {
		rng := splitmix.Source(seed)
		s := NewSnapshot()
		for step := range 30 {
			var set []disco.Instance
			for id := range kv.WorkerID(6) {
				if rng.Below(3) == 0 {
					continue
				}
				card := cardOf([]string{"a", "b", "c"}[rng.Below(3)], 100+rng.Below(2))
				card.Aliases = [][]string{nil, {"a"}, {"x"}, {"b", "y"}}[rng.Below(4)]
				card.Adapters = [][]string{nil, {"c"}, {"law"}, {"law", "x"}}[rng.Below(4)]
				card.Role = []engine.Role{engine.RoleAggregated, engine.RoleDecode, engine.RolePrefill, engine.RoleEncode}[rng.Below(4)]
				card.Numerics = []string{"p", "q"}[rng.Below(2)]
				in := instanceOf(t, id+1, card)
				if rng.Below(10) == 0 {
					in.Meta = in.Meta[1:]
				}
				set = append(set, in)
			}
			next := s.Next(Selection{}, set, time.Unix(int64(step), 0))
			if err := next.check(); err != nil {
				t.Fatalf("seed %d, step %d: %v\n%s", seed, step, err, next.describe())
			}
			for _, m := range next.Models {
				was := s.Find(m.Card.Name)
				if m.Parent != "" || was == nil || was.Card.Name != m.Card.Name || was.Parent != "" {
					continue
				}
				has := slices.ContainsFunc(next.Workers, func(w *Worker) bool {
					return w.Problem == "" && w.Card.Role.TakesRequests() && w.Card.Name == m.Card.Name && w.Checksum == was.Checksum
				})
				if has && m.Checksum != was.Checksum {
					t.Fatalf("seed %d, step %d: %s has another card though a worker has the one before", seed, step, m.Card.Name)
				}
			}
			s = next
		}
	}
}

// TestLostModelsAreBounded: models without workers are kept, but at most MaxLost.
func TestLostModelsAreBounded(t *testing.T) {
	s := NewSnapshot()
	for i := range MaxLost + 10 {
		s = s.Next(Selection{}, []disco.Instance{instanceOf(t, 1, cardOf(fmt.Sprintf("model %04d", i), 100))}, time.Time{})
	}
	if n := len(s.Models); n != MaxLost+1 {
		t.Errorf("%d models are known, want %d", n, MaxLost+1)
	}
	if s.Find("model 0000") == nil || len(s.Find(fmt.Sprintf("model %04d", MaxLost+9)).Workers) != 1 {
		t.Error("the first or the last model is not known")
	}
}

// TestCardsAreShared: a card is read once, unless its registration changes.
func TestCardsAreShared(t *testing.T) {
	in := instanceOf(t, 1, cardOf("m", 100))
	first := NewSnapshot().Next(Selection{}, []disco.Instance{in}, time.Time{})
	in.Epoch, in.Unconfirmed = 2, true
	second := first.Next(Selection{}, []disco.Instance{in}, time.Time{})
	if w := second.Worker(1); w.Card != first.Worker(1).Card || w.Epoch != 2 || !w.Unconfirmed {
		t.Errorf("the worker is %+v", w)
	}
	in.Meta = instanceOf(t, 1, cardOf("m", 200)).Meta
	if w := second.Next(Selection{}, []disco.Instance{in}, time.Time{}).Worker(1); w.Card.ContextLength != 200 {
		t.Errorf("the card is %+v", w.Card)
	}
}

// TestRefresh: requests made by a card go to no worker of another one, whatever the name serves now.
func TestRefresh(t *testing.T) {
	short, long := instanceOf(t, 1, cardOf("m", 100)), instanceOf(t, 2, cardOf("m", 200))
	first := NewSnapshot().Next(Selection{}, []disco.Instance{short, long}, time.Time{})
	m, other := first.Find("m"), cardOf("n", 100)
	other.Aliases = []string{"m"}
	for _, c := range []struct {
		set            []disco.Instance
		workers, unfit string
	}{
		{[]disco.Instance{short, long}, "[1]", "[2]"},
		{[]disco.Instance{long}, "[]", "[2]"},
		{nil, "[]", "[]"},
		{[]disco.Instance{instanceOf(t, 3, other)}, "[]", "[]"}, // the name is an alias now
	} {
		now := NewSnapshot().Next(Selection{}, c.set, time.Time{}).Refresh(m)
		ids := now.WorkersWhere(func(*engine.Card) bool { return true })
		if fmt.Sprint(ids) != c.workers || fmt.Sprint(now.Unfit) != c.unfit || now.Card.ContextLength != 100 {
			t.Errorf("of %d workers: %v, unfit %v, want %s and %s", len(c.set), ids, now.Unfit, c.workers, c.unfit)
		}
	}
}

// TestForeignPools: an ID of a pool keeps the memory which it names while any worker has that, and workers with other memory
// are marked.
func TestForeignPools(t *testing.T) {
	s := NewSnapshot()
	for i, c := range []struct {
		pools, foreign string // of worker 1, and so on: its ID and its memory
	}{
		{pools: "0a 0a 1b --", foreign: ""},
		{pools: "-- 0a 1b 0c", foreign: "4"},
		{pools: "0d 0a -- 0c", foreign: "1 4"},
		{pools: "0d -- 1a 0c", foreign: "4"},
		{pools: "0d -- 1a 1c", foreign: "4"},
		{pools: "-- -- 1c --", foreign: ""},
		{pools: "1b 1a 1c 0c", foreign: "1 2"},
	} {
		var set []disco.Instance
		for id, pool := range strings.Fields(c.pools) {
			card := cardOf("m", 100)
			if pool != "--" {
				card.Pool = &engine.CardPool{ID: kv.PoolID(pool[0] - '0'), Generation: pool[1:]}
			}
			set = append(set, instanceOf(t, kv.WorkerID(id+1), card))
		}
		s = s.Next(Selection{}, set, time.Time{})
		var foreign, found []string
		for _, w := range s.Workers {
			if w.ForeignPool {
				foreign = append(foreign, fmt.Sprint(w.ID))
			}
		}
		for _, f := range s.findings {
			if found = append(found, fmt.Sprint(f.worker)); !f.pool {
				t.Errorf("set %d: %+v", i, f)
			}
		}
		if got := strings.Join(foreign, " "); got != c.foreign || !slices.Equal(found, foreign) || len(s.Models[0].Workers) != 4 {
			t.Errorf("set %d: workers %q have other memory, want %q; findings %v", i, got, c.foreign, s.findings)
		}
	}
}
