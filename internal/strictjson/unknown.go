package strictjson

import (
	"strings"

	"penstock/core/fault"
)

// Unknown gathers the keys of an object that nobody defines, so that all are
// reported together. Its zero value has none.
type Unknown struct {
	names   []string // the first of them
	dropped bool     // there are more
}

// Note notes a key.
func (u *Unknown) Note(key string) {
	const most = 16
	if len(u.names) == most {
		u.dropped = true
		return
	}
	u.names = append(u.names, Clip(key))
}

// Err refuses what was noted; nil if nothing was.
func (u *Unknown) Err() error {
	if len(u.names) == 0 {
		return nil
	}
	names := strings.Join(u.names, ", ")
	if u.dropped {
		names += ", …"
	}
	return fault.Param(u.names[0], "Unsupported parameter(s): %s", names)
}
