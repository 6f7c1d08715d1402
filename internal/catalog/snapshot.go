package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

// MaxLost bounds the models without workers that are kept.
const MaxLost = 1024

// Selection says which instances are workers of the catalog. An empty field selects all.
type Selection struct{ Namespace, Component string }

func (s Selection) selects(in *disco.Instance) bool {
	return (s.Namespace == "" || in.Namespace == s.Namespace) && (s.Component == "" || in.Component == s.Component)
}

// Snapshot is the set of registered workers, and of the models that they serve, at one time. It is
// immutable.
type Snapshot struct {
	// Workers are all registered workers, by id, of all roles, including workers which get no requests.
	Workers []*Worker
	// Models are the served models, by name. LoRA adapters are models of their own. Models which lost
	// their last worker stay, at most MaxLost, so that requests for them fail as unavailable and not as
	// unknown.
	Models []*Model

	names      map[string]*Model // by name, alias and adapter
	clashes    []AliasClash
	pools      map[kv.PoolID]*Worker // a worker which has the pool of this ID
	findings   []finding
	superseded chan struct{}
}

// Worker is one registered worker.
type Worker struct {
	disco.Instance
	// Card is the worker's model card; the zero card if Problem is set. Snapshots share it as long as
	// the registration does not change.
	Card     *engine.Card
	Checksum string // of Card
	Problem  string // why the registration cannot be used; "" if it can
	Unfit    string // how Card differs from the card of its model; "" if it does not
	// ForeignPool says that the pool of its card is other memory than the pool which has this ID in the fleet. The worker
	// gets requests, and nothing is believed which it says of the pool.
	ForeignPool bool
}

// finding is what operators must know of a worker or of an adapter.
type finding struct {
	worker               kv.WorkerID
	host                 string
	model, adapter, text string // adapter is "" for a worker
	pool                 bool   // text is of the pool of a worker which gets requests
}

// NewSnapshot returns the snapshot of an empty registry.
func NewSnapshot() *Snapshot {
	return &Snapshot{names: map[string]*Model{}, superseded: make(chan struct{})}
}

// WorkerEpoch returns the epoch of a registered worker; known is false for an unregistered one.
func (s *Snapshot) WorkerEpoch(id kv.WorkerID) (epoch uint64, known bool) {
	w := s.Worker(id)
	if w == nil {
		return 0, false
	}
	return w.Epoch, true
}

// Worker returns a registered worker, or nil.
func (s *Snapshot) Worker(id kv.WorkerID) *Worker {
	at, ok := slices.BinarySearchFunc(s.Workers, id, func(w *Worker, id kv.WorkerID) int { return cmp.Compare(w.ID, id) })
	if !ok {
		return nil
	}
	return s.Workers[at]
}

// Superseded is closed when the catalog has a newer snapshot.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// Find returns the model of a name, an alias or an adapter; nil if there is none.
func (s *Snapshot) Find(name string) *Model { return s.names[name] }

// AliasesOf returns the aliases of m which lead to it, and not to another model, in the order of its card.
func (s *Snapshot) AliasesOf(m *Model) (aliases []string) {
	for _, alias := range m.Card.Aliases {
		if alias != m.Card.Name && s.Find(alias) == m {
			aliases = append(aliases, alias)
		}
	}
	return aliases
}

// FindBase returns the model of a name or an alias, or the base model of an adapter; nil if there is none.
func (s *Snapshot) FindBase(name string) *Model {
	m := s.names[name]
	if m != nil && m.Parent != "" {
		return s.names[m.Parent]
	}
	return m
}

// Same returns the snapshot's model with the name of m, which is of another snapshot; nil if there is
// none, if only one of the two is an adapter, or if their base models differ.
func (s *Snapshot) Same(m *Model) *Model {
	now := s.names[m.Card.Name]
	if now == nil || now.Card.Name != m.Card.Name || now.Parent != m.Parent {
		return nil
	}
	return now
}

