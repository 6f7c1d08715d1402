package engine

import (
	"encoding/json"
	"unicode/utf8"
)

// The bytes of JSON in a load report for each list; the rest of maxLoadReport is for the numbers, also
// the numbers of a pong.
const (
	maxAdaptersJSON = 1 << 10
	maxWarningsJSON = 2432

	maxWarningCode = 64
	maxWarningText = 400 // detail and remedy together
)

// FitToLimit shortens the texts of r's warnings and drops adapters and warnings that do not fit, so that the
// JSON of r, and of a Pong with it, stays within maxLoadReport. It changes the lists in place.
func (r *LoadReport) FitToLimit() {
	r.Adapters = keepFitting(r.Adapters, maxAdaptersJSON)
	for i := range r.Warnings {
		r.Warnings[i].shortenTexts()
	}
	r.Warnings = keepFitting(r.Warnings, maxWarningsJSON)
}

func (w *Warning) shortenTexts() {
	w.Code = truncateUTF8(w.Code, maxWarningCode)
	w.Remedy = truncateUTF8(w.Remedy, maxWarningText/2)
	w.Detail = truncateUTF8(w.Detail, maxWarningText-len(w.Remedy))
}

// truncateUTF8 cuts s to at most n bytes without splitting a character.
func truncateUTF8(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// keepFitting returns the elements of list, in order, that fit in room bytes of JSON.
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
