package rpc

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Reasons for which a connection ends, in addition to network errors.
var (
	errSpeaksTLS   = errors.New("the peer speaks TLS, and this side does not; give both the rpc TLS settings or neither")
	errNotPenstock = errors.New("the peer is not a Penstock request plane")
	errSilent      = errors.New("the peer has gone silent")
	errClosed      = errors.New("this side has closed it")
)

// tcpIdle is the factor by which timeouts for silence grow while no call is in progress.
const tcpIdle = 20

// tcpLink is the common part of both ends of a connection: it reads frames, runs the writer, and
// detects a dead peer.
type tcpLink struct {
	conn net.Conn
	out  tcpWriter
	cfg  *TCPConfig
	// onFrame handles every frame except pings. The payload is valid only during the call.
	onFrame func(t frameType, id uint32, payload []byte) error
	// onTick is called periodically; its error closes the link.
	onTick func() error

	heard   atomic.Bool // something was received since the last check
	silence struct {
		sync.Mutex
		quiet int // consecutive checks that found nothing
		next  awakeClock
	}
	calls atomic.Int64 // in progress
	// keepalive is the state of pingIfQuiet. It takes no lock for which calls queue.
	keepalive struct {
		timer atomic.Pointer[time.Timer] // nil until the first call
		taken atomic.Uint64              // the writer's progress when pingIfQuiet last ran
		ended atomic.Bool                // the link is closed
	}
	end struct {
		sync.Mutex
		err error // the first reason to end
	}
}

// run reads and writes until the link is closed, and returns the reason. After it returns nothing
// more is written.
func (l *tcpLink) run(buf []byte) error {
	_ = l.conn.SetDeadline(time.Time{}) // clear the handshake's deadline; reads report an error too
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		l.closeWith(l.out.runWriter(l.conn, l.cfg.WriteTimeout))
	}()
	l.silence.Lock()
	l.scheduleCheckLocked()
	l.schedulePing()
	l.silence.Unlock()
	l.closeWith(l.readFrames(buf))
	<-writer
	l.end.Lock()
	defer l.end.Unlock()
	return l.end.err
}

// closeWith closes the link with err as its reason, unless it is already closed.
func (l *tcpLink) closeWith(err error) {
	l.end.Lock()
	first := l.end.err == nil
	if first {
		l.end.err = err
	}
	l.end.Unlock()
	if !first {
		return
	}
	l.keepalive.ended.Store(true)
	if timer := l.keepalive.timer.Load(); timer != nil {
		timer.Stop()
	}
	l.out.closeSenders(err)
	l.conn.Close()
}

// readFrames reads and dispatches frames until an error. buf has room for more than one frame of
// the maximum size.
func (l *tcpLink) readFrames(buf []byte) error {
	have := 0
	for {
		n, err := l.conn.Read(buf[have:])
		if n > 0 {
			if !l.heard.Load() {
				l.heard.Store(true)
			}
			have += n
			used, err := l.dispatchFrames(buf[:have])
			if err != nil {
				return err
			}
			have = copy(buf, buf[used:have])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = l.checkSilence()
		}
		if err != nil {
			return err
		}
	}
}

// dispatchFrames handles the complete frames at the beginning of b and returns their total size.
func (l *tcpLink) dispatchFrames(b []byte) (used int, err error) {
	for {
		t, id, payload, n, err := l.out.splitFrame(b[used:])
		if err != nil || n == 0 {
			return used, err
		}
		used += n
		switch {
		case t == framePing && len(payload) < pingSize:
			return used, errShortFrame("PING", payload)
		case t == framePing:
			l.out.queuePong(payload)
		default:
			if err := l.onFrame(t, id, payload); err != nil {
				return used, err
			}
		}
	}
}

// countCallStart counts a call that starts.
func (l *tcpLink) countCallStart() {
	if l.calls.Add(1) > 1 {
		return
	}
	l.silence.Lock()
	l.silence.quiet = 0 // from now on the shorter silence timeout applies
	l.scheduleCheckLocked()
	l.silence.Unlock()
	l.schedulePing()
}

// countCallEnd counts a call that has finished and reports whether none is left.
func (l *tcpLink) countCallEnd() (none bool) {
	return l.calls.Add(-1) == 0
}

// scheduleCheckLocked sets the time of the next silence check; there are two checks per ping
// interval.
//
// The read deadline serves as the timer. Received data does not move it, so it costs one timer per
// check, not one per read. Silence is counted in checks at which the process ran, not in time, so
// that a process which was stopped or got no CPU does not mistake its own pause for a dead peer.
func (l *tcpLink) scheduleCheckLocked() {
	d := l.cfg.Ping / 2
	if l.calls.Load() == 0 {
		d *= tcpIdle
	}
	slack := d
	switch l.silence.quiet {
	case l.silentCheckLimit() - 2: // the last two checks share one interval, 3/4 and 1/4 of it
		d -= d / 4
	case l.silentCheckLimit() - 1:
		d /= 4
	}
	// An error means that the connection is closed; reads report it too.
	_ = l.conn.SetReadDeadline(l.silence.next.startWait(d, slack))
}

// silentCheckLimit returns the number of consecutive checks without received data after which the
// peer is considered dead. The last byte may have arrived up to one check interval before the first
// of them. The last interval is short because bytes may be waiting in the socket when a deadline
// passes, and the next read receives them.
func (l *tcpLink) silentCheckLimit() int { return int(2 * l.cfg.Dead / l.cfg.Ping) }

// checkSilence runs when the read deadline has passed. Its error closes the link.
func (l *tcpLink) checkSilence() error {
	if l.onTick != nil {
		if err := l.onTick(); err != nil {
			return err
		}
	}
	yieldProcessor()
	l.silence.Lock()
	defer l.silence.Unlock()
	switch {
	case l.heard.Swap(false):
		l.silence.quiet = 0
	case l.silence.next.waitCounts():
		l.silence.quiet++
	}
	if l.silence.quiet >= l.silentCheckLimit() {
		return errSilent
	}
	l.scheduleCheckLocked()
	if l.silence.quiet == 0 || l.silence.quiet%2 != 0 {
		return nil
	}
	return errors.Join(l.out.sendFrameNow(framePing, 0, randomBytes(pingSize)), l.out.sendFrameNow(greaseFrame()))
}

// schedulePing sets the timer of pingIfQuiet, which runs every Ping/2 while calls are in progress.
func (l *tcpLink) schedulePing() {
	timer := l.keepalive.timer.Load()
	switch {
	case l.calls.Load() == 0 || l.keepalive.ended.Load():
		return
	case timer == nil:
		timer = time.AfterFunc(time.Hour, l.pingIfQuiet)
		if !l.keepalive.timer.CompareAndSwap(nil, timer) {
			timer.Stop() // another call is setting the existing timer
			return
		}
	}
	timer.Reset(l.cfg.Ping / 2)
	if l.keepalive.ended.Load() {
		timer.Stop()
	}
}

// pingIfQuiet sends a ping if calls are in progress and this side has written nothing since
// pingIfQuiet last ran. It waits neither for the reader nor for the writer. Both may be busy with
// the peer's data, or queue for a CPU or a lock with thousands of goroutines, for longer than the
// peer waits for the pong to its own ping, which queues after the data it sent.
func (l *tcpLink) pingIfQuiet() {
	taken := l.out.progress.Load()
	silent := l.calls.Load() > 0 && l.keepalive.taken.Swap(taken) == taken
	l.schedulePing()
	if !silent {
		return
	}
	if err := l.out.sendPing(l.conn, l.cfg.WriteTimeout); err != nil {
		l.closeWith(err)
	}
}
