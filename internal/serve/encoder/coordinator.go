// Package encoder has media encoded by the encode workers of a model: it is the coordinator of embedding caches, a
// library in each process whose engines show media to a model. No process coordinates for others.
//
// Package rendezvous orders the encode workers for an object: holders of its rows first, then by the hash of the
// object's key, so that two processes which miss one object ask one worker, which encodes it once. One which fails
// is not asked again for a while, and the next is. What none of them does is the caller's.
//
// If no encode worker holds the rows, other workers of the model which do are asked first: these encode nothing for
// others, and one which has evicted the rows meanwhile says so at once.
package encoder

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"penstock/core/embcache"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/rendezvous"
	"penstock/internal/backoff"
	"penstock/internal/bounded"
	"penstock/internal/catalog"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/holders"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

// Config says for which model encode workers are asked, and how.
type Config struct {
	// Card is that of the engines which show media. Asked are the workers which agree with it, of an equal Encoder.
	Card engine.Card
	// Namespace and Component are the encode workers'.
	Namespace, Component string
	// Attempts bounds the workers which are asked for an object, and Limit the time for all of them. Defaults: 2 and a
	// minute.
	Attempts int
	Limit    time.Duration
	// AskHolders asks workers which serve requests for rows that they hold, too, at most HolderAttempts of them, each for
	// HolderLimit. Defaults: 2 and 5 s.
	AskHolders     bool
	HolderAttempts int
	HolderLimit    time.Duration
	// Pause is how long a worker which has failed is not asked. Default: 5 s.
	Pause time.Duration
	Log   *slog.Logger
}

