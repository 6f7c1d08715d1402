package engine

// CachedReport gathers from the deltas of one attempt how much of the prompt its engine
// had cached: with the first tokens or, from an engine that knows it late, with the
// end of a choice. The choices share a prompt, so the first to tell speaks for all. The
// zero value is ready.
type CachedReport struct {
	told        bool // the first tokens have come
	known       bool
	begun, late choiceSet
}

// Take takes the next delta as it came. news says that the attempt's first tokens have
// come, cached being CachedUnknown if its engine does not know yet; it says so once more
// when the number comes after that.
func (r *CachedReport) Take(d *Delta) (cached int, news bool) {
	if r.known || d.Choice < 0 || d.Choice >= MaxChoices || d.Accepted {
		return CachedUnknown, false
	}
	switch {
	case !r.begun.has(d.Choice):
		if len(d.Tokens) == 0 {
			return CachedUnknown, false
		}
		r.begun.add(d.Choice)
		if d.Cached == CachedUnknown {
			r.late.add(d.Choice)
			news, r.told = !r.told, true
			return CachedUnknown, news
		}
	case d.Finish == NotFinished || !r.late.has(d.Choice) || d.Cached == CachedUnknown:
		return CachedUnknown, false
	}
	r.told, r.known = true, true
	return d.Cached, true
}

// choiceSet is a set of choices of a request.
type choiceSet [MaxChoices / 64]uint64

func (s *choiceSet) has(choice int) bool { return s[choice/64]>>(choice%64)&1 != 0 }
func (s *choiceSet) add(choice int)      { s[choice/64] |= 1 << (choice % 64) }
