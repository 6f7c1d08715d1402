package natsd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrInterrupted is in the chain of Tail's error when reading again may succeed: the connection was
// lost, a message is missing, or the server deleted the consumer.
var ErrInterrupted = errors.New("interrupted")

// TailStart selects where Tail starts.
type TailStart struct {
	// Subjects to read; at least one.
	Subjects []string
	// Seq is the first sequence number. 0 means the last message of each subject, followed by all
	// new messages.
	Seq uint64
}

// Msg is one message of a stream.
type Msg struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Seq     uint64
	Stored  time.Time // by the server's clock
	// Pending is how many further messages were waiting when the server sent this one.
	Pending uint64
}

const (
	// tailCheckInterval is the silence after which a reader which has not caught up asks the server
	// what is pending. A reader which has caught up waits for two heartbeats.
	tailCheckInterval = time.Second
	// maxOverdueChecks is how many consecutive answers may say that messages were sent which have
	// not arrived, before these count as lost.
	maxOverdueChecks = 10
)

// Tail reads a stream through an ephemeral consumer. It passes each message to sink, in order and
// once, until ctx ends (it returns nil), sink fails (it returns sink's error), or it cannot
// guarantee the next message (ErrInterrupted). It calls caughtUp once, when every message that
// existed at the start has been passed to sink or was removed. Messages which were sent but not
// received are neither: a slow connection or process delays caughtUp.
func Tail(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, from TailStart, sink func(Msg) error, caughtUp func()) error {
	cctx, stop := WhileConnected(ctx, nc)
	defer stop()
	err := tailStream(cctx, nc, js, stream, from, sink, caughtUp)
	switch {
	case ctx.Err() != nil:
		return nil
	case cctx.Err() != nil:
		return fmt.Errorf("tail %s: %w", stream, context.Cause(cctx))
	}
	return err
}

func tailStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, from TailStart, sink func(Msg) error, caughtUp func()) error {
	cons, err := js.CreateConsumer(ctx, stream, consumerConfig(from))
	if err != nil {
		return fmt.Errorf("tail %s: %w", stream, err)
	}
	r := newTailReader(stream, cons, sink, caughtUp)
	err = r.readMessages(ctx, nc)
	if !errors.Is(err, ErrInterrupted) { // otherwise the server may be unable to answer
		deleteConsumer(ctx, js, stream, cons.CachedInfo().Name)
	}
	return err
}

func consumerConfig(from TailStart) jetstream.ConsumerConfig {
	cc := jetstream.ConsumerConfig{
		FilterSubjects:    from.Subjects,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       from.Seq,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: time.Minute, // in case this process crashes
	}
	if from.Seq == 0 {
		cc.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
	}
	return cc
}

// deleteConsumer deletes the consumer at once, so the server need not wait for InactiveThreshold,
// which remains the fallback.
func deleteConsumer(ctx context.Context, js jetstream.JetStream, stream, name string) {
	if !js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = js.DeleteConsumer(ctx, stream, name)
}

// tailReader is the state of one Tail.
type tailReader struct {
	stream        string
	cons          jetstream.Consumer
	sink          func(Msg) error
	caughtUp      func() // nil once called
	behind        uint64 // number of messages at the start
	last          uint64 // the consumer's sequence number of the last message
	checkInterval time.Duration
	heard         bool // something was received since the last tick
	quiet         int  // consecutive ticks without a received message
	overdue       int  // consecutive checks which found sent messages that have not arrived
}

func newTailReader(stream string, cons jetstream.Consumer, sink func(Msg) error, caughtUp func()) *tailReader {
	return &tailReader{
		stream: stream, cons: cons, sink: sink, caughtUp: caughtUp,
		behind: cons.CachedInfo().NumPending, checkInterval: tailCheckInterval,
	}
}

