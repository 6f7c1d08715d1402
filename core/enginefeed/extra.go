package enginefeed

import "slices"

// readExtraKeys reads extra_keys: for each block, nil or a list of keys. A key of another form is opaque: a
// block which depends on it cannot be hashed.
func (c *decoding) extra(e *Event) bool {
	return c.perBlock(e, (*decoding).extraKey)
}

// readMediaKeys reads mm_keys: for each block, nil or a list of media objects.
func (c *decoding) mediaKeys(e *Event) bool {
	if len(e.Extra) > 0 {
		return c.skip()
	}
	return c.perBlock(e, (*decoding).mediaKey)
}

// readPerBlock reads a list which has, for each block, nil, one key or a list of keys.
func (c *decoding) perBlock(e *Event, key func(*decoding) (Key, bool)) bool {
	n, ok := c.array()
	m := &c.b.mem
	if !ok || n > maxHashes-len(m.extra) {
		c.tooLarge = c.tooLarge || ok
		return false
	}
	from := len(m.extra)
	m.extra = slices.Grow(m.extra, n)[:from+n]
	e.Extra = m.extra[from : from+n : from+n]
	for i := range e.Extra {
		e.Extra[i] = Extra{}
		if c.null() {
			continue
		}
		keys := 1
		if c.isArray() {
			if keys, ok = c.array(); !ok {
				return false
			}
		}
		if keys > maxKeys-len(m.keys) {
			c.tooLarge = true
			return false
		}
		first := len(m.keys)
		for range keys {
			if c.null() {
				continue
			}
			k, ok := key(c)
			if !ok {
				return false
			}
			m.keys = append(m.keys, k)
		}
		e.Extra[i].Keys = slices.Clip(m.keys[first:])
	}
	return true
}

// readExtraKey reads one of extra_keys: a text, or an identifier with its start offset.
func (c *decoding) extraKey() (Key, bool) {
	if c.isText() {
		b, ok := c.text()
		return Key{Kind: KeyText, Text: c.keep(b)}, ok
	}
	start := c.at
	if k, ok := c.typedKey(); ok {
		return k, true
	}
	c.at = start
	if n, ok := c.array(); ok && n == 2 && c.isText() {
		id, _ := c.text()
		if offset, high, ok := c.integer(); ok && !high && id != nil {
			return Key{Kind: KeyMedia, Text: c.keep(id), Offset: offset}, true
		}
	}
	c.at = start
	return Key{Kind: KeyOpaque}, c.skip()
}

// readTypedKey reads a key in map form, with its type.
func (c *decoding) typedKey() (k Key, ok bool) {
	if !c.isMap() {
		return k, false
	}
	var value []byte
	n, ok := c.fields()
	for ; ok && n > 0; n-- {
		name, isText := c.text()
		switch {
		case !isText:
			ok = false
		case string(name) == "type" && c.isText():
			var kind []byte
			kind, ok = c.text()
			k.Kind = keyKind(kind)
		case (string(name) == "block_offset" || string(name) == "offset") && c.peek() != 0xc0:
			k.Offset, _, ok = c.integer()
		case isValue(name) && c.isText():
			value, ok = c.text()
		default:
			ok = c.skip()
		}
	}
	if !ok || k.Kind == 0 || len(value) == 0 {
		return k, false
	}
	k.Text = c.keep(value)
	return k, true
}

// isKeyValue reports whether a field of a typed key holds its value.
func isValue(name []byte) bool {
	switch string(name) {
	case "hash", "identifier", "name", "salt":
		return true
	}
	return false
}

// parseKeyKind returns the kind of a typed key; 0 is opaque.
func keyKind(tag []byte) KeyKind {
	switch string(tag) {
	case "MultiModalKey":
		return KeyMedia
	case "LoRAKey":
		return KeyLoRA
	case "CacheSaltKey":
		return KeySalt
	}
	return 0
}

// readMediaKey reads one of mm_keys: a map with a hash and the object's start offset.
func (c *decoding) mediaKey() (Key, bool) {
	start := c.at
	k := Key{Kind: KeyMedia}
	named := false
	n, ok := c.fields()
	for ; ok && n > 0; n-- {
		name, isText := c.text()
		switch {
		case !isText:
			ok = false
		case string(name) == "hash" && c.isText() && !named:
			var id []byte
			id, ok = c.text()
			k.Text = c.keep(id)
		case string(name) == "uuid" && c.isText(): // the object's name in the request; its hash depends on the content too
			var id []byte
			if id, ok = c.text(); len(id) > 0 {
				k.Text, named = c.keep(id), true
			}
		case string(name) == "start_offset" && c.peek() != 0xc0:
			k.Offset, _, ok = c.integer()
		default:
			ok = c.skip()
		}
	}
	if ok && len(k.Text) > 0 {
		return k, true
	}
	c.at = start
	return Key{Kind: KeyOpaque}, c.skip()
}

// copyText copies b into the batch's memory.
func (c *decoding) keep(b []byte) []byte {
	m := &c.b.mem
	from := len(m.text)
	m.text = append(m.text, b...)
	return slices.Clip(m.text[from:])
}
