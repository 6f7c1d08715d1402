package strictjson

import (
	"strings"

	"penstock/core/fault"
)

// UnknownKeys collects the undefined keys of an object, so that they are reported together. Its
// zero value is empty.
type UnknownKeys struct {
	names   []string // the first keys
	dropped bool     // there were more
}

// Add adds a key.
func (u *UnknownKeys) Add(key string) {
	const most = 16
	if len(u.names) == most {
		u.dropped = true
		return
	}
	u.names = append(u.names, TruncateKey(key))
}

// Err returns an error which names the keys; nil if there are none.
func (u *UnknownKeys) Err() error {
	if len(u.names) == 0 {
		return nil
	}
	names := strings.Join(u.names, ", ")
	if u.dropped {
		names += ", …"
	}
	return fault.InvalidParam(u.names[0], "Unsupported parameter(s): %s", names)
}
