package bus

import (
	"context"
	"errors"
	"fmt"

	"penstock/internal/zmtp"
)

// zmqCheckTopic is a topic on which no process publishes.
const zmqCheckTopic = "check"

// Check reports why this process could not receive messages from a peer, or nil if it could. It
// makes a subscription and a replay request, both without side effects.
func (p ZMQPeer) Check(ctx context.Context) error {
	d, err := zmtp.DialDealer(ctx, p.Replay, zmtp.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Send(ctx, zmqRequest{topic: zmqCheckTopic}.encodeFrames()...); err != nil {
		return err
	}
	frames, err := d.Recv(ctx)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", p.Replay, err)
	}
	if len(frames) != 4 {
		return fmt.Errorf("%s: %w", p.Replay, errZMQPage)
	}
	if m, err := decodeZMQMessage(frames[1:]); err != nil || m.topic != zmqCheckTopic || m.seq != zmqEnd {
		return fmt.Errorf("%s: %w", p.Replay, errZMQPage)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	met := errors.New("met")
	o := zmtp.Options{
		OnState: func(s zmtp.ConnState) {
			switch s.Kind {
			case zmtp.Connected:
				cancel(met)
			case zmtp.Refused:
				cancel(fmt.Errorf("%s: %w", p.Events, s.Err))
			}
		},
	}
	err = zmtp.Subscribe(ctx, p.Events, []string{zmqSubject(zmqCheckTopic)}, o, func([][]byte) error { return nil })
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, met):
		return nil
	case cause != nil:
		return cause
	}
	return err
}
