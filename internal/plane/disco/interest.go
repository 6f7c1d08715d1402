package disco

import "encoding/json"

// RouterMeta is the Meta of a router: what it wants of its component's workers. See docs/format/disco.md,
// "Routers".
type RouterMeta struct {
	// KVEvents says that the router follows cache events.
	KVEvents bool `json:"kv_events"`
}

// Encode returns the Meta of an instance.
func (m RouterMeta) Encode() []byte {
	meta, _ := json.Marshal(m) // a bool is always encodable
	return meta
}

// FollowsKVEvents reports whether a router follows cache events. One whose Meta does not say so, like routers of
// earlier builds, does.
func FollowsKVEvents(in Instance) bool {
	var meta struct {
		KVEvents *bool `json:"kv_events"`
	}
	return json.Unmarshal(in.Meta, &meta) != nil || meta.KVEvents == nil || *meta.KVEvents
}

// WantsKVEvents reports whether the workers of a component must publish cache events, by the watched routers of all
// components. They need not if all routers of the component say that they do not follow the events. If there is
// none, or discovery is not sure of one, a router may exist which it does not show: then they must.
func WantsKVEvents(routers []Instance, namespace, component string) bool {
	known := false
	for _, in := range routers {
		if in.Namespace != namespace || in.Component != component {
			continue
		}
		if in.Unconfirmed || FollowsKVEvents(in) {
			return true
		}
		known = true
	}
	return !known
}
