package engine

import (
	"encoding/json"
	"unicode/utf8"
)

// The room in a load report, in bytes of JSON: what is left of maxLoadReport is for its
// numbers, those of a pong included.
const (
	roomAdapters = 1 << 10
	roomWarnings = 2432

	maxWarningCode = 64
	maxWarningText = 400 // detail and remedy together
)

// Fit shortens the texts of r's warnings, and leaves out the adapters and warnings for which
// there is no room, so that the JSON of r, and of a Pong with it, can be read. The lists are
// changed in place.
func (r *LoadReport) Fit() {
	r.Adapters = keepFitting(r.Adapters, roomAdapters)
	for i := range r.Warnings {
		r.Warnings[i].shorten()
	}
	r.Warnings = keepFitting(r.Warnings, roomWarnings)
}

func (w *Warning) shorten() {
	w.Code = cut(w.Code, maxWarningCode)
	w.Remedy = cut(w.Remedy, maxWarningText/2)
	w.Detail = cut(w.Detail, maxWarningText-len(w.Remedy))
}

// cut bounds s to n bytes of whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// keepFitting returns what of list fits in so many bytes of JSON, in order.
func keepFitting[T any](list []T, room int) []T {
	kept := list[:0]
	for _, v := range list {
		b, err := json.Marshal(v)
		if err != nil || len(b)+1 > room { // strings always marshal
			continue
		}
		room -= len(b) + 1
		kept = append(kept, v)
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}
