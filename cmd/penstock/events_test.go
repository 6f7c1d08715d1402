package main

import (
	"strings"
	"testing"
)

func TestPrintEventWithLabels(t *testing.T) {
	const prefix = "worker 7 rank 0  event 3  stored  device from block 0  aa bb cc dd … 5 blocks"
	for data, want := range map[string]string{
		`{"worker_id":7,"seq":3,"kind":"stored","outcome":"apply","tier":"device","seqs":["aa","bb","cc","dd","ee"]}`: prefix + "\n",
		`{"worker_id":7,"seq":3,"kind":"stored","outcome":"gap","tier":"device","seqs":["aa","bb","cc","dd","ee"],
		  "labels":[{"layer":3,"expert":17},null,{"layer":60,"expert":255,"group":0},null,null]}`: prefix + "  experts 3/17 - 60/255@0 - … 5 blocks  (gap)\n",
	} {
		var out strings.Builder
		if err := printEvent(&out, data, false); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("printed\n%swant\n%s", out.String(), want)
		}
	}
}
