// Package encode decides how the media of requests become rows and where the rows are until they are used: which
// object is encoded when, by which encoder, in which batch and how often, whose rows are in memory, and when they
// are given up. It is the multimodal token lifecycle which some engines call an OmniConnector.
//
// A [Machine] computes and copies nothing. Its methods are events. They append to out what the shell must do: see
// [Action]. The shell runs encoders, copies rows, and reports back.
//
// # From submit to end
//
// SubmitRequest takes all objects of a request at once. It refuses what can never be served: objects which are not
// exactly one for each placeholder, and rows beyond a whole budget. The memory for all rows of a request is reserved
// in one step before any of its objects may run, in the order in which requests came. A request which does not fit
// waits, and later ones wait after it: a large request cannot starve while small ones pass, and two requests never
// wait for each other's memory.
//
// Objects of equal kind and shape form batches. A batch runs as soon as an encoder is idle, when it is full, or when
// its first object has waited for BatchWait. The encoder with the fewest objects gets it. An object holds one of
// MaxJobs permits from the start of its run to the end which the encoder reports, also if no request wants its rows
// any more. If a run of several objects fails as a whole, its halves run again, down to single objects, so that only the
// object which causes the failure fails. Objects of a lost encoder run again elsewhere, the last of MaxAttempts
// times alone. A run of which some objects are finished before the others is split, see SplitRun: they are reported at
// once, and a slow object holds up no other.
//
// A request whose needs change is replaced: ReplaceRequest ends it, and the new one takes over what is encoded of it or
// being encoded. An object has one owner at any time.
//
// A request is reported once: when all its objects are finished. It is ready, or it has failed with one [Failure] for
// each object at fault. StageRequest then asks for staging memory for all its rows in one step, again in order.
//
// # Memory
//
// Two sums never exceed their budgets: CPUBudget bounds the rows which the shell holds in memory, from before an encoder
// may write them; StagingBudget bounds rows in the memory from which they are merged into the input of the model.
// Memory counts until nothing reads or writes it any more. So a run whose request was cancelled holds its memory until
// FinishRun, FailRun or LoseEncoder, and a copy until ReleaseStaging.
//
// # The embedding cache
//
// Package embcache is another owner of rows, with a memory of its own. The shell looks each object up before
// SubmitRequest. A hit is SubmittedObject.Held: the shell has pinned the rows, the object needs no job and no memory of
// CPUBudget. What an encoder returns may be put into the cache too, and is then InCache in its [Result]: the shell
// keeps the pin of Commit, and the request needs no copy of its own. The pin lasts until UnpinRows. The machine asks
// for that once the rows are in staging memory, or with the end of a request whose [Retention] keeps them. What stays
// in the cache after that is the cache's decision. With a cache the machine keeps no rows beyond their request.
//
// Two objects with one key that are submitted before either has rows are two jobs. A shell which joins equal
// computations answers both with one.
//
// From RequestReady on no time ends a request: the shell stages it, or cancels it.
//
// A Machine has one owner: its methods must not run concurrently. It is deterministic: time is an argument, which never
// decreases, and the same calls give the same actions.
package encode

import (
	"container/list"
	"errors"
	"fmt"
	"math"
	"time"

	"penstock/core/kv"
)

// RequestID names one submitted request. No two submits get the same.
type RequestID uint64

// RunID names one run of an encoder. A run which is repeated gets another one, so a late report names a run which is
// not there any more.
type RunID uint64

// RowsID names the memory of one object's rows. It may outlive its request, see [KeepForNextTurn].
type RowsID uint64

// EncoderID names an encoder: a thread, a device, or a worker of role encode.
type EncoderID uint64

// CacheMode says which owner may keep rows beyond their request.
type CacheMode uint8

// The modes.
const (
	NoCache   CacheMode = iota // the machine, within CPUBudget
	WithCache                  // the embedding cache; the machine keeps none
)

