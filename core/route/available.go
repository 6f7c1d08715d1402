package route

import "fmt"

// Availability says whether the workers of a model could take a request that asks nothing of them
// but the model, or an adapter of it.
type Availability struct {
	// Workers is how many there are for it, and Ready to how many of them a request could be sent
	// now. A busy worker is ready, and so is one to which a call failed until it is known to be
	// more: requests go there when there is no other.
	Workers, Ready int
	// Reason says in words why none is ready; "" if one is.
	Reason string
}

// Availability returns the availability of the model, or of one of its adapters if adapter is not
// "". It goes by the same conditions as decisions do.
func (r *Router) Availability(adapter string) Availability {
	q := Query{Adapter: adapter}
	var counts [refusals]int
	for i := range r.targets {
		counts[r.refuse(&policy{}, &r.targets[i], &q)]++
	}
	a := Availability{
		Workers: len(r.targets) - counts[withoutAdapter],
		Ready:   counts[eligible] + counts[busy] + counts[suspected],
	}
	counts[withoutAdapter] = 0
	switch {
	case a.Ready > 0:
	case a.Workers == 0:
		a.Reason = NoWorker
	default:
		a.Reason = fmt.Sprintf("none of %d workers can take a request (%s)", a.Workers, tally(&counts))
	}
	return a
}

// NoWorker is the reason of a model without workers.
const NoWorker = "no worker"
