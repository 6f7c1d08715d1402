package remote

import (
	"slices"

	"penstock/core/media"
	"penstock/internal/strictjson"
)

// null replaces values that are removed from a client's request.
var null = []byte("null")

// uuidKey is the member of a part that names its media object.
const uuidKey = "uuid"

// mediaPart is the position of a part of a message that shows a media object.
type mediaPart struct {
	start int          // after its brace
	end   int          // of the part, with its brace
	names []valueRange // values by which the client names the object
}

// isMediaType reports whether kind is a type of parts that show media, or a member that does so in parts
// without a type.
func isMediaType(kind string) bool {
	switch kind {
	case "image_url", "video_url", "audio_url", "input_audio", "input_image", "image", "video", "audio", "image_pil", "image_embeds", "audio_embeds":
		return true
	}
	return false
}

// readMessages reads a list of messages, each with a text or a list of parts.
func (e *bodyEditor) readMessages() error {
	c := &e.c
	if !c.NextIs('[') {
		c.Skip()
		return nil
	}
	for c.Open('['); c.More(']'); {
		if !c.NextIs('{') {
			c.Skip()
			continue
		}
		for c.Open('{'); c.More('}'); {
			key, err := e.readKey()
			if err != nil {
				return err
			}
			if string(key) != "content" || !c.NextIs('[') {
				c.Skip()
				continue
			}
			for c.Open('['); c.More(']'); {
				if err := e.readPart(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readPart reads a part of a message.
func (e *bodyEditor) readPart() error {
	c := &e.c
	if !c.NextIs('{') {
		c.Skip()
		return nil
	}
	kind, typed, shows := "", false, false
	p := mediaPart{start: c.Pos() + 1}
	for c.Open('{'); c.More('}'); {
		key, err := e.readKey()
		if err != nil {
			return err
		}
		c.NextIs(0)
		value := c.Pos()
		switch {
		case string(key) == "type" && c.NextIs('"'):
			kind, typed = c.ReadString(), true
		case string(key) == uuidKey:
			c.Skip()
			p.names = append(p.names, valueRange{value, c.Pos()})
		case isMediaType(string(key)):
			shows = true
			if err := e.readShownObject(); err != nil {
				return err
			}
		default:
			c.Skip()
		}
	}
	if typed {
		shows = isMediaType(kind)
	}
	if shows {
		p.end = c.Pos()
		e.parts = append(e.parts, p)
		return nil
	}
	for _, m := range p.names {
		e.patches = append(e.patches, bodyPatch{m.start, m.end, null})
	}
	return nil
}

// readShownObject reads the object that a part shows, where some engines trust the client's hash of its
// content.
func (e *bodyEditor) readShownObject() error {
	c := &e.c
	if !c.NextIs('{') {
		c.Skip()
		return nil
	}
	for c.Open('{'); c.More('}'); {
		key, err := e.readKey()
		if err != nil {
			return err
		}
		c.NextIs(0)
		value := c.Pos()
		c.Skip()
		switch string(key) {
		case uuidKey, "content_hash", "hash":
			e.patches = append(e.patches, bodyPatch{value, c.Pos(), null})
		}
	}
	return nil
}

// patchNames records the patches that name the media, and reports whether all of them have a name: if the
// numbers differ, none has.
func (e *bodyEditor) patchNames(names []string) bool {
	told := len(names) > 0 && len(names) == len(e.parts)
	for i, p := range e.parts {
		with := null
		if told {
			with = strictjson.AppendString(nil, names[i])
			if len(p.names) == 0 {
				e.patches = append(e.patches, bodyPatch{p.start, p.start, slices.Concat([]byte(`"`+uuidKey+`":`), with, []byte{','})})
			}
		}
		for _, m := range p.names {
			e.patches = append(e.patches, bodyPatch{m.start, m.end, with})
		}
	}
	return told
}

// mediaNames returns the names of objects in the namespace of a salt, for an engine whose card's media_keys is way; nil
// if the engine takes none, or there are no objects.
func mediaNames(way string, objects []media.Object, salt string) []string {
	if way == "" || len(objects) == 0 {
		return nil
	}
	names := make([]string, len(objects))
	for i := range objects {
		if objects[i].Key.IsZero() {
			return nil
		}
		names[i] = objects[i].Key.UUIDIn(salt)
	}
	return names
}