func (c *Config) ensureDefaults() {
	c.Attempts = cmp.Or(c.Attempts, 2)
	c.Limit = cmp.Or(c.Limit, time.Minute)
	c.HolderAttempts = cmp.Or(c.HolderAttempts, 2)
	c.HolderLimit = cmp.Or(c.HolderLimit, 5*time.Second)
	c.Pause = cmp.Or(c.Pause, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// HolderIndex knows which workers have the rows of objects.
type HolderIndex interface {
	// Holders returns the workers which are believed to have the rows of a key, in any order.
	Holders(key *embcache.RowKey) []kv.WorkerID
	// SetWorkers says which workers there are, with the epochs of their registrations.
	SetWorkers(workers []holders.Worker)
}

// Services are the planes and indexes that a Coordinator uses.
type Services struct {
	RPC      rpc.Plane
	Registry disco.Registry
	// Fetch fetches what the process at addr lends by a handle into memory, and returns its digest.
	Fetch func(ctx context.Context, addr string, handle, into []byte) (digest []byte, err error)
	// Holders, if not nil, knows what encode workers have.
	Holders HolderIndex
	// Regions, if not nil, reads the embedding caches of other workers of this host.
	Regions RegionReader
}

// RegionReader reads regions in which workers of this host keep rows; see embregion.Readers.
type RegionReader interface {
	SetRegions(addrs []string)
	ReadRows(addrs []string, want *embregion.Wanted, into func(grid [3]int) []byte) (embregion.Found, bool)
}

// Coordinator asks encode workers, and workers which hold rows. It is safe for concurrent use.
type Coordinator struct {
	cfg      Config
	services Services
	throttle *obs.Throttle
	mu       struct {
		sync.Mutex
		snapshot *catalog.Snapshot
		sets     map[disco.Kind][]disco.Instance // as registered
		workers  []*peer                         // by id
		own      kv.WorkerID                     // which is not asked; 0 is none
		handoffs *bounded.Cache[handoffKey, handoff]
	}
}

// peer is one worker which can be asked. The lock of Coordinator guards what changes.
type peer struct {
	id    kv.WorkerID
	epoch uint64
	addr  string
	// region is where processes of its host read its embedding cache; "" is nowhere.
	region string
	// holdsOnly says that it serves requests, and is asked for rows which it holds alone.
	holdsOnly bool
	// inFlight are the objects for which this process is asking it, reported its own count and when it came.
	inFlight   int
	reported   int
	reportedAt time.Time
	// pausedUntil is when it may be asked again.
	pausedUntil time.Time
}

// reportAge is how long a worker's count of its objects says something.
const reportAge = 2 * time.Second

// New returns a Coordinator which knows no worker until Run.
func New(cfg Config, services Services) *Coordinator {
	cfg.ensureDefaults()
	c := &Coordinator{cfg: cfg, services: services, throttle: obs.NewThrottle(cfg.Log, 10*time.Second)}
	c.mu.snapshot, c.mu.sets = catalog.NewSnapshot(), map[disco.Kind][]disco.Instance{}
	c.mu.handoffs = newHandoffs()
	return c
}

// ExcludeWorker says which worker the engine is of: it is never asked. It is called before Run.
func (c *Coordinator) ExcludeWorker(id kv.WorkerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.own = id
}

// Run follows the registry until ctx ends. A registry that fails is watched again; meanwhile the last set stays.
func (c *Coordinator) Run(ctx context.Context) error {
	defer c.throttle.Flush(context.WithoutCancel(ctx))
	var watches sync.WaitGroup
	watches.Go(func() { c.watchKind(ctx, disco.KindEncode) })
	if c.cfg.AskHolders {
		watches.Go(func() { c.watchKind(ctx, disco.KindWorker) })
	}
	watches.Wait()
	return nil
}

// watchKind follows the registered workers of one kind until ctx ends.
func (c *Coordinator) watchKind(ctx context.Context, kind disco.Kind) {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := c.services.Registry.Watch(ctx, kind, func(set []disco.Instance) {
			c.applySet(kind, set)
			wait.Reset()
		})
		if ctx.Err() != nil {
			return
		}
		c.throttle.Log(ctx, slog.LevelWarn, "the watch of workers which encode, or hold rows, ended; it begins again", "kind", string(kind), "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// applySet takes over the registered workers of a kind. What is known of one which stays is kept.
func (c *Coordinator) applySet(kind disco.Kind, set []disco.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.sets[kind] = set
	set = slices.Concat(c.mu.sets[disco.KindEncode], c.mu.sets[disco.KindWorker])
	sel := catalog.Selection{Namespace: c.cfg.Namespace, Component: c.cfg.Component}
	c.mu.snapshot = c.mu.snapshot.Next(sel, set, time.Now())
	was := c.mu.workers
	c.mu.workers = nil
	var publish []holders.Worker
	for _, w := range c.mu.snapshot.Workers {
		holds := c.holdsForModel(w)
		if !holds && !c.encodesForModel(w) || w.ID == c.mu.own {
			continue
		}
		p := &peer{id: w.ID, epoch: w.Epoch, addr: w.Addr, region: w.Card.EmbeddingRegion, holdsOnly: holds}
		for _, old := range was {
			if old.id == p.id && old.epoch == p.epoch && old.addr == p.addr {
				p = old
			}
		}
		c.mu.workers = append(c.mu.workers, p)
		if w.Card.EmbeddingEvents {
			publish = append(publish, holders.Worker{Worker: kv.Worker{ID: w.ID}, Epoch: w.Epoch})
		}
	}
	if c.services.Holders != nil {
		c.services.Holders.SetWorkers(publish)
	}
	if c.services.Regions != nil {
		c.services.Regions.SetRegions(c.regionsLocked(func(*peer) bool { return true }))
	}
}

// regionsLocked returns the regions of the workers for which ok reports true.
func (c *Coordinator) regionsLocked(ok func(*peer) bool) (addrs []string) {
	for _, p := range c.mu.workers {
		if p.region != "" && ok(p) {
			addrs = append(addrs, p.region)
		}
	}
	return addrs
}

// encodesForModel reports whether a worker may make the same rows as the model's own encoder. The worker itself
// compares the whole fingerprint.
func (c *Coordinator) encodesForModel(w *catalog.Worker) bool {
	return w.Problem == "" && w.Card.Role == engine.RoleEncode && w.Card.Encoder != "" && w.Card.Encoder == c.cfg.Card.Encoder &&
		w.Card.DescribeDifference(&c.cfg.Card) == ""
}

// holdsForModel reports whether a worker which serves requests may hold rows of the model's encoder.
func (c *Coordinator) holdsForModel(w *catalog.Worker) bool {
	return c.cfg.AskHolders && w.Problem == "" && w.Card.Role.TakesRequests() && w.Card.EmbeddingEvents && w.Card.Encoder != "" &&
		w.Card.Encoder == c.cfg.Card.Encoder
}

// HasEncoders reports whether there is an encode worker to ask.
func (c *Coordinator) HasEncoders() bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.mu.workers {
		if !p.holdsOnly && !now.Before(p.pausedUntil) {
			return true
		}
	}
	return false
}

// HasHolder reports whether a worker which serves requests is believed to hold the rows of a key.
func (c *Coordinator) HasHolder(key *embcache.RowKey) bool {
	if !c.cfg.AskHolders || c.services.Holders == nil {
		return false
	}
	ids := c.services.Holders.Holders(key)
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.mu.workers, func(p *peer) bool {
		return p.holdsOnly && !now.Before(p.pausedUntil) && slices.Contains(ids, p.id)
	})
}

// ReadShared copies the rows of a key, of which there is a number of a width, out of the memory of a worker of this host
// which is believed to hold them. It sends nothing and does not wait. See embregion.Readers for into.
func (c *Coordinator) ReadShared(key *embcache.RowKey, rows, width int, into func(grid [3]int) []byte) (embregion.Found, bool) {
	if c.services.Regions == nil || c.services.Holders == nil {
		return embregion.Found{}, false
	}
	ids := c.services.Holders.Holders(key)
	c.mu.Lock()
	addrs := c.regionsLocked(func(p *peer) bool { return slices.Contains(ids, p.id) })
	c.mu.Unlock()
	if len(addrs) == 0 {
		return embregion.Found{}, false
	}
	return c.services.Regions.ReadRows(addrs, &embregion.Wanted{
		Key: key.TierKey(), Kind: key.Kind, Type: key.Type, Rows: rows, Width: width, Bytes: rows * width * media.ElementType(key.Type).Size(),
	}, into)
}

// errNoWorker says that there is no worker to ask.
var errNoWorker = fault.New(fault.Unavailable, "encode: there is no encode worker to ask")

// EncodeObject puts the rows of an object into job.Into and returns their grid. It asks one worker after another, as
// long as they fail, within the bounds of Config. MediaFailed says that the object itself cannot be encoded. It
// returns ctx's error when ctx ends.
func (c *Coordinator) EncodeObject(ctx context.Context, job *engine.EncodeJob) (grid [3]int, err error) {
	answer, _, err := c.askInOrder(ctx, job)
	return answer.Rows.Grid, err
}

// askInOrder returns the answer of the first worker which encodes an object, and the worker.
func (c *Coordinator) askInOrder(ctx context.Context, job *engine.EncodeJob) (answer engine.Encoded, by *peer, err error) {
	within, cancel := context.WithTimeout(ctx, c.cfg.Limit)
	defer cancel()
	err = errNoWorker
	holders, encoders := c.orderWorkers(job)
	for _, p := range holders {
		if answer, err = c.askHolder(within, p, job); err == nil {
			return answer, p, nil
		}
		if ctx.Err() != nil {
			return answer, nil, ctx.Err()
		}
	}
	for i, p := range encoders {
		if i == c.cfg.Attempts || within.Err() != nil {
			break
		}
		if answer, err = c.askWorker(within, p, job); err == nil {
			return answer, p, nil
		}
		if ctx.Err() != nil {
			return answer, nil, ctx.Err()
		}
		if fault.CodeOf(err) == fault.MediaFailed {
			return answer, nil, err
		}
		c.throttle.Log(ctx, slog.LevelWarn, "an encode worker did not encode an object, the next does, or the engine itself", "encoder", uint64(p.id), "request", job.ID, "error", err)
	}
	return answer, nil, err
}

// orderWorkers returns the workers in the order in which they are asked for an object: holders of its rows,
// if no encode worker does, and the encode workers.
func (c *Coordinator) orderWorkers(job *engine.EncodeJob) (holders, encoders []*peer) {
	var ids []kv.WorkerID
	if c.services.Holders != nil {
		ids = c.services.Holders.Holders(&job.Key)
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var peers []*peer
	var candidates []rendezvous.Candidate
	for _, p := range c.mu.workers {
		if now.Before(p.pausedUntil) || p.holdsOnly && job.HandOff {
			continue
		}
		load := p.inFlight
		if now.Sub(p.reportedAt) < reportAge {
			load = max(load, p.reported)
		}
		peers = append(peers, p)
		candidates = append(candidates, rendezvous.Candidate{ID: p.id, Load: load, Holds: slices.Contains(ids, p.id), HoldsOnly: p.holdsOnly})
	}
	order, n := rendezvous.AppendAskOrder(nil, job.Key.PlaceHash(job.Object.Key.Hash), candidates, c.cfg.HolderAttempts)
	all := make([]*peer, len(order))
	for i, at := range order {
		all[i] = peers[at]
	}
	return all[:n], all[n:]
}

// askHolder asks a worker for rows which it is believed to hold. One which does not is no failure: it has evicted them.
func (c *Coordinator) askHolder(ctx context.Context, p *peer, job *engine.EncodeJob) (answer engine.Encoded, err error) {
	within, cancel := context.WithTimeout(ctx, c.cfg.HolderLimit)
	defer cancel()
	c.mu.Lock()
	p.inFlight++
	c.mu.Unlock()
	req := c.newRequest(job)
	o := &req.Objects[0]
	o.Source, o.Tensor, req.CachedOnly = "", media.Tensor{}, true
	err = c.call(within, p.addr, req, job, &answer)
	c.mu.Lock()
	defer c.mu.Unlock()
	p.inFlight--
	if err != nil && ctx.Err() == nil && fault.CodeOf(err) != fault.NotFound {
		p.pausedUntil = time.Now().Add(c.pauseAfter(err))
		c.throttle.Log(ctx, slog.LevelWarn, "a worker did not give the rows which it holds: the next does, or they are encoded", "holder", uint64(p.id), "request", job.ID, "error", err)
	}
	return answer, err
}

// newRequest returns the request for the rows of an object.
func (c *Coordinator) newRequest(job *engine.EncodeJob) *engine.EncodeRequest {
	return &engine.EncodeRequest{
		ID: job.ID, Attempt: 1, Model: c.cfg.Card.Name, Namespace: job.Key.Salt, Encoder: job.Key.Encoder, Objects: []media.Object{*job.Object},
	}
}

// askWorker has one worker encode an object, and notes how that went.
func (c *Coordinator) askWorker(ctx context.Context, p *peer, job *engine.EncodeJob) (answer engine.Encoded, err error) {
	c.mu.Lock()
	p.inFlight++
	c.mu.Unlock()
	req := c.newRequest(job)
	if !job.HandOff && stripContent(req) {
		err = c.call(ctx, p.addr, req, job, &answer)
		if code := fault.CodeOf(err); err != nil && (code == fault.NotFound || code == fault.MediaFailed) && ctx.Err() == nil {
			req.Objects[0], req.CachedOnly = *job.Object, false
			err = c.call(ctx, p.addr, req, job, &answer)
		}
	} else {
		err = c.call(ctx, p.addr, req, job, &answer)
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	p.inFlight--
	switch {
	case err == nil:
		p.reported, p.reportedAt = answer.Load, now
	case errors.Is(ctx.Err(), context.Canceled): // its request is over
	default:
		p.pausedUntil = now.Add(c.pauseAfter(err))
	}
	return answer, err
}

// refusalPause is how long a worker which makes other rows, or none, is not asked.
const refusalPause = 10 * time.Minute

// pauseAfter returns how long a worker is not asked after an error.
func (c *Coordinator) pauseAfter(err error) time.Duration {
	switch fault.CodeOf(err) {
	case fault.MediaFailed:
		return 0
	case fault.Conflict, fault.Unimplemented, fault.NotFound:
		return refusalPause
	case fault.Overloaded:
		return c.cfg.Pause / 5
	}
	return c.cfg.Pause
}

// maxAttached bounds what travels with a request although the worker may have the rows, in bytes.
const maxAttached = 4 << 10

// stripContent removes the content which travels with a request, so that it is not sent to a worker which has the
// rows, and reports whether it has: then the worker is asked again, with the content, if it needs it.
func stripContent(req *engine.EncodeRequest) bool {
	o := &req.Objects[0]
	stripped := false
	if len(o.Tensor.Data) > maxAttached {
		o.Tensor, stripped = media.Tensor{}, true
	}
	if len(o.Source) > maxAttached { // a data: URI
		o.Source, stripped = "", true
	}
	req.CachedOnly = stripped && o.Source == "" && o.Tensor.IsZero()
	return stripped
}

// call makes one call of encode, and fetches the rows.
func (c *Coordinator) call(ctx context.Context, addr string, req *engine.EncodeRequest, job *engine.EncodeJob, answer *engine.Encoded) error {
	*answer = engine.Encoded{}
	done := false
	err := c.services.RPC.Call(ctx, addr, engine.MethodEncode, engine.AppendEncodeRequest(nil, req), func(frame []byte) error {
		if err := engine.DecodeEncoded(frame, answer); err != nil {
			return err
		}
		if done {
			return fault.New(fault.Internal, "encode: a second answer for one object")
		}
		done = true
		if err := checkAnswer(answer, req, job); err != nil || job.HandOff {
			return err
		}
		return c.takeRows(ctx, addr, &answer.Rows, job.Into)
	})
	if err == nil && !done {
		return fault.New(fault.Unavailable, "encode: the answer ended early")
	}
	return err
}

// checkAnswer checks that an answer is what was asked for: rows of a shape and a fingerprint, or a handoff.
func checkAnswer(e *engine.Encoded, req *engine.EncodeRequest, job *engine.EncodeJob) error {
	r := &e.Rows
	switch {
	case e.Attempt != req.Attempt || e.Object != 0:
		return fault.New(fault.Internal, "encode: the answer is to attempt %d, object %d", e.Attempt, e.Object)
	case job.HandOff && len(e.Handoff) == 0:
		return fault.New(fault.Conflict, "encode: the worker answers with rows, and the engine takes handoffs of its own kind")
	case job.HandOff:
		return nil
	case len(e.Handoff) > 0:
		return fault.New(fault.Conflict, "encode: the worker answers with a handoff for engines of its own kind, and the engine takes rows")
	case r.Encoder != job.Key.Encoder:
		return fault.New(fault.Conflict, "encode: the rows are of the encoder %.200q", r.Encoder)
	case len(r.Shape) != 2 || r.Shape[1] != job.Width || r.Type != media.ElementType(job.Key.Type):
		return fault.New(fault.Conflict, "encode: the rows are %v of %s, and the model's are %d wide", r.Shape, r.Type, job.Width)
	case r.Shape[0] != job.Rows || r.Bytes(engine.MaxRowsBytes) != len(job.Into):
		return fault.New(fault.MediaFailed, "encode: the object has %d rows there, and %d tokens in the prompt", r.Shape[0], job.Rows)
	}
	return nil
}

// takeRows puts the elements of rows into memory and compares their digest.
func (c *Coordinator) takeRows(ctx context.Context, addr string, r *media.EncoderRows, into []byte) error {
	var digest []byte
	var err error
	if len(r.Data) > 0 {
		copy(into, r.Data)
		digest = binary.LittleEndian.AppendUint64(nil, uint64(xfer.DigestOf(into)))
	} else {
		digest, err = c.services.Fetch(ctx, addr, r.Handle, into)
	}
	if err == nil && string(digest) != string(r.Digest) {
		err = fault.New(fault.TransferFailed, "encode: other rows came than were encoded")
	}
	return err
}