// Config bounds a Machine. It has no defaults: the settings have them.
type Config struct {
	// MaxJobs bounds the objects which run at once, on all encoders together.
	MaxJobs int
	// MaxBatch bounds the objects of a run.
	MaxBatch int
	// MaxBatchCost bounds the sum of SubmittedObject.Cost of a run. 0 is no bound.
	MaxBatchCost int
	// BatchWait is how long the first object of a batch waits for others while every encoder is busy.
	BatchWait time.Duration
	// MaxAttempts is how many encoders have to be lost with an object for it to fail.
	MaxAttempts int
	// Timeout is the time from submit to the last object's rows. 0 is no limit.
	Timeout time.Duration
	// CPUBudget and StagingBudget are the budgets in bytes.
	CPUBudget, StagingBudget int64
	// MaxObjects bounds the objects of all requests together. A request without any counts as one, and so does
	// a cancelled request until ReleaseStaging.
	MaxObjects int
	// Cache says which owner keeps rows beyond their request.
	Cache CacheMode
}

// Validate reports every problem of c at once, nil if there is none.
func (c Config) Validate() error {
	var all []error
	for _, one := range []struct {
		name       string
		value, min int64
	}{
		{"objects which run at once", int64(c.MaxJobs), 1},
		{"objects of a batch", int64(c.MaxBatch), 1},
		{"cost of a batch", int64(c.MaxBatchCost), 0},
		{"nanoseconds for which a batch waits", int64(c.BatchWait), 0},
		{"attempts of an object", int64(c.MaxAttempts), 1},
		{"nanoseconds until an object times out", int64(c.Timeout), 0},
		{"bytes of encoded rows", c.CPUBudget, 1},
		{"bytes of staged rows", c.StagingBudget, 1},
		{"objects of all requests", int64(c.MaxObjects), 1},
	} {
		if one.value < one.min {
			all = append(all, fmt.Errorf("encode: %s are limited to %d: must be at least %d", one.name, one.value, one.min))
		}
	}
	if max(c.CPUBudget, c.StagingBudget) > math.MaxInt64/4 {
		all = append(all, fmt.Errorf("encode: budgets of %d and %d bytes: no memory has that many", c.CPUBudget, c.StagingBudget))
	}
	if c.Cache > WithCache {
		all = append(all, fmt.Errorf("encode: cache mode %d is unknown", c.Cache))
	}
	return errors.Join(all...)
}

// ObjectState is the state of an object.
type ObjectState uint8

// The states. DISCARDED is never seen in a live request, except for an object which has failed while others of its
// request are being encoded.
const (
	Encoding   ObjectState = iota // it waits for memory or an encoder, or is being encoded
	EncodedCPU                    // its rows are in memory, or pinned in the embedding cache
	Staged                        // its rows are in staging memory
	Merged                        // the input of the model has its rows; the staging memory is free
	Prefilled                     // the KV cache has them, and the rows are kept
	Discarded                     // its rows are gone, or were given to the embedding cache or to the next turn
)

// String returns the name of the state.
func (s ObjectState) String() string {
	return [...]string{"ENCODING", "ENCODED_CPU", "STAGED", "MERGED", "PREFILLED", "DISCARDED"}[s]
}

// StateError says that an event is illegal in the state of its request. The call has changed nothing.
type StateError struct {
	Request RequestID
	// Event is the method which was called.
	Event string
	State ObjectState
	// Detail is what is missing; "" if State says it.
	Detail string
}

