package route

import "testing"

// TestCopyTable: losses add up by prefix. Of two prefixes which meet in the table the one which loses more stays.
func TestCopyTable(t *testing.T) {
	var c copyTable
	other := 5 + uint64(len(c.losses))
	c.addLoss(5, 10)
	c.addLoss(5, 20)
	c.addLoss(6, 1)
	if got := c.lossOf(5); got != 30 {
		t.Errorf("%g ms are lost, want 30", got)
	}
	for range 3 {
		c.addLoss(5+2048, 8) // halves the other one's until it is less
	}
	if a, b := c.lossOf(5), c.lossOf(5+2048); other != 5+2048 || a != 0 || b != 8 {
		t.Errorf("%g and %g ms are lost of prefixes which meet, want 0 and 8", a, b)
	}
	c.clearLoss(5)
	c.clearLoss(6)
	if a, b := c.lossOf(5+2048), c.lossOf(6); a != 8 || b != 0 {
		t.Errorf("%g and %g ms are left, want 8 and 0", a, b)
	}
}
