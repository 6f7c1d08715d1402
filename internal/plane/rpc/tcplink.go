package rpc

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// What ends a connection, beside errors of the network.
var (
	errSpeaksTLS = errors.New("the peer speaks TLS, and this side does not; give both the rpc TLS settings or neither")
	errStranger  = errors.New("the peer is not a Penstock request plane")
	errSilent    = errors.New("the peer has gone silent")
	errClosed    = errors.New("this side has closed it")
)

// tcpIdle is how many times longer than otherwise a silence may be while no call
// is in progress.
const tcpIdle = 20

// tcpLink is what both ends of a connection have in common: it reads frames,
// writes those of its out, and notices when the peer is gone.
type tcpLink struct {
	conn net.Conn
	out  tcpOut
	cfg  *TCPConfig
	// frame gets each frame but pings. The payload is only lent.
	frame func(t frameType, id uint32, payload []byte) error
	// tick is asked now and then whether the link is still wanted.
	tick func() error

	heard atomic.Bool // something came since the last look
	life  struct {
		sync.Mutex
		quiet int // looks in a row that found nothing
		next  awake
	}
	calls atomic.Int64 // in progress
	// beat is the timer of showLife. Nothing of it waits for a lock for which calls queue.
	beat struct {
		timer atomic.Pointer[time.Timer] // nil until the first call
		taken atomic.Uint64              // what the writer had taken when showLife ran last
		ended atomic.Bool                // the link is shut
	}
	end struct {
		sync.Mutex
		err error // the first reason to end
	}
}

// run reads and writes until the link is shut, which is when it returns the
// reason. By then nothing is written any more.
func (l *tcpLink) run(buf []byte) error {
	_ = l.conn.SetDeadline(time.Time{}) // that of the greeting; an error comes back from reads too
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		l.shut(l.out.run(l.conn, l.cfg.WriteTimeout))
	}()
	l.life.Lock()
	l.lookAgain()
	l.scheduleLife()
	l.life.Unlock()
	l.shut(l.read(buf))
	<-writer
	l.end.Lock()
	defer l.end.Unlock()
	return l.end.err
}

// shut ends the link for the given reason, unless it has ended already.
func (l *tcpLink) shut(err error) {
	l.end.Lock()
	first := l.end.err == nil
	if first {
		l.end.err = err
	}
	l.end.Unlock()
	if !first {
		return
	}
	l.beat.ended.Store(true)
	if timer := l.beat.timer.Load(); timer != nil {
		timer.Stop()
	}
	l.out.close(err)
	l.conn.Close()
}

// read passes on what comes until an error. buf holds a frame of any size, and
// more.
func (l *tcpLink) read(buf []byte) error {
	have := 0
	for {
		n, err := l.conn.Read(buf[have:])
		if n > 0 {
			if !l.heard.Load() {
				l.heard.Store(true)
			}
			have += n
			used, err := l.frames(buf[:have])
			if err != nil {
				return err
			}
			have = copy(buf, buf[used:have])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = l.look()
		}
		if err != nil {
			return err
		}
	}
}

// frames passes on the whole frames at the beginning of b and returns how many
// bytes they were.
func (l *tcpLink) frames(b []byte) (used int, err error) {
	for {
		t, id, payload, n, err := l.out.next(b[used:])
		if err != nil || n == 0 {
			return used, err
		}
		used += n
		switch {
		case t == framePing && len(payload) < pingSize:
			return used, errShort("PING", payload)
		case t == framePing:
			l.out.pong(payload)
		default:
			if err := l.frame(t, id, payload); err != nil {
				return used, err
			}
		}
	}
}

// enter counts a call that begins.
func (l *tcpLink) enter() {
	if l.calls.Add(1) > 1 {
		return
	}
	l.life.Lock()
	l.life.quiet = 0 // from now on a silence is noticed soon
	l.lookAgain()
	l.life.Unlock()
	l.scheduleLife()
}

// leave counts a call that has ended and reports whether none is left.
func (l *tcpLink) leave() (none bool) {
	return l.calls.Add(-1) == 0
}

// lookAgain sets the time of the next look, two of them for a ping. l.life is
// held.
//
// The deadline of reads is the clock. It is not moved by what comes: it costs
// one timer for each look, not for each read. And silence is counted in looks at which
// the process ran, not in time: one that was stopped, or got no processor, does not
// take its own silence for that of its peers.
func (l *tcpLink) lookAgain() {
	d := l.cfg.Ping / 2
	if l.calls.Load() == 0 {
		d *= tcpIdle
	}
	slack := d
	switch l.life.quiet {
	case l.silentLooks() - 2: // the last look but one, and the last are one in two parts
		d -= d / 4
	case l.silentLooks() - 1:
		d /= 4
	}
	// An error is that the connection is closed: reads return it too.
	_ = l.conn.SetReadDeadline(l.life.next.wait(d, slack))
}

// silentLooks is how many looks in a row that find nothing are a silence. The last
// byte came up to one look before the first of these. The last one is short: bytes may
// wait in the socket when a deadline passes, and it is what reads them.
func (l *tcpLink) silentLooks() int { return int(2 * l.cfg.Dead / l.cfg.Ping) }

// look is what becomes of the link now that the deadline of reads has passed.
func (l *tcpLink) look() error {
	if l.tick != nil {
		if err := l.tick(); err != nil {
			return err
		}
	}
	letOthersRun()
	l.life.Lock()
	defer l.life.Unlock()
	switch {
	case l.heard.Swap(false):
		l.life.quiet = 0
	case l.life.next.counts():
		l.life.quiet++
	}
	if l.life.quiet >= l.silentLooks() {
		return errSilent
	}
	l.lookAgain()
	if l.life.quiet == 0 || l.life.quiet%2 != 0 {
		return nil
	}
	return errors.Join(l.out.now(framePing, 0, random(pingSize)), l.out.now(grease()))
}

// scheduleLife sets the timer of showLife, which runs each Ping/2 while calls are in progress.
func (l *tcpLink) scheduleLife() {
	timer := l.beat.timer.Load()
	switch {
	case l.calls.Load() == 0 || l.beat.ended.Load():
		return
	case timer == nil:
		timer = time.AfterFunc(time.Hour, l.showLife)
		if !l.beat.timer.CompareAndSwap(nil, timer) {
			timer.Stop() // another call is about to set the one that is there
			return
		}
	}
	timer.Reset(l.cfg.Ping / 2)
	if l.beat.ended.Load() {
		timer.Stop()
	}
}

// showLife sends a ping if calls are in progress and this side has said nothing since
// showLife ran last. It waits neither for the reader nor for the writer: these may be busy
// with what the peer has sent, or queue behind thousands of goroutines for a processor or a
// lock, for longer than the peer waits for an answer to its own pings, which are behind what
// it sent.
func (l *tcpLink) showLife() {
	taken := l.out.progress.Load()
	silent := l.calls.Load() > 0 && l.beat.taken.Swap(taken) == taken
	l.scheduleLife()
	if !silent {
		return
	}
	if err := l.out.ping(l.conn, l.cfg.WriteTimeout); err != nil {
		l.shut(err)
	}
}
