package frontend

import (
	"bufio"
	"io"
	"net/http"
	"testing"
)

// TestNextBody: a body with a Content-Length gets what it needs once enough of it has arrived, one of
// unknown length doubles, and one that announces more than it sends gets little.
func TestNextBody(t *testing.T) {
	for _, c := range []struct {
		came, announced int64
		want            int
	}{
		{0, -1, firstBody},
		{firstBody, -1, firstBody},
		{4 * firstBody, -1, 4 * firstBody},
		{0, 0, 1},
		{0, 2500, 2501},
		{0, firstBody - 1, firstBody},
		{0, firstBody, firstBody}, // one byte more than the initial size
		{0, 400 << 10, firstBody},
		{firstBody, 400 << 10, 400<<10 + 1 - firstBody},
		{firstBody, 1 << 30, firstBody}, // 16 KiB are too little to trust a gigabyte
		{32 << 20, 1 << 30, 1<<30 + 1 - 32<<20},
		{2501, 2500, firstBody}, // more than announced, which a server prevents
	} {
		if got := nextBody(int(c.came), c.announced); got != c.want {
			t.Errorf("%d bytes of %d came: %d more, want %d", c.came, c.announced, got, c.want)
		}
	}
}

// TestBrokenChunks: an invalidly encoded body is an error of the client, which is still connected to
// receive it.
func TestBrokenChunks(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, constant("ok"))
		conn := must(w.lis.dial(t.Context(), "", ""))
		defer conn.Close() //nolint:errcheck // it is read to its end
		if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\nZZ\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("the answer is %v, %v", resp, err)
		}
	})
}
