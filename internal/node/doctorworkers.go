package node

import (
	"slices"

	"penstock/internal/engine"
)

// examinedWorker holds the fields which the doctor reads from a row of the server's worker table.
type examinedWorker struct {
	ID      uint64 `json:"worker_id"`
	Rank    uint32 `json:"dp_rank"`
	Model   string `json:"model"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Addr    string `json:"addr"`
	State   string `json:"state"`
	Problem string `json:"problem"`
	// Warnings are problems of the worker's engine which do not stop it from serving.
	Warnings []engine.Warning `json:"warnings"`
	Feed     struct {
		State   string  `json:"state"`
		Guessed bool    `json:"guessed"`
		LastSeq uint64  `json:"last_seq"`
		Events  uint64  `json:"events"`
		Missing uint64  `json:"missing"`
		Gaps    uint64  `json:"gaps"`
		GivenUp uint64  `json:"given_up"`
		Orphans uint64  `json:"orphans"`
		Lagging bool    `json:"lagging"`
		LagFor  float64 `json:"lag_seconds"`
	} `json:"feed"`
	// Behind are the workers behind a router process; BehindError says why they are unknown.
	Behind      []examinedWorker `json:"behind"`
	BehindError string           `json:"behind_error"`
}

// includeWorkersBehind returns rows and, once each, the workers behind the rows which are routers.
func includeWorkersBehind(rows []examinedWorker) []examinedWorker {
	all := slices.Clone(rows)
	for i := range rows {
		for _, w := range includeWorkersBehind(rows[i].Behind) {
			if !slices.ContainsFunc(all, func(have examinedWorker) bool {
				return have.ID == w.ID && have.Rank == w.Rank && have.State == w.State
			}) {
				all = append(all, w)
			}
		}
	}
	return all
}
