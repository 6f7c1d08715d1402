package doctor

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"

	"penstock/internal/engine"
)

// answerWithoutChecksums answers pings as a worker of a build without checksums does, in the bytes of
// docs/format/rpc.md, and returns its address.
func answerWithoutChecksums(t *testing.T, pong engine.Pong) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	frame, err := json.Marshal(pong)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				answerCalls(conn, frame)
			})
		}
	})
	return "tcp://" + l.Addr().String()
}

// answerCalls answers each call on conn with one frame.
func answerCalls(conn net.Conn, frame []byte) {
	header := func(typ, call uint64, n int) []byte {
		return binary.LittleEndian.AppendUint64(nil, uint64(n)|typ<<24|call<<32)
	}
	const hello, call, data, end = 1, 2, 6, 9
	greeting := append([]byte("penstock"), header(hello, 0, 2)...)
	if _, err := conn.Write(append(greeting, 1, 1)); err != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, conn, int64(len("penstock"))); err != nil {
		return
	}
	for head := make([]byte, 8); ; {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		h := binary.LittleEndian.Uint64(head)
		if _, err := io.CopyN(io.Discard, conn, int64(h&(1<<24-1))); err != nil {
			return
		}
		if h>>24&0xff != call {
			continue
		}
		answer := append(header(data, h>>32, len(frame)), frame...)
		if _, err := conn.Write(append(answer, header(end, h>>32, 0)...)); err != nil {
			return
		}
	}
}
