package router

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/prefix"
	"penstock/internal/catalog"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
)

func (r *Router) serveDecisions(w http.ResponseWriter, req *http.Request) error {
	id := req.URL.Query().Get("request_id")
	if id == "" {
		return fault.InvalidParam("request_id", "request_id is missing")
	}
	d, err := r.collectDecisions(req.Context(), id, maxDepth)
	if err != nil {
		return err
	}
	return writeJSON(w, d)
}

// feedRow is the JSON of one worker's feed.
type feedRow struct {
	// State is live, repairing or resync (see core/kvfeed), none for a worker that publishes no events,
	// off if this router uses none, waiting before the first record, or mismatch if the events' block
	// size is not the card's.
	State string `json:"state"`
	// Guessed says that the worker predicts its events: its engine reports none.
	Guessed bool   `json:"guessed,omitempty"`
	Epoch   uint64 `json:"epoch"`
	LastSeq uint64 `json:"last_seq"`
	Events  uint64 `json:"events"`
	Missing uint64 `json:"missing"` // events known to have been published

	Gaps       uint64 `json:"gaps"`
	Repaired   uint64 `json:"repaired"`  // gaps closed by the missing events
	Described  uint64 `json:"described"` // gaps closed by a description of the whole cache
	GivenUp    uint64 `json:"given_up"`  // repairs whose events did not arrive
	Resyncs    uint64 `json:"resyncs"`   // requests
	Duplicates uint64 `json:"duplicates"`
	Ignored    uint64 `json:"ignored"`
	Stale      uint64 `json:"stale"`

	Orphans       uint64  `json:"orphans"`        // stores whose parent was not held
	KnownBlocks   uint64  `json:"known_blocks"`   // stored though held
	UnknownBlocks uint64  `json:"unknown_blocks"` // removed though not held
	Lagging       bool    `json:"lagging"`
	LagFor        float64 `json:"lag_seconds"`  // while lagging
	IdleFor       float64 `json:"idle_seconds"` // since the last event applied
}

// feedWaiting is the state of a feed without any record.
const feedWaiting = "waiting"

// othersLoad is the JSON of the part of a worker's load that other routers sent.
type othersLoad struct {
	ActiveRequests int `json:"active_requests"`
	PrefillTokens  int `json:"prefill_tokens"`
}

// loadRow is the JSON of a worker's load: first the requests that routers have sent there, as far as
// this one knows, then the worker's own last report.
type loadRow struct {
	ActiveRequests int          `json:"active_requests"`
	ActiveBlocks   int          `json:"active_blocks"`
	PrefillTokens  int          `json:"prefill_tokens"`
	Others         othersLoad   `json:"others"`
	Reported       *engine.Load `json:"reported"`         // null before the first report
	ReportedFor    float64      `json:"reported_seconds"` // age of the report
}

// workerRow is the JSON of one rank of one worker.
type workerRow struct {
	WorkerID     uint64  `json:"worker_id"`
	Rank         uint32  `json:"dp_rank"`
	Name         string  `json:"name"` // name of the process for operators
	Role         string  `json:"role"` // aggregated, prefill, decode, encode or router
	Namespace    string  `json:"namespace"`
	Component    string  `json:"component"`
	Endpoint     string  `json:"endpoint"`
	Addr         string  `json:"addr"` // on the request plane
	Model        string  `json:"model"`
	BlockSize    int     `json:"block_size"` // 0 if its model card is unknown
	Engine       string  `json:"engine"`
	Host         string  `json:"host"`
	PID          int     `json:"pid"`
	State        string  `json:"state"` // ready, draining, suspect, quarantined, not_ready, unconfirmed, unfit or error
	Problem      string  `json:"problem,omitempty"`
	Load         loadRow `json:"load"`
	CachedBlocks int     `json:"cached_blocks"`
	Feed         feedRow `json:"feed"`
	// Speed is what was learned of the worker's speed; null of a router process, and before the model is routed.
	Speed *speedRow `json:"speed"`
	// Predictions compares predicted with reported cache hits; null before the first report.
	Predictions *accuracyRow `json:"predictions"`
	// Warnings are the warnings that the worker last reported about its engine, and the router's own.
	Warnings []engine.Warning `json:"warnings"`
	// Behind holds the rows of the workers behind a router process, as that process sent them;
	// BehindError says why they are unknown.
	Behind      []json.RawMessage `json:"behind,omitempty"`
	BehindError string            `json:"behind_error,omitempty"`
}

