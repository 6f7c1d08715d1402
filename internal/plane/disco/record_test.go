package disco

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"penstock/core/fault"
)

// The bytes follow docs/format/disco.md.
func TestRecordBytes(t *testing.T) {
	r := instanceRecord{Instance: Instance{
		Kind: KindWorker, ID: 7, Epoch: 3, Namespace: "penstock", Component: "backend", Endpoint: "generate",
		Addr: "127.0.0.1:7001", Host: "node-1", PID: 4242, Meta: []byte(`{"name":"tiny"}`), Unconfirmed: true,
	}, Holder: "9f86d081884c7d659a2feaa0c55ad015"}
	const want = `{"kind":"worker","id":7,"epoch":3,"namespace":"penstock","component":"backend","endpoint":"generate",` +
		`"addr":"127.0.0.1:7001","host":"node-1","pid":4242,"meta":"eyJuYW1lIjoidGlueSJ9","holder":"9f86d081884c7d659a2feaa0c55ad015"}`
	got, err := encodeRecord(r)
	if err != nil || string(got) != want {
		t.Fatalf("error %v, got\n%s\nwant\n%s", err, got, want)
	}
	back, err := decodeRecord(KindWorker, 7, got)
	r.Unconfirmed = false
	if err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("error %v, read back as %+v", err, back)
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	for _, data := range []string{
		"", "null", "[]", "{", `{"kind":"worker","id":1}`, `{"kind":"router","id":1,"holder":"h"}`,
		`{"kind":"worker","id":2,"holder":"h"}`, `{"kind":"worker","id":-1,"holder":"h"}`,
		`{"kind":"worker","id":"1","holder":"h"}`, `{"kind":"worker","id":1,"holder":"h"} x`,
		`{"kind":"worker","id":1,"holder":"h","meta":"?"}`,
	} {
		if r, err := decodeRecord(KindWorker, 1, []byte(data)); fault.CodeOf(err) != fault.Invalid || !reflect.DeepEqual(r, instanceRecord{}) {
			t.Errorf("%q: error %v and %+v, want Invalid and nothing", data, err, r)
		}
	}
	long := `{"kind":"worker","id":1,"holder":"h","meta":"` + strings.Repeat("A", MaxRecord) + `"}`
	if _, err := decodeRecord(KindWorker, 1, []byte(long)); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("a long record: error %v, want TooLarge", err)
	}
	if _, err := decodeClaim(make([]byte, 1<<10+1)); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("a long claim: error %v, want TooLarge", err)
	}
	// What newer versions add is ignored.
	if _, err := decodeRecord(KindWorker, 1, []byte(`{"kind":"worker","id":1,"holder":"h","later":{"a":[1]}}`)); err != nil {
		t.Errorf("an unknown field: %v", err)
	}
}

// What is accepted fits its key and survives being written and read again.
func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"kind":"worker","id":1,"holder":"h"}`))
	f.Add([]byte(`{"kind":"worker","id":1,"epoch":18446744073709551615,"meta":"AAA=","addr":"\u0000\ud800","pid":-1,"holder":"h"}`))
	f.Add([]byte(`{"Kind":"worker","ID":1,"HOLDER":"h","holder":"i"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(KindWorker, 1, data)
		if err != nil {
			return
		}
		if r.Kind != KindWorker || r.ID != 1 || r.Holder == "" || r.Unconfirmed {
			t.Fatalf("accepted %+v", r)
		}
		out, err := encodeRecord(r)
		if fault.CodeOf(err) == fault.TooLarge {
			return // escapes may make it longer
		}
		if err != nil {
			t.Fatalf("cannot be written again: %v", err)
		}
		again, err := decodeRecord(KindWorker, 1, out)
		if len(r.Meta) == 0 {
			r.Meta = nil // omitted
		}
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("error %v\nfirst  %+v\nsecond %+v", err, r, again)
		}
	})
}

func FuzzDecodeClaim(f *testing.F) {
	f.Add([]byte(`{"epoch":1,"holder":"h"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeClaim(data)
		if err != nil {
			return
		}
		out, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeClaim(out); len(out) <= 1<<10 && (err != nil || again != c) {
			t.Fatalf("error %v, first %+v, second %+v", err, c, again)
		}
	})
}

func FuzzSplitSubject(f *testing.F) {
	r := &NATSRegistry{cfg: NATSRegistryConfig{Bucket: "b"}}
	f.Add("$KV.b.lease.worker.1")
	f.Add("$KV.b.instance.worker.007")
	f.Add("$KV.b.instance.router.1")
	f.Add("$KV.c.instance.worker.1")
	f.Fuzz(func(t *testing.T, s string) {
		word, id, ok := r.parseSubject(KindWorker, s)
		if !ok {
			return
		}
		n := instanceKey{KindWorker, id}
		key := recordKey(n)
		if word == leaseWord {
			key = leaseKey(n)
		}
		if (word == leaseWord || word == recordWord) && r.keySubject(key) != s {
			t.Errorf("%q is %s of %d, whose subject is %q", s, word, id, r.keySubject(key))
		}
	})
}
