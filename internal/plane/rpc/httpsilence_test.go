package rpc

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A connection is closed when nothing has come for the limit, and not while something does.
func TestSilenceConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Second
		mine, peer := net.Pipe()
		c := &silenceConn{Conn: mine}
		defer c.Close()
		c.watchSilence(limit)
		start := time.Now()
		var last time.Duration // when the peer wrote last
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			for range 10 {
				time.Sleep(limit * 9 / 10) // virtual
				_, _ = peer.Write([]byte("ping"))
				last = time.Since(start)
			}
		}()
		buf := make([]byte, 16)
		var err error
		for err == nil {
			_, err = c.Read(buf)
		}
		<-wrote
		silent := time.Since(start) - last
		if !errors.Is(err, errSilent) || last < 10*limit*9/10 || silent < limit || silent > 2*limit {
			t.Errorf("%v after %v of silence, and the peer wrote last after %v", err, silent, last)
		}
	})
}
