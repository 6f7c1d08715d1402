package disagg

import "penstock/core/rates"

// Distance says how far the blocks of a prefill worker have to go.
type Distance uint8

// The distances.
const (
	OtherHost Distance = iota
	SameHost           // through memory which the two workers share

	distances = iota
)

// DistanceBetween returns the distance from a prefill worker to a decode worker, by the fastest transport which both
// have. Its scope is the topology label of their cards: a process or a host.
func DistanceBetween(writer, owner *Metadata) Distance {
	if t, ok := SharedTransport(writer, owner); ok && t.Scope != "" {
		return SameHost
	}
	return OtherHost
}

// TransferTime says how long blocks are on their way.
type TransferTime struct {
	// FixedMs is the time of a transfer, and TokenMs the time of each token whose block moves.
	FixedMs, TokenMs float64
}

// transferMs returns the time in which the blocks of so many tokens move, in ms.
func (t *TransferTime) transferMs(tokens int) float64 {
	return t.FixedMs + float64(t.TokenMs*float64(tokens))
}

// PrefillCandidate is a prefill worker to which a job can be addressed, as a decision sees it. Counts are not negative.
type PrefillCandidate struct {
	Worker Incarnation
	// Cached is how many of the request's first tokens its cache has, as far as is known.
	Cached int
	// QueuedTokens is what it has to compute, and Jobs the prompts to which it belongs.
	QueuedTokens, Jobs int
	From               Distance
}

// Candidates are the prefill workers to which a job can be addressed.
type Candidates struct {
	// Workers are all of them, in any order. Of equal ones the first is chosen.
	Workers []PrefillCandidate
	// Transfer is how long blocks come from each Distance.
	Transfer [distances]TransferTime
	// Pinned says that the request names its prefill worker: Workers has that one alone, or is empty if it is not known.
	Pinned bool
}

// farthest returns how long blocks come from the worker which is farthest away.
func (among *Candidates) farthest() *TransferTime {
	from := SameHost
	for i := range among.Workers {
		from = min(from, among.Workers[i].From)
	}
	if len(among.Workers) == 0 {
		from = OtherHost
	}
	return &among.Transfer[from]
}

// DecideAmong decides as [Decide] does, and chooses the worker to which the job is addressed. It sets the number of
// prefill workers and the times of a transfer in the inputs. It allocates nothing.
//
// The queue gives a job to the worker which is free first, whatever its cache has and wherever it is. A job is addressed
// to another one if that costs less:
//
//	addressed = the larger wait of both ways + prefill(end - cached there) + backlog there + transfer from there + ...
//
// So a worker is chosen for its cache, or because its blocks come through memory, and never for a short wait alone: load
// reports are old, and the queue knows better. Of equal workers the nearest is chosen, and of these the one with the
// least to compute. A job is not addressed to the only worker there is, unless the request names it.
func DecideAmong(c *SplitConfig, in *SplitInputs, among *Candidates, local, remote *rates.WorkerRates) Decision {
	in.PrefillWorkers = len(among.Workers)
	in.NamedUnknown = among.Pinned && in.PrefillWorkers == 0
	far := among.farthest()
	in.TransferFixedMs, in.TransferTokenMs = far.FixedMs, far.TokenMs
	isOnly := in.PrefillWorkers == 1
	if isOnly {
		in.RemoteCached = among.Workers[0].Cached
	}
	d := Decide(c, in, local, remote)
	if start, end := in.MovedRange(); start == end || isOnly && !among.Pinned {
		return d
	}
	least, best := d.RemoteCost, -1
	for i := range among.Workers {
		w := &among.Workers[i]
		cost := d.costAt(w, among, remote)
		if best < 0 && (among.Pinned || cost.sumWithoutFailures() < least.sumWithoutFailures()) || best >= 0 && isBetter(w, &cost, &among.Workers[best], &least) {
			least, best = cost, i
		}
	}
	if best < 0 {
		return d
	}
	w := &among.Workers[best]
	d.RemoteCost, d.Inputs.RemoteCached = least, w.Cached
	d.Inputs.TransferFixedMs, d.Inputs.TransferTokenMs = among.Transfer[w.From].FixedMs, among.Transfer[w.From].TokenMs
	d.countFailures()
	if d.Remote, d.Reason = d.applyRules(c, false); d.Remote {
		d.To, d.Pinned = w.Worker, among.Pinned
	}
	return d
}

// costAt returns the cost if w gets the job and no attempt fails. RemoteCost is the cost of the queue.
func (d *Decision) costAt(w *PrefillCandidate, among *Candidates, remote *rates.WorkerRates) PathCost {
	in, cost := &d.Inputs, d.RemoteCost
	start, end := in.MovedRange()
	n := float64(in.PrefillWorkers)
	jobs := max(float64(w.Jobs), float64(in.RunningJobs)/n) + float64(in.QueuedJobs)/n
	cost.Wait = max(cost.Wait, remote.PrefillMs(w.QueuedTokens))
	cost.Prefill = remote.PrefillMs(max(end-w.Cached, 1))
	cost.Backlog = float64(jobs * cost.Prefill)
	cost.Transfer = among.Transfer[w.From].transferMs(end - start)
	return cost
}

// isBetter reports whether w, at a cost, is to be preferred to another worker.
func isBetter(w *PrefillCandidate, cost *PathCost, other *PrefillCandidate, least *PathCost) bool {
	switch a, b := cost.sumWithoutFailures(), least.sumWithoutFailures(); {
	case a != b:
		return a < b
	case w.From != other.From:
		return w.From > other.From
	}
	return w.QueuedTokens < other.QueuedTokens
}
