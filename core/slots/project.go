package slots

import "penstock/core/kv"

// Load returns the load of w now; zero if nothing is active there.
func (t *Table) Load(w kv.Worker) Load {
	if wk := t.workers[w]; wk != nil {
		return wk.load
	}
	return Load{}
}

// Project returns the load of w as it is, and as it would be were d sent there.
// Nothing is reserved.
func (t *Table) Project(w kv.Worker, d Demand) (now, then Load) {
	named := len(d.Chain)
	if wk := t.workers[w]; wk != nil {
		now = wk.load
		named -= wk.shared(d.Chain)
	}
	then = now
	then.Requests++
	then.PrefillTokens += t.prefill(d)
	then.Blocks += named + d.PromptTokens/t.cfg.BlockSize - len(d.Chain)
	then.OutputTokens += d.ExpectedOutput
	return now, then
}

// shared returns how many blocks of chain are active. They are a prefix of it,
// since active blocks are closed under prefixes, so a binary search finds its end.
func (w *worker) shared(chain []kv.SeqHash) int {
	if len(w.refs) == 0 {
		return 0
	}
	low, high := 0, len(chain)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if _, ok := w.refs[chain[mid]]; ok {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
