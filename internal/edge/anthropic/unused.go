package anthropic

import "penstock/internal/strictjson"

// readUnusedField reads the fields of both endpoints which this server does not implement. It accepts a field
// if ignoring it cannot change the answer, and else refuses it by name.
func (d *decoder) unused(key string) (known bool, err error) {
	switch key {
	case "cache_control": // the prefix cache needs no marks
		return true, d.object()
	case "speed": // there is only one speed
		return true, d.oneOf("standard", "fast")
	case "mcp_servers":
		return true, d.emptyArray()
	case "context_management":
		return true, d.contextManagement()
	case "billing_policy", "compaction":
		return true, d.notSupported()
	}
	return false, nil
}

const notSupported = "is not supported by this server: leave it out"

// refuseUnsupported refuses the value being read: ignoring it would change the answer. The status is 400 and
// not 501, which clients would treat as a server error and retry.
func (d *decoder) notSupported() error { return d.Refuse(notSupported) }

// readIgnoredObject reads an object which has no effect.
func (d *decoder) object() error {
	return d.Object(func(string) error { return d.Skip() })
}

// requireString reads a string which must equal ok, the value for the only supported behavior.
func (d *decoder) usual(ok string) error {
	s, err := d.String()
	if err == nil && s != ok {
		return d.notSupported()
	}
	return err
}

// requireOneOf reads one of two strings.
func (d *decoder) oneOf(a, b string) error {
	s, err := d.String()
	if err == nil && s != a && s != b {
		return d.Refuse("must be %s or %s", a, b)
	}
	return err
}

func (d *decoder) emptyArray() error {
	return d.Array("an array", func(int) error { return d.RefuseParent(notSupported) })
}

// readContextManagement accepts no edits, and the edit which clears nothing, which Claude Code requests: all
// thinking stays in the conversation.
func (d *decoder) contextManagement() error {
	return d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		if key != "edits" {
			return d.Unsupported()
		}
		return d.Array("an array of edits", func(int) error { return d.edit() })
	})
}

func (d *decoder) edit() error {
	var kind, keep string
	err := d.Object(func(key string) error {
		if none, err := d.Null(); none || err != nil {
			return err
		}
		switch key {
		case "type":
			return d.Text(&kind)
		case "keep":
			return d.keep(&keep)
		}
		return d.Skip()
	})
	if err == nil && (kind != "clear_thinking_20251015" || keep != "all") {
		return d.notSupported()
	}
	return err
}

// readKeep reads "all", {"type":"all"} or an object with a number of turns.
func (d *decoder) keep(dst *string) error {
	if d.Kind() != strictjson.ObjectKind {
		return d.Text(dst)
	}
	return d.Object(func(key string) error {
		if key == "type" {
			return d.Text(dst)
		}
		return d.Skip()
	})
}
