package engine

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"penstock/core/kv"
)

// maxLoadReport bounds a load report in bytes.
const maxLoadReport = 4 << 10

// The states that a worker reports.
const (
	StateReady    = "ready"
	StateDraining = "draining"  // finishing its requests, taking no new ones
	StateNotReady = "not_ready" // its engine does not answer; it may recover
)

// LoadReport is a worker's broadcast of its load; docs/format/engine.md has the JSON. Reports may be lost.
type LoadReport struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	Rank     uint32      `json:"dp_rank"`
	// Epoch is that of the worker's registration; a report with a lower epoch than the known one is stale.
	Epoch uint64 `json:"epoch"`
	// State is StateReady, StateDraining or StateNotReady.
	State string `json:"state"`
	// KVNext is the sequence number of the worker's next cache event: all before it were published. 0 if it
	// publishes none. It lets a router tell how far it lags, and that the last events of a worker were lost.
	KVNext uint64 `json:"kv_next,omitempty"`
	// KVAttempted is one more than the number of the last event that the worker tried to publish. Events from
	// KVNext on may have arrived unacknowledged. 0 if there are none.
	KVAttempted uint64 `json:"kv_attempted,omitempty"`
	// EmbeddingNext and EmbeddingAttempted are the same for the events of its embedding cache.
	EmbeddingNext      uint64 `json:"embedding_next,omitempty"`
	EmbeddingAttempted uint64 `json:"embedding_attempted,omitempty"`
	Load               Load   `json:"load"`
	// Adapters are the result of an AdapterSource.
	Adapters []string `json:"adapters,omitempty"`
	// Warnings are the warnings of the worker's engine, as many as fit.
	Warnings []Warning `json:"warnings,omitempty"`
}

// EncodeLoadReport returns the JSON of r.
func EncodeLoadReport(r LoadReport) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode load report: %w", err)
	}
	return b, nil
}

// DecodeLoadReport reads a report and ignores fields of later versions.
func DecodeLoadReport(b []byte) (LoadReport, error) {
	if len(b) > maxLoadReport {
		return LoadReport{}, fmt.Errorf("decode load report: %d bytes, at most %d are read", len(b), maxLoadReport)
	}
	var r LoadReport
	if err := json.Unmarshal(b, &r); err != nil {
		return LoadReport{}, fmt.Errorf("decode load report: %w", err)
	}
	if r.WorkerID > kv.MaxWorkerID {
		return LoadReport{}, fmt.Errorf("decode load report: worker_id %d is not below 2^53", r.WorkerID)
	}
	return r, nil
}

// WorkerKey is the key under which a worker publishes on the bus: "<id>/<rank>",
// both decimal.
func WorkerKey(w kv.Worker) string { return string(AppendWorkerKey(nil, w)) }

// AppendWorkerKey appends w's [WorkerKey] to dst.
func AppendWorkerKey(dst []byte, w kv.Worker) []byte {
	dst = strconv.AppendUint(dst, uint64(w.ID), 10)
	dst = append(dst, '/')
	return strconv.AppendUint(dst, uint64(w.Rank), 10)
}

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
