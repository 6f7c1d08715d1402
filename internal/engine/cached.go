package engine

// CachedReport finds out from the deltas of one attempt how many prompt tokens the engine had cached. The
// engine reports this with the first tokens or, if it knows late, with the end of a choice. The choices share
// a prompt, so the first report counts for all. The zero value is ready.
type CachedReport struct {
	reportedStart bool // the first tokens were reported
	known         bool
	started, late choiceSet
}

// ObserveDelta takes the next delta in arrival order. news is true when the attempt's first tokens arrive,
// with cached = CachedUnknown if the engine does not know yet, and once more if the number arrives later.
func (r *CachedReport) ObserveDelta(d *Delta) (cached int, news bool) {
	if r.known || d.Choice < 0 || d.Choice >= MaxChoices || d.Accepted {
		return CachedUnknown, false
	}
	switch {
	case !r.started.contains(d.Choice):
		if len(d.Tokens) == 0 {
			return CachedUnknown, false
		}
		r.started.add(d.Choice)
		if d.Cached == CachedUnknown {
			r.late.add(d.Choice)
			news, r.reportedStart = !r.reportedStart, true
			return CachedUnknown, news
		}
	case d.Finish == NotFinished || !r.late.contains(d.Choice) || d.Cached == CachedUnknown:
		return CachedUnknown, false
	}
	r.reportedStart, r.known = true, true
	return d.Cached, true
}

// choiceSet is a set of choice indexes of a request.
type choiceSet [MaxChoices / 64]uint64

func (s *choiceSet) contains(choice int) bool { return s[choice/64]>>(choice%64)&1 != 0 }
func (s *choiceSet) add(choice int)           { s[choice/64] |= 1 << (choice % 64) }