// roleRouter is the role of a router process, which registers as a worker.
const roleRouter = "router"

// roleOf is the role of a card for operators.
func roleOf(card *engine.Card) string {
	if card.Router {
		return roleRouter
	}
	return card.Role.String()
}

func (r *Router) serveWorkers(w http.ResponseWriter, req *http.Request) error {
	table := r.workerTable()
	r.addNestedWorkers(req.Context(), table, maxDepth)
	return writeJSON(w, newRowsAnswer(table))
}

// workerTable returns the table of workers, with the unusable ones at the end.
func (r *Router) workerTable() []workerRow {
	caches, heard := r.cache.workerCaches()
	trials := r.predictions.accuracyReports()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	table := []workerRow{}
	for _, m := range r.mu.members {
		h := caches[m.worker]
		row := r.workerRowLocked(now, m, h)
		row.Feed = r.feedRowLocked(heard, m, h)
		t, reported := trials[m.worker]
		if reported {
			row.Predictions = &t.row
		}
		row.Warnings = m.warningsLocked(now, t.warning)
		table = append(table, row)
	}
	for _, w := range r.mu.snapshot.Workers {
		if w.Problem != "" {
			row := newWorkerRow(w)
			row.State, row.Problem, row.Feed, row.Warnings = readiness.StateError, w.Problem, feedRow{State: "none"}, []engine.Warning{}
			table = append(table, row)
		}
	}
	return table
}

// newWorkerRow returns the part of a worker's row which its registration says.
func newWorkerRow(w *catalog.Worker) workerRow {
	return workerRow{
		WorkerID: uint64(w.ID), Name: nameOf(&w.Instance), Role: roleOf(w.Card), Namespace: w.Namespace, Component: w.Component, Endpoint: w.Endpoint,
		Addr: w.Addr, Model: w.Card.Name, BlockSize: w.Card.BlockSize, Engine: w.Card.Engine, Host: w.Host, PID: w.PID,
	}
}

// workerRowLocked returns the row of one member with the cache state h, without its feed.
func (r *Router) workerRowLocked(now kv.Mono, m *member, h workerCache) workerRow {
	row := newWorkerRow(m.in)
	row.Rank, row.CachedBlocks = m.worker.Rank, h.blocks
	row.State, row.Problem = r.conditionLocked(now, m, h)
	p := r.memberPoolLocked(m)
	var l activeseq.Load
	var others activeseq.LoadShare
	if p != nil {
		p.active.AdvanceTime(now)
		row.Speed = m.speedRowLocked(p.router)
		l, others = p.active.LoadOf(m.worker), p.active.OthersShare(m.worker)
	}
	row.Load = loadRow{ActiveRequests: l.Requests, ActiveBlocks: l.Blocks, PrefillTokens: l.PrefillTokens, Others: othersLoad{others.Requests, others.PrefillTokens}}
	if m.reported {
		row.Load.Reported = new(m.load.Load)
		row.Load.ReportedFor = toSeconds(now.Sub(m.loadAt))
		if !r.usesEvents {
			row.CachedBlocks = m.load.Load.CachedBlocks
		}
	}
	return row
}

// nameOf is the name of an instance's process for operators.
func nameOf(in *disco.Instance) string { return cmp.Or(in.Name, in.Host) }

