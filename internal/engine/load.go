package engine

import (
	"encoding/json"
	"fmt"
	"strconv"

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
	Load        Load   `json:"load"`
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
