package natsd

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pullBounds bound the messages per pull request.
type pullBounds struct{ messages, bytes int }

// tailBounds bound the requests of a reader of a stream.
var tailBounds = pullBounds{messages: 512, bytes: 8 << 20}

const (
	// pullExpires is how long the server keeps a request, and pullHeartbeat the interval at which
	// it confirms that.
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
)

// consumerPuller requests messages of a consumer, one request at a time, and receives them. All its
// requests share one subscription, so messages that the server sends late are still received. The
// client library gives each request its own subscription and timeout, and drops messages after
// that.
type consumerPuller struct {
	nc      *nats.Conn
	subject string // of requests
	inbox   string
	sub     *nats.Subscription
	msgs    chan *nats.Msg
	bounds  pullBounds
	request []byte // the same for all requests
	// State of the current request.
	number       int
	count, bytes int // messages and bytes received
}

// newConsumerPuller subscribes to the answers to requests to a consumer.
func newConsumerPuller(nc *nats.Conn, stream, consumer string, bounds pullBounds) (*consumerPuller, error) {
	request, err := json.Marshal(map[string]any{
		"batch": bounds.messages, "max_bytes": bounds.bytes, "expires": pullExpires, "idle_heartbeat": pullHeartbeat,
	})
	if err != nil {
		return nil, err
	}
	p := &consumerPuller{
		nc: nc, inbox: nc.NewInbox() + ".", bounds: bounds, request: request,
		subject: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + stream + "." + consumer,
		// One more request may be sent before the previous one has expired, and heartbeats wait too.
		// Beyond that the client library drops messages; a reader of a stream detects the gap.
		msgs: make(chan *nats.Msg, 4*bounds.messages+16),
	}
	p.sub, err = nc.ChanSubscribe(p.inbox+"*", p.msgs)
	return p, err
}

// sendRequest sends a request. Its number is the last token of its reply subject, to which the
// server also sends its status.
func (p *consumerPuller) sendRequest() error {
	p.number++
	p.count, p.bytes = 0, 0
	return p.nc.PublishRequest(p.subject, p.replySubject(), p.request)
}

func (p *consumerPuller) replySubject() string { return p.inbox + strconv.Itoa(p.number) }

// unsubscribe ends the subscription.
func (p *consumerPuller) unsubscribe() { _ = p.sub.Unsubscribe() } // an error means that it has already ended

// Status of a pull request, in the header of a message without data.
const (
	statusHeartbeat = "100"
	statusNoneLeft  = "404"
	statusExpired   = "408"
	statusConflict  = "409"
	tooManyBytes    = "Message Size Exceeds MaxBytes"
	batchCompleted  = "Batch Completed"
)

// classifyMessage reports whether m is a message of the stream, and whether the current request is
// used up. An error means that the consumer delivers no more.
func (p *consumerPuller) classifyMessage(m *nats.Msg) (message, over bool, err error) {
	status := m.Header.Get("Status")
	if status == "" || len(m.Data) > 0 {
		p.count++
		p.bytes += m.Size()
		return true, p.count >= p.bounds.messages || p.bytes >= p.bounds.bytes, nil
	}
	if m.Subject != p.replySubject() { // of an earlier request
		return false, false, nil
	}
	text := m.Header.Get("Description")
	switch {
	case status == statusHeartbeat:
		return false, false, nil
	case status == statusNoneLeft || status == statusExpired,
		status == statusConflict && (text == tooManyBytes || text == batchCompleted):
		return false, true, nil
	}
	return false, false, fmt.Errorf("the server answered %s %s", status, text)
}
