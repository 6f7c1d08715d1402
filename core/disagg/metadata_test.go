package disagg

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"penstock/core/fault"
)

// TestCheckExchange: what two workers need in common, and what the message says to do.
func TestCheckExchange(t *testing.T) {
	if err := CheckExchange(testMetadata(1), testMetadata(7)); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		name   string
		change func(owner *Metadata)
		want   string // of the message; "" if they can exchange blocks
	}{
		{"numerics", func(m *Metadata) { m.Numerics = "n2" }, `numerics "n1" and the decode worker with "n2": run the same model, build`},
		{"type", func(m *Metadata) { m.Type = "float16" }, "type bfloat16 and that of the decode worker of type float16: give both"},
		{"token bytes", func(m *Metadata) { m.TokenBytes = 2048 }, "4096 bytes in the KV cache of the prefill worker and 2048"},
		{"layout", func(m *Metadata) { m.Layout = "head-token" }, "as layer-head-token and the decode worker as head-token: run the same engine"},
		{"block size", func(m *Metadata) { m.BlockSize = 24 }, "blocks of 16 tokens of the prefill worker and of 24 tokens"},
		{"larger blocks", func(m *Metadata) { m.BlockSize = 128 }, ""},
		{"smaller", func(m *Metadata) { m.BlockSize = 8 }, ""},
		{"another host", func(m *Metadata) { m.Transports[0].Scope = "host-b" }, ""},
		{"unreachable", func(m *Metadata) {
			m.Transports = []TransportAddress{{"shm", "host-b", "s"}, {"mem", "p", "x"}}
		}, "by any of [shm mem]: give the decode worker an address"},
	} {
		owner := testMetadata(7)
		tt.change(owner)
		err := CheckExchange(testMetadata(1), owner)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || fault.CodeOf(err) != fault.Conflict || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestSharedTransport: the fastest of the owner's transports which reaches it.
func TestSharedTransport(t *testing.T) {
	owner := testMetadata(7)
	if got, ok := SharedTransport(testMetadata(1), owner); !ok || got.Name != "shm" {
		t.Errorf("on one host: %v %t", got, ok)
	}
	owner.Transports[0].Scope = "host-b"
	if got, ok := SharedTransport(testMetadata(1), owner); !ok || got != owner.Transports[1] {
		t.Errorf("between hosts: %v %t", got, ok)
	}
}

// TestMetadataIsChecked: records of other processes are bounded.
func TestMetadataIsChecked(t *testing.T) {
	if err := testMetadata(7).Validate(); err != nil {
		t.Error(err)
	}
	long := strings.Repeat("x", maxName+1)
	for _, tt := range []struct {
		name   string
		change func(m *Metadata)
	}{
		{"epoch", func(m *Metadata) { m.Epoch = 0 }},
		{"no transports", func(m *Metadata) { m.Transports = nil }},
		{"many transports", func(m *Metadata) { m.Transports = make([]TransportAddress, 9) }},
		{"no name", func(m *Metadata) { m.Transports[1].Name = "" }},
		{"a long name", func(m *Metadata) { m.Transports[1].Name = long }},
		{"a long scope", func(m *Metadata) { m.Transports[1].Scope = long }},
		{"a long address", func(m *Metadata) { m.Transports[1].Address = long }},
		{"block size 0", func(m *Metadata) { m.BlockSize = 0 }},
		{"large block size", func(m *Metadata) { m.BlockSize = 1 << 30 }},
		{"no bytes", func(m *Metadata) { m.TokenBytes = -1 }},
		{"many bytes", func(m *Metadata) { m.TokenBytes = 1 << 40 }},
		{"no layout", func(m *Metadata) { m.Layout = "" }},
		{"no type", func(m *Metadata) { m.Type = "" }},
		{"no numerics", func(m *Metadata) { m.Numerics = "" }},
		{"long numerics", func(m *Metadata) { m.Numerics = long }},
	} {
		m := testMetadata(7)
		tt.change(m)
		if err := m.Validate(); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// FuzzMetadata: a record of another process is refused, or can be compared, and its messages are short.
func FuzzMetadata(f *testing.F) {
	seed, err := json.Marshal(testMetadata(7))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"epoch":1,"transports":[{"name":"tcp","address":"x"}],"block_size":3,"token_bytes":9,"layout":"l","type":"t","numerics":"n"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Metadata
		if json.Unmarshal(b, &m) != nil || m.Validate() != nil {
			return
		}
		for _, pair := range [][2]*Metadata{{&m, &m}, {&m, testMetadata(1)}, {testMetadata(1), &m}} {
			if err := CheckExchange(pair[0], pair[1]); err != nil && (pair[0] == pair[1] || len(err.Error()) > 2000) {
				t.Fatalf("%v", err)
			}
		}
		again, err := json.Marshal(&m)
		var back Metadata
		if err != nil || json.Unmarshal(again, &back) != nil || !reflect.DeepEqual(m, back) {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
