package frontend

import "testing"

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
