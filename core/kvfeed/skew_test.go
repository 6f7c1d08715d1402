package kvfeed

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// every returns a record with an event of every kind.
func every() *Record {
	return &Record{
		Worker: kv.Worker{ID: kv.MaxWorkerID, Rank: 3}, Epoch: 1 << 41, First: 1 << 33, BlockSize: 64,
		Events: []kv.Event{
			{Kind: kv.Cleared},
			{Kind: kv.Stored, Tier: 1, Start: 2, Parent: 0xabcdef, Blocks: []kv.BlockHash{1, 2}},
			{Kind: kv.Removed, Tier: 3, Seqs: []kv.SeqHash{1 << 63, 5}},
		},
	}
}

// TestRecordsAreReadForEver: streams outlive the builds which filled them. The bytes are from an earlier
// build.
func TestRecordsAreReadForEver(t *testing.T) {
	recorded(t, "testdata/record-v1.hex", every())
	recorded(t, "testdata/record-v1-labels.hex", labelledExample())
	recorded(t, "testdata/record-v1-moves.hex", movedExample())
	recorded(t, "testdata/record-v1-movelabels.hex", labelledMoveExample())
	recorded(t, "testdata/record-v1-blockmoves.hex", listedMoveExample())
}

func recorded(t *testing.T, file string, want *Record) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	var got Record
	if err := DecodeRecord(&got, data); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, &got, sameRecord); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if now := AppendRecord(nil, want); !bytes.Equal(now, data) {
		t.Errorf("it is written as\n%x\nolder builds know\n%x", now, data)
	}
}
