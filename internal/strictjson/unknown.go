package strictjson

import (
	"strings"

	"penstock/core/fault"
)

// UnknownKeys collects the undefined keys of an object, so that they are reported together. Its
// zero value is empty.
type Unknown struct {
	names   []string // the first keys
	dropped bool     // there were more
}

// Add adds a key.
func (u *Unknown) Note(key string) {
	const most = 16
	if len(u.names) == most {
		u.dropped = true
		return
	}
	u.names = append(u.names, Clip(key))
}

// Err returns an error which names the keys; nil if there are none.
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