// Error implements error.
func (e *StateError) Error() string {
	text := fmt.Sprintf("encode: %s of request %d in state %v", e.Event, e.Request, e.State)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

var (
	// ErrUnknownRequest says that there is no such request, or that it has ended. The call has changed nothing.
	ErrUnknownRequest = errors.New("encode: the request has ended or was never there")
	// ErrUnknownRun is the answer to a report about a run which has ended before, such as one of a lost encoder.
	// The call has changed nothing, and the shell keeps or frees what the run has made.
	ErrUnknownRun = errors.New("encode: the run has ended or was never there")
	// ErrUnknownEncoder says that there is no such encoder.
	ErrUnknownEncoder = errors.New("encode: there is no such encoder")
)

// Machine is the state of all requests. All objects of a request which was reported have the same state.
//
//	state        event                                              next         action
//	             SubmitRequest: refused                                          an error
//	             SubmitRequest: the embedding cache has the rows    ENCODED_CPU  RequestReady with the last object
//	             SubmitRequest: otherwise                           ENCODING     RunBatch, sooner or later
//	ENCODING     memory is reserved, and kept rows have its key     ENCODED_CPU  RequestReady with the last object
//	ENCODING     FinishRun: rows of the estimated size              ENCODED_CPU  RequestReady with the last object
//	ENCODING     FinishRun: a failure, or rows of another size      DISCARDED    RequestEnded with the last object
//	ENCODING     SplitRun                                           ENCODING
//	ENCODING     FailRun, and the object ran alone                  DISCARDED    RequestEnded with the last object
//	ENCODING     FailRun, and it ran with others                    ENCODING     RunBatch with half of them
//	ENCODING     LoseEncoder, before the last attempt               ENCODING     RunBatch on another encoder
//	ENCODING     LoseEncoder, at the last attempt                   DISCARDED    RequestEnded with the last object
//	ENCODING     Tick, after Timeout                                DISCARDED    AbortRun, RequestEnded
//	ENCODED_CPU  StageRequest                                       ENCODED_CPU  CopyRows, when there is room
//	ENCODED_CPU  MarkCopied, after CopyRows                         STAGED       DropRows or UnpinRows unless kept
//	STAGED       MarkMerged                                         MERGED
//	MERGED       MarkPrefilled, DiscardRows                         DISCARDED    RequestEnded
//	MERGED       MarkPrefilled, another retention                   PREFILLED
//	MERGED       StageRequest, another retention than DiscardRows   MERGED       CopyRows, when there is room
//	PREFILLED    StageRequest                                       PREFILLED    CopyRows, when there is room
//	MERGED,      MarkCopied, after CopyRows                         STAGED
//	PREFILLED
//	any          EndRequest, after MarkPrefilled                    DISCARDED    DropRows or UnpinRows, RequestEnded
//	any          ReplaceRequest                                     DISCARDED    as CancelRequest, without what is taken
//	any          CancelRequest                                      DISCARDED    AbortRun, DropRows, UnpinRows,
//	                                                                             DropStaged, RequestEnded
//
// Every other pair is a [StateError]. The record of a request is deleted with RequestEnded, which is the last action
// of each submit: Completed, Failed or Cancelled. Later calls about it return ErrUnknownRequest, but ReleaseStaging,
// which answers DropStaged.
type Machine struct {
	cfg Config

	lastRequest RequestID
	lastRun     RunID
	lastRows    RowsID
	lastOrder   uint64 // of objects which wait for an encoder

	requests  map[RequestID]*requestRecord
	unsettled list.List // of *requestRecord which were not reported, in the order of their deadlines
	waiting   list.List // of *requestRecord without memory, in the order in which they came
	objects   int       // of all requests; one for a request without any

	encoders []*encoder // by id
	runs     map[RunID]*run
	running  int // objects in runs
	byShape  map[batchShape]*group
	groups   []*group // of byShape
	retries  []*group // batches which run again as they are, the first to run first

	stages     map[RequestID]*stagingHold
	stageQueue list.List // of *stagingHold without memory, in the order in which they were asked for
	orphans    int       // stages whose request has ended

	kept  map[kv.Digest]*rows
	idle  list.List // of kept *rows without a holder, the least recently used first
	stamp uint64    // of the last look at the kept rows

	cpuUsed, stagingUsed, idleBytes int64
	stats                           Stats // the counters
}

// requestRecord is a submitted request.
type requestRecord struct {
	id        RequestID
	objects   []object
	retention Retention
	state     ObjectState // Encoding until it was reported
	// merged and prefilled say that it has been so at least once.
	merged, prefilled bool
	unfinished        int // objects
	failures          []Failure
	deadline          kv.Mono       // without meaning if there is no Timeout
	unsettled         *list.Element // in Machine.unsettled
	waiting           *list.Element // in Machine.waiting; nil once its memory is reserved
	stage             *stagingHold
}

// object is an object of a request.
type object struct {
	request *requestRecord
	index   int
	SubmittedObject
	state ObjectState // as long as the request was not reported
	rows  *rows       // nil without memory
	// attempts counts its runs, and losses the encoders which were lost with it.
	attempts, losses int
	run              *run // nil if it does not run
	slot             int  // in run
	group            *group
	order            uint64  // of the wait in group
	since            kv.Mono // the same as time
}

// New returns a machine without encoders and requests.
func New(cfg Config) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Machine{
		cfg: cfg, requests: map[RequestID]*requestRecord{}, runs: map[RunID]*run{}, byShape: map[batchShape]*group{},
		stages: map[RequestID]*stagingHold{}, kept: map[kv.Digest]*rows{},
	}, nil
}

