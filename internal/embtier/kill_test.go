package embtier

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"

	"penstock/core/embcache"
)

// TestKill kills a process which writes, at any point: every entry which the next one finds is whole, what was not
// finished is removed, and the statistics are those of the files.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	found := 0
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "PENSTOCK_TEST_TIER="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var b [8]byte
		for want := uint64(3 + 5*round); binary.LittleEndian.Uint64(b[:]) < want; {
			if _, err := io.ReadFull(out, b[:]); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed

		synctest.Test(t, func(t *testing.T) { // no read takes longer than its limit
			tiers, err := Open(Config{Dir: dir, DiskCapacity: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			s, sum := tiers.Stats()[0], int64(0)
			for path, size := range filesOf(t, dir) {
				if sum += (size + 4095) / 4096 * 4096; strings.HasSuffix(path, partSuffix) {
					t.Errorf("%s is left", path)
				}
			}
			if s.Bytes != sum || s.Entries < 3 {
				t.Errorf("%+v, the files have %d bytes", s, sum)
			}
			found = 0
			for n := range 10_000 {
				key := rowKey(n%100, fmt.Sprint(n/100)).TierKey()
				if !tiers.Has(key) {
					continue
				}
				found++
				_, elements, ok := tiers.Load(t.Context(), key, func(*embcache.TierRecord, []byte) bool { return true })
				if !ok || !bytes.Equal(elements, elementsOf(n, 256)) {
					t.Errorf("entry %d: %t, %d bytes", n, ok, len(elements))
				}
			}
			if s := tiers.Stats()[0]; found != s.Entries || s.Hits != uint64(found) || s.Corrupt != 0 {
				t.Errorf("%d are found: %+v", found, s)
			}
		})
	}
	t.Logf("%d entries", found)
}
