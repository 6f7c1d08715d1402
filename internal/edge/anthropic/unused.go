package anthropic

import "penstock/internal/strictjson"

// readUnusedField reads the fields of both endpoints which this server does not implement. It accepts a field
// if ignoring it cannot change the answer, and else refuses it by name.
func (d *requestDecoder) readUnusedField(key string) (known bool, err error) {
	switch key {
	case "cache_control": // the prefix cache needs no marks
		return true, d.readIgnoredObject()
	case "speed": // there is only one speed
		return true, d.requireOneOf("standard", "fast")
	case "mcp_servers":
		return true, d.requireEmptyArray()
	case "context_management":
		return true, d.readContextManagement()
	case "billing_policy", "compaction":
		return true, d.refuseUnsupported()
	}
	return false, nil
}

const notSupported = "is not supported by this server: leave it out"

// refuseUnsupported refuses the value being read: ignoring it would change the answer. The status is 400 and
// not 501, which clients would treat as a server error and retry.
func (d *requestDecoder) refuseUnsupported() error { return d.InvalidError(notSupported) }

// readIgnoredObject reads an object which has no effect.
func (d *requestDecoder) readIgnoredObject() error {
	return d.ReadObject(func(string) error { return d.SkipValue() })
}

// requireString reads a string which must equal ok, the value for the only supported behavior.
func (d *requestDecoder) requireString(ok string) error {
	s, err := d.ReadString()
	if err == nil && s != ok {
		return d.refuseUnsupported()
	}
	return err
}

// requireOneOf reads one of two strings.
func (d *requestDecoder) requireOneOf(a, b string) error {
	s, err := d.ReadString()
	if err == nil && s != a && s != b {
		return d.InvalidError("must be %s or %s", a, b)
	}
	return err
}

func (d *requestDecoder) requireEmptyArray() error {
	return d.ReadArray("an array", func(int) error { return d.ParentInvalidError(notSupported) })
}

// readContextManagement accepts no edits, and the edit which clears nothing, which Claude Code requests: all
// thinking stays in the conversation.
func (d *requestDecoder) readContextManagement() error {
	return d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		if key != "edits" {
			return d.UnsupportedError()
		}
		return d.ReadArray("an array of edits", func(int) error { return d.readContextEdit() })
	})
}

func (d *requestDecoder) readContextEdit() error {
	var kind, keep string
	err := d.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.ReadStringInto(&kind)
		case "keep":
			return d.readKeep(&keep)
		}
		return d.SkipValue()
	})
	if err == nil && (kind != "clear_thinking_20251015" || keep != "all") {
		return d.refuseUnsupported()
	}
	return err
}

// readKeep reads "all", {"type":"all"} or an object with a number of turns.
func (d *requestDecoder) readKeep(dst *string) error {
	if d.Kind() != strictjson.ObjectKind {
		return d.ReadStringInto(dst)
	}
	return d.ReadObject(func(key string) error {
		if key == "type" {
			return d.ReadStringInto(dst)
		}
		return d.SkipValue()
	})
}
