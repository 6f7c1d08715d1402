package frontend

import (
	"bufio"
	"io"
	"net/http"
	"testing"
)

// TestNextBody: a body of announced length takes what it needs once enough of it has come, one of
// unknown length doubles, and one that announces more than it sends holds little.
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
		{0, firstBody, firstBody}, // a byte more than it begins with
		{0, 400 << 10, firstBody},
		{firstBody, 400 << 10, 400<<10 + 1 - firstBody},
		{firstBody, 1 << 30, firstBody}, // a gigabyte is not believed on 16 KiB
		{32 << 20, 1 << 30, 1<<30 + 1 - 32<<20},
		{2501, 2500, firstBody}, // more than was announced, which a server does not let happen
	} {
		if got := nextBody(int(c.came), c.announced); got != c.want {
			t.Errorf("%d bytes of %d came: %d more, want %d", c.came, c.announced, got, c.want)
		}
	}
}

// TestBrokenChunks: a body that is not sent as HTTP has it is the client's mistake, which is there to be told.
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
