package doctor

import (
	"os"
	"slices"
	"testing"
)

func TestListeners(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2627 1 00000000db86e6c1 100 0 0 10 0
   1: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 2628 1 00000000db86e6c1 100 0 0 10 0
   2: 00000000:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2629 1 00000000db86e6c1 100 0 0 10 0
   3: 00000000000000000000000000000000:1F40 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2630 1 0 100 0 0 10 0
   4: short
`
	if got := listenerInodes(table, 8000); !slices.Equal(got, []string{"2627", "2630"}) {
		t.Errorf("listeners %v", got)
	}
	if got := listenerInodes("", 8000); got != nil {
		t.Errorf("listeners %v", got)
	}
	if h := holderOf("none"); h != (portHolder{}) {
		t.Errorf("%+v", h)
	}
}

// TestOpenFiles: opened files are counted.
func TestOpenFiles(t *testing.T) {
	before, ok := openFiles()
	if !ok || before == 0 {
		t.Fatalf("%d files are open, known: %v", before, ok)
	}
	for range 100 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if after, _ := openFiles(); after < before+90 { // other tests may close some
		t.Errorf("%d files were open, and %d are after 100 more", before, after)
	}
}