// Deadline returns when time alone makes the machine act, if it does: at the latest then Tick is due. Any event may
// change it.
func (m *Machine) Deadline() (at kv.Mono, ok bool) {
	if first := m.unsettled.Front(); first != nil && m.cfg.Timeout > 0 {
		at, ok = first.Value.(*requestRecord).deadline, true
	}
	if m.leastLoaded() == nil {
		return at, ok // no batch could run
	}
	for _, g := range m.groups {
		if due := g.objects[0].since.Add(m.cfg.BatchWait); !ok || due < at {
			at, ok = due, true
		}
	}
	return at, ok
}

// Tick is the event of time: requests fail at their deadline, and batches which have waited run.
func (m *Machine) Tick(now kv.Mono, out []Action) []Action {
	for first := m.unsettled.Front(); first != nil && m.cfg.Timeout > 0; first = m.unsettled.Front() {
		q := first.Value.(*requestRecord)
		if now < q.deadline {
			break
		}
		for i := range q.objects {
			if o := &q.objects[i]; o.state == Encoding {
				out = m.failObject(o, DeadlinePassed, fmt.Sprintf("not encoded within %v", m.cfg.Timeout), out)
			}
		}
		out = m.settleRequest(q, out)
	}
	return m.advance(now, out)
}

// advance does what memory, permits and time allow.
func (m *Machine) advance(now kv.Mono, out []Action) []Action {
	out = m.admitRequests(now, out)
	out = m.startRuns(now, out)
	return m.grantStaging(out)
}

// requestIn returns a live request, or why the event is illegal for it.
func (m *Machine) requestIn(id RequestID) (*requestRecord, error) {
	q, ok := m.requests[id]
	if !ok {
		return nil, ErrUnknownRequest
	}
	return q, nil
}

// refuse returns the error of an illegal event.
func (q *requestRecord) refuse(event, detail string) error {
	return &StateError{Request: q.id, Event: event, State: q.state, Detail: detail}
}

// StateOf returns the state of an object of a live request.
func (m *Machine) StateOf(id RequestID, index int) (ObjectState, error) {
	q, err := m.requestIn(id)
	switch {
	case err != nil:
		return 0, err
	case index < 0 || index >= len(q.objects):
		return 0, fmt.Errorf("encode: request %d has %d objects, not object %d", id, len(q.objects), index)
	case q.state == Encoding:
		return q.objects[index].state, nil
	}
	return q.state, nil
}

// FirstUnfinished returns the insertion position of the first object without rows. The prompt before it may be
// prefilled meanwhile. ok is false if all objects have rows.
func (m *Machine) FirstUnfinished(id RequestID) (position int, ok bool, err error) {
	q, err := m.requestIn(id)
	if err != nil {
		return 0, false, err
	}
	for i := range q.objects {
		if o := &q.objects[i]; o.state != EncodedCPU && (!ok || o.Position < position) {
			position, ok = o.Position, true
		}
	}
	return position, ok, nil
}
