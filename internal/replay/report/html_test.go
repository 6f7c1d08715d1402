package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"penstock/internal/replay"
)

var pages = flag.String("pages", "", "write the pages of all made-up results into this directory, for a browser to check")

// bare is a result as it is read from JSON: without what figures are drawn from.
func bare() *replay.Result {
	r := replayResult()
	r.Plots = nil
	return r
}

func fixtures() map[string]*replay.Result {
	return map[string]*replay.Result{
		"replay": replayResult(), "bench": benchResult(), "empty": emptyResult(), "many": manyResult(), "hostile": hostileResult(),
		"none": {Command: "replay"}, "bare": bare(),
	}
}

// TestPages writes the pages, and what a browser should find in them.
func TestPages(t *testing.T) {
	for name, r := range fixtures() {
		var page, again bytes.Buffer
		if err := HTML(&page, r); err != nil {
			t.Fatal(err)
		}
		if err := HTML(&again, r); err != nil || !bytes.Equal(page.Bytes(), again.Bytes()) {
			t.Errorf("%s: the second page differs from the first (%v)", name, err)
		}
		if *pages == "" {
			continue
		}
		want, err := json.Marshal(map[string]any{"result": r, "plots": r.Plots})
		if err != nil {
			t.Fatal(err)
		}
		for suffix, data := range map[string][]byte{".html": page.Bytes(), ".json": want} {
			if err := os.WriteFile(filepath.Join(*pages, name+suffix), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}