// conditionLocked returns the state of a member with the cache state h as operators see it, and its
// problem; "" if there is none.
func (r *Router) conditionLocked(now kv.Mono, m *member, h workerCache) (state, problem string) {
	p := r.memberPoolLocked(m)
	switch {
	case m.in.Unfit != "":
		return readiness.StateUnfit, m.in.Unfit + ": it gets no requests; start it with the model's settings, or under another name"
	case h.mismatchedSize != 0:
		return readiness.StateError, fmt.Sprintf("its events have blocks of %d tokens, its model card says %d: its cache is not counted; start it with the engine's block size", h.mismatchedSize, m.in.Card.BlockSize)
	case p != nil && p.blockSize != m.in.Card.BlockSize && m.in.Card.Role.TakesRequests():
		return readiness.StateError, fmt.Sprintf("its blocks have %d tokens, those of %s here %d: it gets no requests", m.in.Card.BlockSize, m.in.Card.Name, p.blockSize)
	case m.isDraining(now):
		return engine.StateDraining, ""
	case r.isQuarantinedLocked(m):
		return r.silenceLocked(now, m)
	case m.reportsState(now, engine.StateNotReady):
		return engine.StateNotReady, m.notReadyReason() + ": it gets no requests until it does; the worker's log says more"
	case m.in.Unconfirmed:
		return readiness.StateUnconfirmed, ""
	}
	return engine.StateReady, ""
}

// notReadyReason says why a member that reports itself not ready is not.
func (m *member) notReadyReason() string {
	for _, w := range m.load.Warnings {
		if w.Code == engine.WarnUnreachable && m.in.Card.Router {
			return "it can serve no request: " + w.Detail
		}
	}
	return "its engine does not answer"
}

// silenceLocked returns the state and problem of a member that does not answer.
func (r *Router) silenceLocked(now kv.Mono, m *member) (state, problem string) {
	st, _ := r.mu.health.StatusOf(m.worker.ID)
	state, then := readiness.StateQuarantined, "it gets no requests until it answers a ping"
	if st.Cause == health.CallFailed {
		state, then = readiness.StateSuspect, "until it answers a ping it gets only requests that no other worker can take"
	}
	return state, fmt.Sprintf("it has not answered for %v (%v): %s", now.Sub(st.Since).Round(100*time.Millisecond), st.Cause, then)
}

// feedRowLocked returns the row of one member's feed, whose state was h at now.
func (r *Router) feedRowLocked(now kv.Mono, m *member, h workerCache) feedRow {
	switch {
	case !m.in.Card.KVEvents:
		return feedRow{State: "none"}
	case !r.usesEvents:
		return feedRow{State: "off"}
	case h.mismatchedSize != 0:
		return feedRow{State: "mismatch"}
	case !h.hasFeed:
		return feedRow{State: feedWaiting, Guessed: m.in.Card.KVPredicted}
	}
	row := newFeedRow(now, h)
	row.Guessed = m.in.Card.KVPredicted
	return row
}

func newFeedRow(now kv.Mono, of workerCache) feedRow {
	h := of.feed
	row := feedRow{
		State: h.State.String(), Epoch: h.Epoch, LastSeq: h.LastSeq, Events: h.Applied, Missing: h.Missing,
		Gaps: h.Gaps, Repaired: h.Repaired, Described: h.Described, GivenUp: h.GivenUp,
		Resyncs: h.Resyncs, Duplicates: h.Duplicates, Ignored: h.Ignored, Stale: h.Stale,
		Orphans: of.anomalies.orphans, KnownBlocks: of.anomalies.duplicates, UnknownBlocks: of.anomalies.unknown,
		Lagging: h.Lagging,
	}
	if h.Lagging {
		row.LagFor = toSeconds(now.Sub(h.Behind))
	}
	if h.Applied > 0 {
		row.IdleFor = toSeconds(now.Sub(h.LastEvent))
	}
	return row
}

// toSeconds is d in seconds, rounded to milliseconds.
func toSeconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// toMs is d in milliseconds.
func toMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// indexRow is the JSON of the index as a whole.
type indexRow struct {
	Events   bool        `json:"events"`    // whether events are consumed
	CaughtUp bool        `json:"caught_up"` // whether the event backlog has been read
	Workers  int         `json:"workers"`
	Blocks   int         `json:"blocks"`
	Entries  int         `json:"entries"`
	Bytes    int         `json:"bytes"`
	Counts   indexCounts `json:"counts"`
	// Predicted is what is predicted without events; null if prediction is off.
	Predicted *predictedRow `json:"predicted"`
	Feeds     []workerFeed  `json:"feeds"`
	Pools     []poolRow     `json:"pools,omitempty"` // memory that workers share
	// Embeddings is the index of embedding caches; null if no worker has told of one.
	Embeddings *embeddingRow `json:"embeddings,omitempty"`
}

