package prefix

import "penstock/core/kv"

// AppendLarger appends to dst, ordered by worker, the combination of known and predicted, both ordered by
// worker: for each worker and tier, the longer of the runs over the tier and all faster ones. Predictions are
// for the device.
func AppendLarger(dst, known, predicted []kv.Overlap) []kv.Overlap {
	for len(known) > 0 && len(predicted) > 0 {
		k, p := &known[0], &predicted[0]
		switch k.Worker.Compare(p.Worker) {
		case -1:
			dst, known = append(dst, *k), known[1:]
		case 1:
			dst, predicted = append(dst, *p), predicted[1:]
		default:
			dst, known, predicted = append(dst, largerOverlap(*k, *p)), known[1:], predicted[1:]
		}
	}
	return append(append(dst, known...), predicted...)
}

func largerOverlap(k, p kv.Overlap) kv.Overlap {
	reachedK, reachedP, reached := 0, 0, 0
	out := k
	for t := range kv.Tiers {
		reachedK += k.Blocks[t]
		reachedP += p.Blocks[t]
		out.Blocks[t] = max(reachedK, reachedP) - reached
		reached += out.Blocks[t]
	}
	return out
}