// readMessages reads until an error.
func (r *tailReader) readMessages(ctx context.Context, nc *nats.Conn) error {
	p, err := newConsumerPuller(nc, r.stream, r.cons.CachedInfo().Name, tailBounds)
	if err != nil {
		return errInterrupted(r.stream, err)
	}
	defer p.unsubscribe()
	if err := p.sendRequest(); err != nil {
		return errInterrupted(r.stream, err)
	}
	r.checkCaughtUp(r.behind)
	tick := time.NewTicker(r.checkInterval)
	defer tick.Stop()
	for behind := r.caughtUp != nil; ; {
		if behind && r.caughtUp == nil {
			behind = false
			tick.Reset(pullHeartbeat)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-p.msgs:
			err = r.handleMessage(ctx, p, m)
		case <-tick.C:
			err = r.handleTick(ctx, p)
		}
		if err != nil {
			return err
		}
	}
}

// handleMessage passes a message on, and sends a new request when the current one is used up.
func (r *tailReader) handleMessage(ctx context.Context, p *consumerPuller, m *nats.Msg) error {
	r.heard = true
	message, over, err := p.classifyMessage(m)
	if err == nil && over {
		err = p.sendRequest()
	}
	if err != nil {
		return errInterrupted(r.stream, err)
	}
	if !message {
		return nil
	}
	return r.deliverMessage(ctx, m)
}

// handleTick asks the server for the consumer's state if nothing was received since the last tick,
// or, after catching up, for two heartbeats.
func (r *tailReader) handleTick(ctx context.Context, p *consumerPuller) error {
	if r.heard {
		r.heard, r.quiet = false, 0
		return nil
	}
	r.quiet++
	interval := r.checkInterval
	if r.caughtUp == nil {
		interval = pullHeartbeat
	}
	lost := time.Duration(r.quiet)*interval >= 2*pullHeartbeat // the request or its heartbeats were lost
	if r.caughtUp == nil && !lost {
		return nil
	}
	if err := r.checkProgress(ctx); err != nil {
		return err
	}
	if !lost {
		return nil
	}
	r.quiet = 0
	if err := p.sendRequest(); err != nil {
		return errInterrupted(r.stream, err)
	}
	return nil
}

// checkProgress finds out what a silence means: everything has arrived or was removed before it was
// sent; sent messages are in flight or lost; or the server no longer knows the consumer.
func (r *tailReader) checkProgress(ctx context.Context) error {
	info, err := r.cons.Info(ctx)
	if err != nil {
		return errInterrupted(r.stream, err)
	}
	if sent := info.Delivered.Consumer; sent > r.last {
		if r.overdue++; r.overdue >= maxOverdueChecks {
			return errInterrupted(r.stream, fmt.Errorf("message %d of the consumer was sent and has not come", r.last+1))
		}
		return nil
	}
	r.overdue = 0
	r.checkCaughtUp(info.NumPending)
	return nil
}

// checkCaughtUp calls caughtUp if nothing is pending, or every message that existed at the start
// has arrived.
func (r *tailReader) checkCaughtUp(pending uint64) {
	if r.caughtUp != nil && (pending == 0 || r.last >= r.behind) {
		f := r.caughtUp
		r.caughtUp = nil
		f()
	}
}

// deliverMessage passes one message to sink. Consumers number what they send from 1 without gaps,
// so a missing number is a missing message.
func (r *tailReader) deliverMessage(ctx context.Context, m *nats.Msg) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	md, err := m.Metadata()
	if err != nil {
		return errInterrupted(r.stream, err)
	}
	if md.Sequence.Consumer != r.last+1 {
		return errInterrupted(r.stream, fmt.Errorf("message %d of the consumer follows %d", md.Sequence.Consumer, r.last))
	}
	r.last, r.overdue = md.Sequence.Consumer, 0
	err = r.sink(Msg{
		Subject: m.Subject,
		Header:  m.Header,
		Data:    m.Data,
		Seq:     md.Sequence.Stream,
		Stored:  md.Timestamp,
		Pending: md.NumPending,
	})
	if err != nil {
		return err
	}
	r.checkCaughtUp(md.NumPending)
	return nil
}

func errInterrupted(stream string, err error) error {
	return fmt.Errorf("tail %s: %w: %w", stream, ErrInterrupted, err)
}
