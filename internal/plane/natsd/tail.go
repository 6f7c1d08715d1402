package natsd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrInterrupted is in the chain of Tail's error when the reading broke off in
// a way that reading anew can mend: the connection was lost, a message is
// missing, or the server gave the consumer up.
var ErrInterrupted = errors.New("interrupted")

// From says where Tail begins.
type From struct {
	// Subjects to read; at least one.
	Subjects []string
	// Seq is the first sequence number. 0 means instead the last message of each
	// subject and then everything that follows.
	Seq uint64
}

// Msg is one message of a stream.
type Msg struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Seq     uint64
	// Pending is how many further messages were waiting when this one was sent.
	Pending uint64
}

// Tail's pull requests: how many messages, and bytes of them, may be under way.
const (
	tailBatch = 512
	tailBytes = 8 << 20
)

// Tail reads a stream through a throwaway consumer: it passes each message to
// sink, in order and once, until ctx ends (it returns nil then), sink fails
// (sink's error), or it cannot vouch for the next message any more
// (ErrInterrupted). caughtUp is called once, when everything that was there at
// the start has been passed on or is gone.
func Tail(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, from From, sink func(Msg) error, caughtUp func()) error {
	cctx, stop := WhileConnected(ctx, nc)
	defer stop()
	err := tail(cctx, js, stream, from, sink, caughtUp)
	switch {
	case ctx.Err() != nil:
		return nil
	case cctx.Err() != nil:
		return fmt.Errorf("tail %s: %w", stream, context.Cause(cctx))
	}
	return err
}

func tail(ctx context.Context, js jetstream.JetStream, stream string, from From, sink func(Msg) error, caughtUp func()) error {
	cons, err := js.CreateConsumer(ctx, stream, consumerConfig(from))
	if err != nil {
		return fmt.Errorf("tail %s: %w", stream, err)
	}
	r := &reader{stream: stream, cons: cons, sink: sink, caughtUp: caughtUp, behind: cons.CachedInfo().NumPending}
	err = r.run(ctx)
	if !errors.Is(err, ErrInterrupted) { // else the server may be unable to answer
		deleteConsumer(ctx, js, stream, cons.CachedInfo().Name)
	}
	return err
}

func consumerConfig(from From) jetstream.ConsumerConfig {
	cc := jetstream.ConsumerConfig{
		FilterSubjects:    from.Subjects,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       from.Seq,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: time.Minute, // should we vanish
	}
	if from.Seq == 0 {
		cc.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
	}
	return cc
}

// deleteConsumer spares the server the wait for the inactivity threshold, which
// remains the safety net.
func deleteConsumer(ctx context.Context, js jetstream.JetStream, stream, name string) {
	if !js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = js.DeleteConsumer(ctx, stream, name)
}

// reader is the state of one Tail.
type reader struct {
	stream   string
	cons     jetstream.Consumer
	sink     func(Msg) error
	caughtUp func() // nil once called
	behind   uint64 // messages there were at the start
	last     uint64 // the consumer's number of the last message
}

// run reads until something fails.
func (r *reader) run(ctx context.Context) error {
	r.check(r.behind)
	for {
		n, err := r.fetch(ctx)
		if err != nil {
			return err
		}
		if n > 0 || r.caughtUp == nil {
			continue
		}
		// Nothing came although something was there: it may have been removed.
		info, err := r.cons.Info(ctx)
		if err != nil {
			return interrupted(r.stream, err)
		}
		r.check(info.NumPending)
	}
}

// check calls caughtUp if nothing is pending, or all of the start has come.
func (r *reader) check(pending uint64) {
	if r.caughtUp != nil && (pending == 0 || r.last >= r.behind) {
		f := r.caughtUp
		r.caughtUp = nil
		f()
	}
}

// fetch passes on what one pull request brings and returns how much that was.
// Messages pass as they arrive; the request ends when it is used up or after its
// time. In a long one the server's heartbeats must not stay away for 10 s.
func (r *reader) fetch(ctx context.Context) (n int, err error) {
	wait := 30 * time.Second
	if r.caughtUp != nil {
		wait = time.Second // then see whether anything is still to come
	}
	fctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	batch, err := r.cons.Fetch(tailBatch, jetstream.FetchContext(fctx), jetstream.FetchMaxBytes(tailBytes))
	if err != nil {
		return 0, interrupted(r.stream, err)
	}
	for m := range batch.Messages() {
		if err == nil {
			err = r.pass(ctx, m)
		}
		if err != nil {
			cancel() // and wait for the library's goroutine to close the channel
			continue
		}
		n++
	}
	if ctx.Err() != nil && err == nil {
		return n, ctx.Err()
	}
	if err == nil && batch.Error() != nil && !errors.Is(batch.Error(), context.DeadlineExceeded) {
		err = interrupted(r.stream, batch.Error())
	}
	return n, err
}

// pass hands one message to sink. Consumers number what they send from 1
// without gaps, so a missing number is a missing message.
func (r *reader) pass(ctx context.Context, m jetstream.Msg) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	md, err := m.Metadata()
	if err != nil {
		return interrupted(r.stream, err)
	}
	if md.Sequence.Consumer != r.last+1 {
		return interrupted(r.stream, fmt.Errorf("message %d of the consumer follows %d", md.Sequence.Consumer, r.last))
	}
	r.last = md.Sequence.Consumer
	err = r.sink(Msg{
		Subject: m.Subject(),
		Header:  m.Headers(),
		Data:    m.Data(),
		Seq:     md.Sequence.Stream,
		Pending: md.NumPending,
	})
	if err != nil {
		return err
	}
	r.check(md.NumPending)
	return nil
}

func interrupted(stream string, err error) error {
	return fmt.Errorf("tail %s: %w: %w", stream, ErrInterrupted, err)
}
