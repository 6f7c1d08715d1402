package enginemock

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/core/splitmix"
	"penstock/internal/zmtp"
)

// eventPublisher publishes the changes of a rank's cache in numbered batches, keeps the last batches for
// replay, and serves snapshots of the cache.
type eventPublisher struct {
	cfg     *Config
	dialect *dialect
	encoder eventEncoder
	rank    int
	faults  *Faults

	pulledReady chan struct{} // has an element while the pulled list has new events

	// A restart replaces the sockets while mu is held and no loop serves them.
	pub        *zmtp.Pub
	replay     *zmtp.Router // nil without replay
	snapshot   *zmtp.Router // nil without snapshots
	boundAddrs [3]string    // addresses of the three sockets, once bound

	mu struct {
		sync.Mutex
		seq     uint64
		life    uint64      // counts restarts
		kept    []sentBatch // the last batches, oldest first
		pulled  []pulledEvent
		event   uint64 // number of the next pulled event
		cleared bool   // a Cleared event is due with the next batch
		// cached are the blocks which were published as being in the engine's own memory.
		cached map[uint64]cachedPosition
		stored uint64 // number of blocks ever stored, for ordering
	}
}

// cachedPosition is a cached block's parent, and its order among stored blocks.
type cachedPosition struct{ parent, order uint64 }

// sentBatch is a batch as it was published.
type sentBatch struct {
	seq     uint64
	topic   string
	payload []byte
}

// sendQueue is how many batches may wait for one subscriber before it loses some: the default of the engines.
const sendQueue = 100_000

// openPublisher binds the sockets of a rank.
func openPublisher(ctx context.Context, cfg *Config, d *dialect, rank int, faults *Faults) (*eventPublisher, error) {
	f := &eventPublisher{cfg: cfg, dialect: d, rank: rank, faults: faults, pulledReady: make(chan struct{}, 1), encoder: eventEncoder{
		dialect:      d,
		asMaps:       cfg.Features.MapEvents.isOn(d.mapEvents),
		binaryHashes: cfg.Features.BinaryHashes.isOn(false),
		noExtraKeys:  !cfg.Features.ExtraKeys.isOn(true),
	}}
	f.mu.seq, f.mu.cached = cfg.FirstSeq, map[uint64]cachedPosition{}
	return f, f.openSockets(ctx)
}

// openSockets binds the sockets which the settings ask for.
func (f *eventPublisher) openSockets(ctx context.Context) error {
	cfg, rank := f.cfg, f.rank
	if cfg.KVEvents == "" {
		return nil
	}
	at := [...]string{cfg.KVEvents, cfg.KVReplay, cfg.Snapshot}
	for i, ep := range f.boundAddrs {
		if ep != "" {
			at[i] = ep
		}
	}
	options := zmtp.Options{HighWater: sendQueue, Linger: 100 * time.Millisecond}
	ep, err := endpointOf("events", at[0], rank, f.boundAddrs[0] != "")
	if err != nil {
		return err
	}
	if cfg.Dial == Connect {
		f.pub, err = zmtp.DialPub(ctx, ep, options)
	} else {
		f.pub, err = zmtp.ListenPub(ep, options)
	}
	if err != nil {
		return fmt.Errorf("publish events of rank %d at %s: %w", rank, ep, err)
	}
	options.HighWater = cfg.BufferSteps + 16
	if cfg.Dial != Connect {
		f.boundAddrs[0] = f.pub.Addr().String()
	}
	for i, socket := range []**zmtp.Router{&f.replay, &f.snapshot} {
		what := [...]string{"replay", "snapshots"}[i]
		if at[i+1] == "" {
			continue
		}
		ep, err := endpointOf(what, at[i+1], rank, f.boundAddrs[i+1] != "")
		if err == nil {
			*socket, err = zmtp.ListenRouter(ep, options)
		}
		if err != nil {
			f.closeSockets()
			return fmt.Errorf("serve %s of rank %d at %s: %w", what, rank, at[i+1], err)
		}
		f.boundAddrs[i+1] = (*socket).Addr().String()
	}
	return nil
}

