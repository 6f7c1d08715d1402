package natsd

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// tailBatch and tailBytes bound what one pull request brings.
	tailBatch = 512
	tailBytes = 8 << 20
	// tailExpires is how long the server keeps a request, and tailBeat how often it
	// shows that it does.
	tailExpires = 30 * time.Second
	tailBeat    = 5 * time.Second
)

// puller asks for messages of a consumer, one request at a time, and receives them.
// All requests of a puller share one subscription: what the server sends late is read
// late. The client library gives each request a subscription and a time of its own,
// and drops what comes after that.
type puller struct {
	nc      *nats.Conn
	subject string // of requests
	inbox   string
	sub     *nats.Subscription
	msgs    chan *nats.Msg
	request []byte // the same each time
	// Of the current request.
	number       int
	count, bytes int // what it brought
}

// newPuller subscribes to the answers of requests to a consumer.
func newPuller(nc *nats.Conn, stream, consumer string) (*puller, error) {
	request, err := json.Marshal(map[string]any{
		"batch": tailBatch, "max_bytes": tailBytes, "expires": tailExpires, "idle_heartbeat": tailBeat,
	})
	if err != nil {
		return nil, err
	}
	p := &puller{
		nc: nc, inbox: nc.NewInbox() + ".", request: request,
		subject: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		// One more request may be sent before the one before has run out; beyond that
		// the client library drops messages, and the gap shows.
		msgs: make(chan *nats.Msg, 4*tailBatch),
	}
	p.sub, err = nc.ChanSubscribe(p.inbox+"*", p.msgs)
	return p, err
}

// ask sends a request. Its number is the last token of its reply subject, on which
// the server says what becomes of it.
func (p *puller) ask() error {
	p.number++
	p.count, p.bytes = 0, 0
	return p.nc.PublishRequest(p.subject, p.reply(), p.request)
}

func (p *puller) reply() string { return p.inbox + strconv.Itoa(p.number) }

// close ends the subscription.
func (p *puller) close() { _ = p.sub.Unsubscribe() } // an error is that it has ended

// What the server says of a pull request, in the header of a message without data.
const (
	statusBeat     = "100"
	statusNoneLeft = "404"
	statusExpired  = "408"
	statusConflict = "409"
	tooManyBytes   = "Message Size Exceeds MaxBytes"
	batchCompleted = "Batch Completed"
)

// accept sorts what came: message is that it is one of the stream, over that the
// current request brings no more. An error is that the consumer gives no more.
func (p *puller) accept(m *nats.Msg) (message, over bool, err error) {
	status := m.Header.Get("Status")
	if status == "" || len(m.Data) > 0 {
		p.count++
		p.bytes += m.Size()
		return true, p.count >= tailBatch || p.bytes >= tailBytes, nil
	}
	if m.Subject != p.reply() { // of a request before
		return false, false, nil
	}
	text := m.Header.Get("Description")
	switch {
	case status == statusBeat:
		return false, false, nil
	case status == statusNoneLeft || status == statusExpired,
		status == statusConflict && (text == tooManyBytes || text == batchCompleted):
		return false, true, nil
	}
	return false, false, fmt.Errorf("the server answered %s %s", status, text)
}