type indexCounts struct {
	Stored     uint64 `json:"stored"`
	Duplicates uint64 `json:"duplicates"`
	Removed    uint64 `json:"removed"`
	Unknown    uint64 `json:"unknown"`
	Refused    uint64 `json:"refused"`
	Orphans    uint64 `json:"orphans"`
	Clears     uint64 `json:"clears"`
}

// predictedRow is the JSON of the predicted cache contents.
type predictedRow struct {
	TTL       float64 `json:"ttl_seconds"`
	Workers   int     `json:"workers"`
	Entries   int     `json:"entries"`
	Bytes     int     `json:"bytes"`
	Inserted  uint64  `json:"inserted"`
	Refreshed uint64  `json:"refreshed"`
	Expired   uint64  `json:"expired"`
	Pruned    uint64  `json:"pruned"`
	Refuted   uint64  `json:"refuted"`
}

func (r *Router) predictionsRow() *predictedRow {
	if !r.predictions.isEnabled() {
		return nil
	}
	st := r.predictions.approxStats()
	t := st.Totals
	return &predictedRow{toSeconds(r.predictions.ttl), st.Workers, st.Entries, st.Bytes, t.Inserted, t.Refreshed, t.Expired, t.Pruned, t.Refuted}
}

type workerFeed struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Blocks   int    `json:"blocks"`
	feedRow
}

func (r *Router) serveIndex(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, r.indexRow())
}

func (r *Router) indexRow() indexRow {
	st, feeds, now := r.cache.feedStates()
	row := indexRow{
		Events: r.usesEvents, CaughtUp: r.caughtUp.Load(),
		Workers: st.Workers, Blocks: st.Blocks, Entries: st.Entries, Bytes: st.Bytes,
		Counts:    indexCounts{st.Counts.Stored, st.Counts.Duplicates, st.Counts.Removed, st.Counts.Unknown, st.Counts.Refused, st.Counts.Orphans, st.Counts.Clears},
		Predicted: r.predictionsRow(),
		Feeds:     []workerFeed{},
	}
	for _, h := range feeds {
		w := h.feed.Worker
		row.Feeds = append(row.Feeds, workerFeed{uint64(w.ID), w.Rank, h.blocks, newFeedRow(now, h)})
	}
	row.Pools, row.Embeddings = r.cache.poolRows(), r.embeddingRow()
	return row
}

// dumpRow is one line of the dump of the index.
type dumpRow struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"dp_rank"`
	Tier     string `json:"tier"`
	Seq      string `json:"seq"`
	// Predicted says that no event has reported the block: the router predicts it from a request it
	// sent.
	Predicted bool `json:"predicted,omitempty"`
}

// serveDump streams the blocks of every worker, one worker after another: each worker is consistent,
// the whole is not. A router without events dumps its predictions.
func (r *Router) serveDump(w http.ResponseWriter, req *http.Request) error {
	holders, held, predicted := r.cache.listHolders, r.cache.appendHeld, false
	if !r.usesEvents && r.predictions.isEnabled() {
		holders, held, predicted = r.predictions.listHolders, r.predictions.appendHeld, true
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc := http.NewResponseController(w)
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	var blocks []prefix.Block
	for _, worker := range holders() {
		if req.Context().Err() != nil {
			return nil
		}
		blocks = held(blocks[:0], worker)
		for i, b := range blocks {
			if i%1024 == 0 {
				extendWriteDeadline(rc)
			}
			row := dumpRow{uint64(worker.ID), worker.Rank, b.Tier.String(), formatHex(uint64(b.Seq)), predicted}
			if enc.Encode(row) != nil {
				return nil // the client has disconnected
			}
		}
	}
	_ = out.Flush()
	return nil
}