// Refresh returns the present state of m, a model of an earlier snapshot, for requests that were made by
// its card: if the name is served with another card now, no worker fits.
func (s *Snapshot) Refresh(m *Model) *Model {
	now := s.Same(m)
	if now != nil && now.Checksum == m.Checksum {
		return now
	}
	gone := *m
	gone.Workers, gone.Unfit, gone.PrefillWorkers, gone.EncodeWorkers = nil, nil, nil, nil
	if now != nil {
		for _, w := range now.Workers {
			gone.Unfit = append(gone.Unfit, w.ID)
		}
		gone.Unfit = append(gone.Unfit, now.Unfit...)
	}
	return &gone
}

// Next returns the snapshot which follows s when the registry has the instances of set. A model keeps its
// card while any worker has it, so that a new worker never changes a model that is being served;
// otherwise it takes the card of its worker with the lowest id. Workers with another card do not fit. Prefill
// and encode workers neither make a model nor give it its card: they must fit the workers that do.
func (s *Snapshot) Next(sel Selection, set []disco.Instance, now time.Time) *Snapshot {
	next := NewSnapshot()
	for i := range set {
		if sel.selects(&set[i]) {
			next.Workers = append(next.Workers, s.readWorker(set[i]))
		}
	}
	next.dropRepeatedIDs()
	next.findPools(s)
	next.addModels(s, now)
	next.keepLost(s)
	next.nameModels()
	next.addAdapters(s, now)
	return next
}

// findPools decides which memory the ID of a pool names, and marks the workers which have attached other memory by that ID.
// An ID keeps its memory while any worker has that; otherwise it takes that of its worker with the lowest id.
func (s *Snapshot) findPools(old *Snapshot) {
	s.pools = map[kv.PoolID]*Worker{}
	for _, w := range s.Workers {
		p := w.Card.Pool
		if p == nil {
			continue
		}
		was, has := old.pools[p.ID], s.pools[p.ID]
		if has == nil || *has.Card.Pool != *p && was != nil && *was.Card.Pool == *p {
			s.pools[p.ID] = w
		}
	}
	for _, w := range s.Workers {
		p := w.Card.Pool
		if p == nil || *s.pools[p.ID].Card.Pool == *p {
			continue
		}
		w.ForeignPool = true
		has := s.pools[p.ID]
		s.findings = append(s.findings, finding{worker: w.ID, host: w.Host, model: w.Card.Name, pool: true, text: fmt.Sprintf(
			"its pool %d is other memory than pool %d of worker %d on %s: give it another ID, or the same file", p.ID, p.ID, has.ID, has.Host)})
	}
}

// readWorker returns the worker of an instance. It reuses the card of s if the registration has not
// changed: of hundreds of workers few change at a time.
func (s *Snapshot) readWorker(in disco.Instance) *Worker {
	if was := s.Worker(in.ID); was != nil && was.Problem == "" && was.Kind == in.Kind && bytes.Equal(was.Meta, in.Meta) {
		return &Worker{Instance: in, Card: was.Card, Checksum: was.Checksum}
	}
	w := &Worker{Instance: in, Card: &engine.Card{}}
	if in.ID == 0 || in.ID > kv.MaxWorkerID {
		w.Problem = fmt.Sprintf("its id %d is out of range", in.ID)
		return w
	}
	card, err := engine.DecodeCard(in.Meta)
	if err != nil {
		w.Problem = err.Error()
		return w
	}
	if kind := KindOf(card.Role); kind != in.Kind {
		w.Problem = fmt.Sprintf("it is registered as %s and its model card has the role %s", in.Kind, card.Role)
		return w
	}
	w.Card, w.Checksum = &card, card.Checksum()
	return w
}

// addModels adds the models of the workers.
func (s *Snapshot) addModels(old *Snapshot, now time.Time) {
	byName, others := map[string][]*Worker{}, map[string][]*Worker{}
	var order []string
	for _, w := range s.Workers {
		if w.Problem != "" {
			s.findings = append(s.findings, finding{worker: w.ID, host: w.Host, text: w.Problem})
			continue
		}
		if !w.Card.Role.TakesRequests() {
			others[w.Card.Name] = append(others[w.Card.Name], w)
			continue
		}
		if byName[w.Card.Name] == nil {
			order = append(order, w.Card.Name)
		}
		byName[w.Card.Name] = append(byName[w.Card.Name], w)
	}
	for _, name := range order {
		was := old.names[name]
		if was != nil && (was.Card.Name != name || was.Parent != "") {
			was = nil // the name was an alias or an adapter
		}
		m := newModel(was, byName[name], now)
		m.addRoleWorkers(others[name])
		s.Models = append(s.Models, m)
		for _, w := range slices.Concat(byName[name], others[name]) {
			if w.Unfit != "" {
				s.findings = append(s.findings, finding{worker: w.ID, host: w.Host, model: name, text: w.Unfit})
			}
		}
	}
}

