package engineevents

import "slices"

// readExtraKeys reads extra_keys: for each block, nil or a list of keys. A key of another form is opaque: a
// block which depends on it cannot be hashed.
func (c *batchReader) readExtraKeys(e *Event) bool {
	return c.readPerBlock(e, (*batchReader).readExtraKey)
}

// readMediaKeys reads mm_keys: for each block, nil or a list of media objects.
func (c *batchReader) readMediaKeys(e *Event) bool {
	if len(e.Extra) > 0 {
		return c.skipValue()
	}
	return c.readPerBlock(e, (*batchReader).readMediaKey)
}

// readPerBlock reads a list which has, for each block, nil, one key or a list of keys.
func (c *batchReader) readPerBlock(e *Event, key func(*batchReader) (ExtraKey, bool)) bool {
	n, ok := c.readArrayHeader()
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
		if c.readNil() {
			continue
		}
		keys := 1
		if c.isArray() {
			if keys, ok = c.readArrayHeader(); !ok {
				return false
			}
		}
		if keys > maxKeys-len(m.keys) {
			c.tooLarge = true
			return false
		}
		first := len(m.keys)
		for range keys {
			if c.readNil() {
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
func (c *batchReader) readExtraKey() (ExtraKey, bool) {
	if c.isString() {
		b, ok := c.readString()
		return ExtraKey{Kind: KeyText, Text: c.copyText(b)}, ok
	}
	start := c.pos
	if k, ok := c.readTypedKey(); ok {
		return k, true
	}
	c.pos = start
	if n, ok := c.readArrayHeader(); ok && n == 2 && c.isString() {
		id, _ := c.readString()
		if offset, high, ok := c.readInteger(); ok && !high && id != nil {
			return ExtraKey{Kind: KeyMedia, Text: c.copyText(id), Offset: offset}, true
		}
	}
	c.pos = start
	return ExtraKey{Kind: KeyOpaque}, c.skipValue()
}

// readTypedKey reads a key in map form, with its type.
func (c *batchReader) readTypedKey() (k ExtraKey, ok bool) {
	if !c.isMap() {
		return k, false
	}
	var value []byte
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		name, isText := c.readString()
		switch {
		case !isText:
			ok = false
		case string(name) == "type" && c.isString():
			var kind []byte
			kind, ok = c.readString()
			k.Kind = parseKeyKind(kind)
		case (string(name) == "block_offset" || string(name) == "offset") && c.peekByte() != 0xc0:
			k.Offset, _, ok = c.readInteger()
		case isKeyValue(name) && c.isString():
			value, ok = c.readString()
		default:
			ok = c.skipValue()
		}
	}
	if !ok || k.Kind == 0 || len(value) == 0 {
		return k, false
	}
	k.Text = c.copyText(value)
	return k, true
}

// isKeyValue reports whether a field of a typed key holds its value.
func isKeyValue(name []byte) bool {
	switch string(name) {
	case "hash", "identifier", "name", "salt":
		return true
	}
	return false
}

// parseKeyKind returns the kind of a typed key; 0 is opaque.
func parseKeyKind(tag []byte) KeyKind {
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
func (c *batchReader) readMediaKey() (ExtraKey, bool) {
	start := c.pos
	k := ExtraKey{Kind: KeyMedia}
	named := false
	n, ok := c.readMapHeader()
	for ; ok && n > 0; n-- {
		name, isText := c.readString()
		switch {
		case !isText:
			ok = false
		case string(name) == "hash" && c.isString() && !named:
			var id []byte
			id, ok = c.readString()
			k.Text = c.copyText(id)
		case string(name) == "uuid" && c.isString(): // the object's name in the request; its hash depends on the content too
			var id []byte
			if id, ok = c.readString(); len(id) > 0 {
				k.Text, named = c.copyText(id), true
			}
		case string(name) == "start_offset" && c.peekByte() != 0xc0:
			k.Offset, _, ok = c.readInteger()
		default:
			ok = c.skipValue()
		}
	}
	if ok && len(k.Text) > 0 {
		return k, true
	}
	c.pos = start
	return ExtraKey{Kind: KeyOpaque}, c.skipValue()
}

// copyText copies b into the batch's memory.
func (c *batchReader) copyText(b []byte) []byte {
	m := &c.b.mem
	from := len(m.text)
	m.text = append(m.text, b...)
	return slices.Clip(m.text[from:])
}
