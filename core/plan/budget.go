package plan

// fitWants returns how many workers of each role there can be: all wanted ones if the budget has the accelerators, else
// the floors, and then one worker after the other for the role which has the least share of what it wants. Equal shares
// are decided for the first role. Wants are at least the floors.
func (p *Planner) fitWants(from, wants []int, budget int) []int {
	given := append([]int(nil), from...)
	if p.cfg.Budget == 0 {
		return append(given[:0], wants...)
	}
	free := budget
	for {
		best := -1
		for i := range p.roles {
			if given[i] >= wants[i] || p.roles[i].cfg.Accelerators > free {
				continue
			}
			// given/wants < given/wants of best, without a division
			if best < 0 || given[i]*wants[best] < given[best]*wants[i] {
				best = i
			}
		}
		if best < 0 {
			return given
		}
		given[best]++
		free -= p.roles[best].cfg.Accelerators
	}
}

// fitNeeds returns how many workers of each role floors, ceilings and the budget permit of the needed ones.
func (p *Planner) fitNeeds(needs []int) []int {
	floors, wants, free := make([]int, len(needs)), make([]int, len(needs)), p.cfg.Budget
	for i := range p.roles {
		r := &p.roles[i]
		floors[i] = r.cfg.least()
		wants[i] = min(max(needs[i], floors[i]), r.cfg.Ceiling)
		free -= floors[i] * r.cfg.Accelerators
	}
	return p.fitWants(floors, wants, free)
}

// heldWorkers returns for how many workers of the role accelerators are taken: the ones which exist or drain, and the
// ones which a connector may start yet, because it has not begun what was ordered, or has not seen that it was
// withdrawn.
func (r *roleState) heldWorkers() int {
	return max(max(r.fleet.existing(), r.order)+r.fleet.Draining, r.held)
}

// takenAccelerators returns the accelerators which all roles take at most until the next interval.
func (p *Planner) takenAccelerators() int {
	sum := 0
	for i := range p.roles {
		sum += p.roles[i].heldWorkers() * p.roles[i].cfg.Accelerators
	}
	return sum
}

// exceedsBudget reports whether what is ordered does not fit the budget: it was made smaller, floors rose, or workers
// were started by others.
func (p *Planner) exceedsBudget() bool {
	sum := 0
	for i := range p.roles {
		sum += max(p.roles[i].order, p.roles[i].cfg.least()) * p.roles[i].cfg.Accelerators
	}
	return p.cfg.Budget > 0 && sum > p.cfg.Budget
}