// keepLost keeps the models of old which lost their last worker.
func (s *Snapshot) keepLost(old *Snapshot) {
	have := map[string]bool{}
	for _, m := range s.Models {
		have[m.Card.Name] = true
	}
	lost := 0
	for _, m := range old.Models {
		if have[m.Card.Name] || lost >= MaxLost || have[m.Parent] { // an adapter without its model was removed
			continue
		}
		lost++
		gone := *m
		gone.Workers, gone.Unfit, gone.PrefillWorkers, gone.EncodeWorkers = nil, nil, nil, nil
		s.Models = append(s.Models, &gone)
	}
}

// nameModels sorts the models and builds the table of names. A model's own name takes precedence over
// another's alias, and a served model over a lost one: also by an alias over a lost model's own name, so that a
// successor can serve the name of its predecessor.
func (s *Snapshot) nameModels() {
	s.sortModels()
	served := map[string][]string{}
	for _, m := range s.Models {
		s.names[m.Card.Name] = m
		if len(m.Workers) > 0 {
			served[m.Card.Name] = m.Card.Aliases
		}
	}
	s.clashes = FindAliasClashes(served)
	for _, m := range s.Models {
		for _, alias := range m.Card.Aliases {
			if have := s.names[alias]; have == nil || len(have.Workers) == 0 && len(m.Workers) > 0 {
				s.names[alias] = m
			}
		}
	}
}

// AliasClash is an alias of two served models, or of one model where it is the name of another: requests for
// Alias go to Model, and none to Hidden, which has the alias too.
type AliasClash struct{ Alias, Model, Hidden string }

// FindAliasClashes returns the clashes of served models, whose aliases are given by the models' own names: by
// hidden model, in the order of its aliases.
func FindAliasClashes(aliases map[string][]string) (clashes []AliasClash) {
	owner := map[string]string{}
	for name := range aliases {
		owner[name] = name
	}
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		for _, alias := range aliases[name] {
			switch have, taken := owner[alias]; {
			case !taken:
				owner[alias] = name
			case have != name:
				clashes = append(clashes, AliasClash{alias, have, name})
			}
		}
	}
	return clashes
}

func (s *Snapshot) sortModels() {
	slices.SortFunc(s.Models, func(a, b *Model) int { return strings.Compare(a.Card.Name, b.Card.Name) })
}

// addAdapters adds the adapters of the models as models of their own, on the workers that serve them.
// The name of another model or alias cannot be an adapter; if two models have an adapter of one name,
// the first model's counts.
func (s *Snapshot) addAdapters(old *Snapshot, now time.Time) {
	var all []*Model
	for _, parent := range s.Models {
		if parent.Parent != "" {
			continue // it is lost, with its model
		}
		for _, name := range parent.UnionOf(func(c *engine.Card) []string { return c.Adapters }) {
			if have := s.names[name]; have != nil && len(have.Workers) > 0 {
				if have.Parent != parent.Card.Name {
					s.findings = append(s.findings, finding{model: parent.Card.Name, adapter: name, text: "its name is that of another model, alias or adapter"})
				}
				continue
			}
			m := parent.newAdapter(name, now)
			if was := old.names[name]; was != nil && was.Parent == m.Parent {
				m.FirstSeen = was.FirstSeen
			}
			s.names[name] = m
			all = append(all, m)
		}
	}
	// An adapter, and a model with the name as an alias, takes the place of the lost model of its name.
	s.Models = slices.DeleteFunc(s.Models, func(m *Model) bool { return s.names[m.Card.Name] != m })
	s.Models = append(s.Models, all...)
	s.sortModels()
}
