package route

import "fmt"

// Availability says whether the workers of a model could take a request which constrains nothing but the
// model, or an adapter of it.
type Availability struct {
	// Workers counts the workers which serve it. Ready counts the workers to which a request could be sent
	// now: it includes busy and suspected workers, because requests go there when there is no other.
	Workers, Ready int
	// Reason says why none is ready; "" if one is.
	Reason string
}

// Availability returns the availability of the model, or of one of its adapters if adapter is not "". It
// applies the same conditions as decisions do.
func (r *Router) Availability(adapter string) Availability {
	q := Query{Adapter: adapter}
	var counts [refusalCount]int
	for i := range r.targets {
		counts[r.checkEligible(&requestPolicy{}, &r.targets[i], &q)]++
	}
	a := Availability{
		Workers: len(r.targets) - counts[lacksAdapter],
		Ready:   counts[eligible] + counts[busy] + counts[suspected],
	}
	counts[lacksAdapter] = 0
	switch {
	case a.Ready > 0:
	case a.Workers == 0:
		a.Reason = NoWorker
	default:
		a.Reason = fmt.Sprintf("none of %d workers can take a request (%s)", a.Workers, formatRefusalCounts(&counts))
	}
	return a
}

// NoWorker is the Reason for a model without workers.
const NoWorker = "no worker"
