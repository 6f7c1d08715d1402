package anthropic

import "penstock/internal/strictjson"

// unused reads the fields of both endpoints that this server does not act on:
// accepted where ignoring them cannot change the answer, refused by name where it
// would.
func (d *decoder) unused(key string) (known bool, err error) {
	switch key {
	case "cache_control": // what can be reused is found by itself
		return true, d.object()
	case "speed": // both get the only speed there is
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

// notSupported refuses the value being read: ignoring it would change the answer.
// The status is 400 and not 501, which clients take for a server's trouble and
// try again.
func (d *decoder) notSupported() error { return d.Refuse(notSupported) }

// object reads an object that does not matter.
func (d *decoder) object() error {
	return d.Object(func(string) error { return d.Skip() })
}

// usual reads a string that must be the one that asks for what happens anyway.
func (d *decoder) usual(ok string) error {
	s, err := d.String()
	if err == nil && s != ok {
		return d.notSupported()
	}
	return err
}

// oneOf reads one of two words.
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

// contextManagement accepts no edits, and the one that clears nothing, which
// Claude Code asks for: all thinking stays in the conversation.
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

// keep reads "all", {"type":"all"} or the object of a number of turns.
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
