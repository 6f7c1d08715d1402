package zmtp

import (
	"context"
	"errors"
	"net"
)

// Subscribe dials the publisher at ep, subscribes to the prefixes (nil is
// everything) and calls recv with the frames of each message, in order. The frames
// alias memory that is used again: they are valid until recv returns. A connection
// that cannot be made or is lost is dialled again, with pauses, until ctx ends;
// what was published meanwhile is lost, as is what the publisher had no room for.
//
// Subscribe returns the error of ctx or of recv, or one that says why ep cannot be
// dialled.
func Subscribe(ctx context.Context, ep Endpoint, prefixes []string, o Options, recv func(frames [][]byte) error) error {
	return errors.ErrUnsupported
}

// SubscribeListen is Subscribe for publishers that dial: it accepts them on ln,
// many at once, and hands over what all of them send, one message at a time, on
// the goroutine that called it. It closes ln before it returns.
func SubscribeListen(ctx context.Context, ln net.Listener, prefixes []string, o Options, recv func(frames [][]byte) error) error {
	return errors.ErrUnsupported
}
