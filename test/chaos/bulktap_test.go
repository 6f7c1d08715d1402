package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"penstock/internal/fixturetest"
)

// bulkFrame returns a frame, with the bytes which follow it. The tap does not check its sum.
func bulkFrame(kind byte, payload, after []byte) []byte {
	f := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	f = append(append(f, kind), payload...)
	return append(append(f, 1, 2, 3, 4), after...)
}

// bulkTransfer returns the frames of a transfer of n chunks.
func bulkTransfer(n int) (begin []byte, chunks [][]byte, end []byte) {
	head := make([]byte, 40)
	binary.LittleEndian.PutUint64(head[24:], uint64(n*100))
	for i := range n {
		h := make([]byte, 24)
		binary.LittleEndian.PutUint32(h[8:], 100)
		chunks = append(chunks, bulkFrame(bulkChunk, h, bytes.Repeat([]byte{byte(i)}, 100)))
	}
	return bulkFrame(bulkBegin, head, nil), chunks, bulkFrame(bulkEnd, []byte("a digest and a note"), nil)
}

// TestBulkTap: a transfer passes unchanged, is held back where it is to be, and is cut there.
func TestBulkTap(t *testing.T) {
	begin, chunks, end := bulkTransfer(3)
	hello := append([]byte("pensxfer"), bulkFrame(1, []byte("hello"), nil)...)
	tap := newBulkTap()
	t.Cleanup(tap.closeAll)
	owner := echo(t, "")
	addr := fixturetest.ReserveAddr(t)
	if err := tap.listen(addr, owner.Addr().String(), 7); err != nil {
		t.Fatal(err)
	}
	send := func(c net.Conn, frames ...[]byte) {
		for _, f := range frames {
			if _, err := c.Write(f); err != nil {
				t.Fatal(err)
			}
		}
	}

	c := dial(t, addr)
	for range 2 { // one after another
		tap.holdAt(tapPoint{}, 0)
		send(c, hello, begin, chunks[0], chunks[1], chunks[2], end)
		for _, f := range [][]byte{hello, begin, chunks[0], chunks[1], chunks[2], end} {
			read(t, c, string(f))
		}
		if all := tap.list(); len(all) != 1 || !all[0].ended || all[0].passed != 300 || all[0].size != 300 || all[0].to != 7 || all[0].from != "127.0.0.1" {
			t.Errorf("of a transfer which passed the tap says %+v", all)
		}
		hello = nil
	}

	tap.holdAt(tapPoint{bulkChunk, 200}, 1)
	send(c, begin, chunks[0], chunks[1], chunks[2], end)
	read(t, c, string(begin)+string(chunks[0])+string(chunks[1]))
	held, err := tap.awaitHeld(context.Background(), 1)
	if err != nil || held[0].passed != 200 || held[0].ended {
		t.Fatalf("of a transfer held at its third chunk the tap says %+v, %v", held, err)
	}
	tap.release()
	read(t, c, string(chunks[2])+string(end))

	tap.holdAt(tapPoint{frame: bulkEnd}, 1)
	send(c, begin, chunks[0], chunks[1], chunks[2], end)
	read(t, c, string(begin)+string(chunks[0])+string(chunks[1])+string(chunks[2]))
	if held, err := tap.awaitHeld(context.Background(), 1); err != nil || held[0].passed != 300 || held[0].ended {
		t.Fatalf("of a transfer held at its end the tap says %+v, %v", held, err)
	}
	tap.cutWhere(func(x *tapTransfer) bool { return x.to == 7 })
	if rest, _ := io.ReadAll(c); len(rest) > 0 {
		t.Errorf("%d bytes came of a transfer which was cut", len(rest))
	}
}
