package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/snapshot"
	"penstock/internal/plane/bus"
)

// checkSnapshots checks what routers have stored for later routers: that the newest snapshot can be read, and
// that the stream of cache events continues from its end.
func (d *examiner) checkSnapshots(ctx context.Context, conn *nats.Conn) {
	const check = "router snapshots"
	const remedy = "routers ask workers for their caches instead; if it stays so, start one with --router-reset-states"
	ctx, cancel := context.WithTimeout(ctx, d.questionTimeout())
	defer cancel()
	archive, err := bus.NewNATSArchive(conn, bus.ArchiveConfig{})
	if err != nil {
		d.reportWarning(check, remedy, "%v", err)
		return
	}
	prefix := d.cfg.Fleet.Namespace + "." + d.cfg.Fleet.Component + ".snapshot."
	list, err := archive.List(ctx, prefix)
	if err != nil {
		d.reportWarning(check, remedy, "they cannot be listed: %v", err)
		return
	}
	if len(list) == 0 {
		d.reportOK(check, "there is none yet of %s/%s: a router leaves the first soon after events came", d.cfg.Fleet.Namespace, d.cfg.Fleet.Component)
		return
	}
	newest := list[len(list)-1]
	data, err := archive.Get(ctx, newest.Name)
	var h snapshot.Header
	if err == nil {
		h, _, err = snapshot.Open(data, func(snapshot.Section) bool { return true })
	}
	if err != nil {
		d.reportWarning(check, remedy, "the newest of %d cannot be read: %v", len(list), err)
		return
	}
	text := fmt.Sprintf("%d, the newest of %s, taken %v ago", len(list), formatBytes(newest.Size), time.Since(time.UnixMilli(h.Taken)).Round(time.Second))
	span, err := d.streamSpan(ctx, conn)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) || err == nil && h.StreamID != span.Incarnation:
		d.reportWarning(check, remedy, "%s, is of a stream that is not there any more", text)
	case err != nil:
		d.reportWarning(check, remedy, "%s; the stream that it belongs to: %v", text, err)
	case h.Seq+1 < span.First || h.Seq > span.Last:
		d.reportWarning(check, remedy, "%s, ends at message %d; the stream has %d to %d", text, h.Seq, span.First, span.Last)
	default:
		d.reportOK(check, "%s; %d messages came since", text, span.Last-h.Seq)
	}
}

// streamSpan returns the span of the cache event stream, if it exists. It checks first because the bus would
// create the stream.
func (d *examiner) streamSpan(ctx context.Context, conn *nats.Conn) (bus.TopicState, error) {
	topic := bus.KVEventsTopic(d.cfg.Fleet.Namespace, d.cfg.Fleet.Component)
	js, err := jetstream.New(conn)
	if err != nil {
		return bus.TopicState{}, err
	}
	if _, err := js.StreamNameBySubject(ctx, "penstock."+topic.Name+".*"); err != nil {
		return bus.TopicState{}, err
	}
	events, err := bus.NewNATSBus(conn, bus.NATSBusConfig{})
	if err != nil {
		return bus.TopicState{}, err
	}
	return events.DescribeTopic(ctx, topic)
}