// endpointOf returns the endpoint of a rank, or text itself if it was bound before. Ports which the system
// chooses are not offset by the rank.
func endpointOf(what, text string, rank int, bound bool) (zmtp.Endpoint, error) {
	ep, err := zmtp.ParseEndpoint(text)
	if err != nil {
		return ep, fmt.Errorf("endpoint of %s: %w", what, err)
	}
	if rank == 0 || bound || strings.HasSuffix(text, ":0") {
		return ep, nil
	}
	if ep = ep.RankEndpoint(rank); ep.IsZero() {
		return ep, fmt.Errorf("endpoint of %s: %s has no place for rank %d beside it", what, text, rank)
	}
	return ep, nil
}

// closeSockets closes the sockets.
func (f *eventPublisher) closeSockets() {
	if f.pub != nil {
		_ = f.pub.Close()
	}
	for _, r := range []*zmtp.Router{f.replay, f.snapshot} {
		if r != nil {
			_ = r.Close()
		}
	}
}

// liveTopic is the topic of live batches: SGLang's contains the publisher's epoch if it has snapshots.
func (f *eventPublisher) liveTopic() string {
	if f.dialect.epochTopics && f.snapshot != nil {
		return f.cfg.Topic + "\x00sgl-kv-epoch=" + f.publisherEpoch()
	}
	return f.cfg.Topic
}

// publisherEpoch names the incarnation of the publisher.
func (f *eventPublisher) publisherEpoch() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], splitmix.Mix(f.cfg.Seed+splitmix.Step*(f.mu.life+1)+uint64(f.rank)))
	return hex.EncodeToString(b[:])
}

// publishChanges sends changes as one batch. It never waits.
func (f *eventPublisher) publishChanges(changes []cacheChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.cleared {
		changes = append([]cacheChange{{kind: allCleared}}, changes...)
		f.mu.cleared = false
	}
	if len(changes) == 0 {
		return
	}
	if f.usesPulledList() {
		f.appendPulledLocked(changes)
	}
	f.trackCachedLocked(changes)
	if f.pub == nil || f.usesPulledList() {
		return
	}
	if x, ok := f.faults.takeDue(FaultGap); ok {
		f.mu.seq += uint64(max(1, x.After))
	}
	f.sendLocked(f.liveTopic(), f.encoder.encodeBatch(changes, f.rank, unixSeconds(time.Now())))
}

// trackCachedLocked records what is cached.
func (f *eventPublisher) trackCachedLocked(changes []cacheChange) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.kind == allCleared:
			clear(f.mu.cached)
		case c.level > 0 || c.group > 0:
		case c.kind == blockRemoved:
			for _, n := range c.names {
				delete(f.mu.cached, n)
			}
		default:
			parent := c.parent
			for _, n := range c.names {
				f.mu.stored++
				f.mu.cached[n] = cachedPosition{parent, f.mu.stored}
				parent = n
			}
		}
	}
}

// snapshotRecordsLocked returns what is cached, in the order in which it was stored.
func (f *eventPublisher) snapshotRecordsLocked() []snapshotRecord {
	names := slices.SortedFunc(maps.Keys(f.mu.cached), func(a, b uint64) int {
		return cmp.Compare(f.mu.cached[a].order, f.mu.cached[b].order)
	})
	all := make([]snapshotRecord, len(names))
	for i, n := range names {
		all[i] = snapshotRecord{f.mu.cached[n].parent, []uint64{n}}
	}
	return all
}

// sendLocked publishes and keeps one payload.
func (f *eventPublisher) sendLocked(topic string, payload []byte) {
	k := sentBatch{seq: f.mu.seq, topic: topic, payload: payload}
	f.mu.seq++
	if len(f.mu.kept) == f.cfg.BufferSteps {
		f.mu.kept = f.mu.kept[1:]
	}
	f.mu.kept = append(f.mu.kept, k)
	if _, lost := f.faults.takeDue(FaultDropEvents); lost {
		return
	}
	if _, bad := f.faults.takeDue(FaultGarbleEvents); bad {
		payload = corruptPayload(payload)
	}
	f.pub.Send([]byte(topic), encodeSeq(k.seq), payload)
}

// corruptPayload returns the payload with every byte changed; its first byte is one that msgpack never uses.
func corruptPayload(payload []byte) []byte {
	g := make([]byte, len(payload))
	for i, b := range payload {
		g[i] = b ^ 0x52
	}
	g[0] = 0xc1
	return g
}

