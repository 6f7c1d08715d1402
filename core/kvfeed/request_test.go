package kvfeed

import (
	"encoding/hex"
	"errors"
	"testing"

	"penstock/core/kv"
)

// TestRequestBytes: the bytes of docs/format/kvevent.md.
func TestRequestBytes(t *testing.T) {
	w := kv.Worker{ID: 7, Rank: 1}
	q := ResyncRequest{Worker: w, Epoch: 2, From: 10}
	const want = "ec01000002000000000000000a00000000000000"
	got := AppendRequest(nil, q)
	if hex.EncodeToString(got) != want {
		t.Errorf("%x, want %s", got, want)
	}
	for _, data := range [][]byte{got, append(got, "what later versions add"...)} {
		if back, err := DecodeRequest(w, data); back != q || err != nil {
			t.Errorf("%+v, %v", back, err)
		}
	}
	if got := AppendRequest(nil, ResyncRequest{Worker: w, Epoch: 2}); len(got) != 0 {
		t.Errorf("a request for all has a body, which older workers were not sent: %x", got)
	}
}

// TestRequestsThatCannotBeRead: invalid requests request the whole cache.
func TestRequestsThatCannotBeRead(t *testing.T) {
	w := kv.Worker{ID: 7}
	good := AppendRequest(nil, ResyncRequest{Worker: w, Epoch: 2, From: 10})
	later, other := append([]byte(nil), good...), append([]byte(nil), good...)
	later[1], other[0] = 2, 0xEB
	for _, data := range [][]byte{good[:19], later, other, {1}} {
		q, err := DecodeRequest(w, data)
		if err == nil || q != (ResyncRequest{Worker: w}) {
			t.Errorf("%x: %+v, %v", data, q, err)
		}
	}
	if _, err := DecodeRequest(w, later); !errors.Is(err, ErrVersion) {
		t.Errorf("a later version: %v", err)
	}
	if q, err := DecodeRequest(w, nil); err != nil || q != (ResyncRequest{Worker: w}) {
		t.Errorf("no body: %+v, %v", q, err)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendRequest(nil, ResyncRequest{Epoch: 1 << 50, From: 3}))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := DecodeRequest(kv.Worker{ID: 1}, data)
		if err != nil {
			if q != (ResyncRequest{Worker: kv.Worker{ID: 1}}) {
				t.Fatalf("%+v beside %v", q, err)
			}
			return
		}
		if q.From == 0 {
			q.Epoch = 0 // it is not used
		}
		back, err := DecodeRequest(q.Worker, AppendRequest(nil, q))
		if back != q || err != nil {
			t.Fatalf("%+v became %+v, %v", q, back, err)
		}
	})
}
