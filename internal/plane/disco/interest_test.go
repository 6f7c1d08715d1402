package disco

import "testing"

func TestWantsKVEvents(t *testing.T) {
	follows, ignores := Instance{Namespace: "n", Component: "c", Meta: RouterMeta{KVEvents: true}.Encode()}, Instance{Namespace: "n", Component: "c", Meta: RouterMeta{KVEvents: false}.Encode()}
	older, newer, odd := follows, ignores, ignores
	older.Meta, newer.Meta, odd.Meta = nil, []byte(`{"kv_events":false,"more":1}`), []byte(`{"kv_events":"no"}`)
	unsure, elsewhere, otherwise := ignores, follows, follows
	unsure.Unconfirmed, elsewhere.Namespace, otherwise.Component = true, "m", "d"
	for _, c := range []struct {
		name    string
		routers []Instance
		want    bool
	}{
		{"no router is known", nil, true},
		{"one follows", []Instance{follows}, true},
		{"one does not", []Instance{ignores}, false},
		{"two do not", []Instance{ignores, newer}, false},
		{"one of two follows", []Instance{ignores, follows}, true},
		{"an earlier build", []Instance{ignores, older}, true},
		{"Meta which cannot be read", []Instance{ignores, odd}, true},
		{"one which may be gone", []Instance{ignores, unsure}, true},
		{"routers of other components", []Instance{ignores, elsewhere, otherwise}, false},
		{"only routers of other components", []Instance{elsewhere, otherwise}, true},
	} {
		if got := WantsKVEvents(c.routers, "n", "c"); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}

// FuzzFollowsKVEvents: whatever a router's Meta is, it is read without a panic, and only false means no.
func FuzzFollowsKVEvents(f *testing.F) {
	f.Add(RouterMeta{KVEvents: true}.Encode())
	f.Add(RouterMeta{KVEvents: false}.Encode())
	f.Fuzz(func(t *testing.T, meta []byte) {
		if !FollowsKVEvents(Instance{Meta: meta}) && len(meta) < len("{\"kv_events\":false}") {
			t.Errorf("%q says that the router follows no events", meta)
		}
	})
}
