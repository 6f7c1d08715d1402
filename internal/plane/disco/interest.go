package disco

import "encoding/json"

// routerMeta is the Meta of a router: what it wants of workers. See docs/format/disco.md, "Routers".
type routerMeta struct {
	KVEvents *bool `json:"kv_events,omitempty"`
}

// RouterMeta returns the Meta of a router which follows the cache events of its component's workers, or does not.
func RouterMeta(followsEvents bool) []byte {
	meta, _ := json.Marshal(routerMeta{KVEvents: &followsEvents}) // a bool is always encodable
	return meta
}

// FollowsKVEvents reports whether a router follows cache events. One whose Meta does not say so, as those of
// earlier builds, does.
func FollowsKVEvents(in Instance) bool {
	var meta routerMeta
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
