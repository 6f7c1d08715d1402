package natsd

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// singleBounds bound a request for one message.
var singleBounds = pullBounds{messages: 1, bytes: tailBounds.bytes}

// PullMessage asks a pull consumer for one message and waits for it until ctx ends. nc may disconnect
// meanwhile: ctx should come from [WhileConnected]. An error other than ctx's has ErrInterrupted in its
// chain: the consumer does not exist or has moved, and another call may succeed.
//
// A message which the server has sent when ctx ends was delivered, and counts as an attempt. PullMessage
// waits for it and passes it to giveBack, so that it need not wait for the consumer's AckWait.
func PullMessage(ctx context.Context, nc *nats.Conn, stream, consumer string, giveBack func(*nats.Msg)) (*nats.Msg, error) {
	p, err := newConsumerPuller(nc, stream, consumer, singleBounds)
	if err != nil {
		return nil, errPull(stream, err)
	}
	m, open, err := p.awaitMessage(ctx)
	if open {
		p.drainMessages(ctx, giveBack)
	} else {
		p.unsubscribe()
	}
	if err != nil && ctx.Err() == nil {
		err = errPull(stream, err)
	}
	return m, err
}

func errPull(stream string, err error) error {
	return fmt.Errorf("pull from %s: %w: %w", stream, ErrInterrupted, err)
}

// awaitMessage returns the answer to a request. open says that the server may still send another message:
// the request was not answered, or an earlier one was not known to have ended when it was sent.
func (p *consumerPuller) awaitMessage(ctx context.Context) (_ *nats.Msg, open bool, _ error) {
	if err := p.sendRequest(); err != nil {
		return nil, false, err
	}
	tick := time.NewTicker(2 * pullHeartbeat)
	defer tick.Stop()
	heard, repeated := true, false
	for {
		select {
		case m := <-p.msgs:
			heard = true
			message, over, err := p.classifyMessage(m)
			if message || err != nil {
				return m, repeated, err
			}
			if !over {
				continue
			}
		case <-tick.C:
			if heard {
				heard = false
				continue
			}
			repeated = true // the request or its heartbeats were lost
		case <-ctx.Done():
			return nil, true, ctx.Err()
		}
		if err := p.sendRequest(); err != nil {
			return nil, repeated, err
		}
	}
}

// drainMessages ends the subscription and passes on the messages that the server sent before it knew. It
// waits for one answer of the server, at most until the connection is lost.
func (p *consumerPuller) drainMessages(ctx context.Context, sink func(*nats.Msg)) {
	ctx, stop := WhileConnected(context.WithoutCancel(ctx), p.nc)
	defer stop()
	ended := p.sub.StatusChanged(nats.SubscriptionClosed)
	if ctx.Err() != nil || p.sub.Drain() != nil {
		p.unsubscribe()
		return
	}
	select {
	case <-ended: // when the server has answered the library's ping, or has not for 10 s
	case <-ctx.Done():
		p.unsubscribe()
	}
	for len(p.msgs) > 0 {
		m := <-p.msgs
		if message, _, err := p.classifyMessage(m); message && err == nil {
			sink(m)
		}
	}
}