func encodeSeq(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// publishCleared publishes that the cache is empty: at once, or as vLLM does with the next batch.
func (f *eventPublisher) publishCleared() {
	f.mu.Lock()
	f.mu.cleared = true
	f.mu.Unlock()
	if !f.dialect.clearsLate {
		f.publishChanges(nil)
	}
}

// restartPublisher starts over: new sockets at the same endpoints, numbers from the first, and nothing to
// replay.
func (f *eventPublisher) restartPublisher(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeSockets()
	f.mu.seq, f.mu.kept, f.mu.cleared = f.cfg.FirstSeq, nil, false
	f.mu.pulled, f.mu.event = nil, 0
	clear(f.mu.cached)
	f.mu.life++
	return f.openSockets(ctx)
}

// endOfReplay is the sequence number of the message which ends a replay.
var endOfReplay = []byte{255, 255, 255, 255, 255, 255, 255, 255}

// serveReplay answers requests for replay until ctx ends.
func (f *eventPublisher) serveReplay(ctx context.Context) error {
	for {
		id, frames, err := f.replay.Recv(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
			continue // as the engines do
		}
		if _, silent := f.faults.takeDue(FaultNoReplay); silent {
			continue
		}
		f.replayFrom(id, binary.BigEndian.Uint64(frames[1]))
	}
}

// replayFrom sends the kept batches from a number on. What does not fit a slow peer's queue is lost, as with
// the engines.
func (f *eventPublisher) replayFrom(id []byte, from uint64) {
	f.mu.Lock()
	all := append([]sentBatch(nil), f.mu.kept...)
	f.mu.Unlock()
	send := func(topic string, seq, payload []byte) {
		if f.dialect.replayTopics {
			_ = f.replay.Send(id, nil, []byte(topic), seq, payload)
			return
		}
		_ = f.replay.Send(id, nil, seq, payload)
	}
	for _, k := range all {
		if k.seq >= from {
			send(k.topic, encodeSeq(k.seq), k.payload)
		}
	}
	send("", endOfReplay, nil)
}

// ignoreEnd returns nil for the error of a loop which ended with ctx or its socket.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, zmtp.ErrClosed) {
		return nil
	}
	return err
}

// snapshotRecord is one record of a snapshot: a parent and the blocks after it.
type snapshotRecord struct {
	parent uint64
	names  []uint64
}

// recordsPerChunk is how many records one chunk has.
const recordsPerChunk = 4096

// serveSnapshots answers SGLang's requests for snapshots until ctx ends.
func (f *eventPublisher) serveSnapshots(ctx context.Context) error {
	for n := uint64(1); ; n++ {
		id, frames, err := f.snapshot.Recv(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if len(frames) != 2 || string(frames[1]) != "snapshot-v1" {
			_ = f.snapshot.Send(id, nil, []byte("error"), []byte("unsupported snapshot request"))
			continue
		}
		f.sendSnapshot(id, n)
	}
}

// sendSnapshot sends one snapshot, and publishes a batch without events as its barrier.
func (f *eventPublisher) sendSnapshot(id []byte, n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.snapshotRecordsLocked()
	barrier, epoch := strconv.FormatUint(n, 16)+"-"+strconv.Itoa(f.rank), f.publisherEpoch()
	seq := f.mu.seq
	f.sendLocked(f.liveTopic()+"\x00sgl-kv-snapshot="+barrier, f.encoder.encodeBatch(nil, f.rank, unixSeconds(time.Now())))
	h := packArray(nil, 7)
	h = packUint(h, 1)
	h = packString(h, epoch)
	h = packUint(h, uint64(f.rank))
	h = packUint(h, seq+1)
	h = packUint(h, seq)
	h = packString(h, barrier)
	h = packUint(h, uint64(len(all)))
	_ = f.snapshot.Send(id, nil, []byte("header"), h)
	for len(all) > 0 {
		part := all[:min(len(all), recordsPerChunk)]
		all = all[len(part):]
		b := packArray(nil, len(part))
		for _, r := range part {
			b = packArray(b, 2)
			b = f.encoder.appendParent(b, &cacheChange{parent: r.parent})
			b = f.encoder.appendNames(b, r.names)
		}
		_ = f.snapshot.Send(id, nil, []byte("chunk"), b)
	}
	_ = f.snapshot.Send(id, nil, []byte("end"), nil)
}
