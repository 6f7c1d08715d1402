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
type place struct {
	open  int      // after its brace
	names []member // values by which the client names the object
}

// isMediaType reports whether kind is a type of parts that show media, or a member that does so in parts
// without a type.
func showing(kind string) bool {
	switch kind {
	case "image_url", "video_url", "audio_url", "input_audio", "input_image", "image", "video", "audio", "image_pil", "image_embeds", "audio_embeds":
		return true
	}
	return false
}

// readMessages reads a list of messages, each with a text or a list of parts.
func (e *editor) messages() error {
	c := &e.c
	if !c.Is('[') {
		c.Skip()
		return nil
	}
	for c.Open('['); c.More(']'); {
		if !c.Is('{') {
			c.Skip()
			continue
		}
		for c.Open('{'); c.More('}'); {
			key, err := e.key()
			if err != nil {
				return err
			}
			if string(key) != "content" || !c.Is('[') {
				c.Skip()
				continue
			}
			for c.Open('['); c.More(']'); {
				if err := e.part(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readPart reads a part of a message.
func (e *editor) part() error {
	c := &e.c
	if !c.Is('{') {
		c.Skip()
		return nil
	}
	kind, typed, shows := "", false, false
	p := place{open: c.Pos() + 1}
	for c.Open('{'); c.More('}'); {
		key, err := e.key()
		if err != nil {
			return err
		}
		c.Is(0)
		value := c.Pos()
		switch {
		case string(key) == "type" && c.Is('"'):
			kind, typed = c.Text(), true
		case string(key) == uuidKey:
			c.Skip()
			p.names = append(p.names, member{value, c.Pos()})
		case showing(string(key)):
			shows = true
			if err := e.shown(); err != nil {
				return err
			}
		default:
			c.Skip()
		}
	}
	if typed {
		shows = showing(kind)
	}
	if shows {
		e.places = append(e.places, p)
		return nil
	}
	for _, m := range p.names {
		e.patches = append(e.patches, patch{m.value, m.to, null})
	}
	return nil
}

// readShownObject reads the object that a part shows, where some engines trust the client's hash of its
// content.
func (e *editor) shown() error {
	c := &e.c
	if !c.Is('{') {
		c.Skip()
		return nil
	}
	for c.Open('{'); c.More('}'); {
		key, err := e.key()
		if err != nil {
			return err
		}
		c.Is(0)
		value := c.Pos()
		c.Skip()
		switch string(key) {
		case uuidKey, "content_hash", "hash":
			e.patches = append(e.patches, patch{value, c.Pos(), null})
		}
	}
	return nil
}

// patchNames records the patches that name the media, and reports whether all of them have a name: if the
// numbers differ, none has.
func (e *editor) name(names []string) bool {
	told := len(names) > 0 && len(names) == len(e.places)
	for i, p := range e.places {
		with := null
		if told {
			with = strictjson.AppendString(nil, names[i])
			if len(p.names) == 0 {
				e.patches = append(e.patches, patch{p.open, p.open, slices.Concat([]byte(`"`+uuidKey+`":`), with, []byte{','})})
			}
		}
		for _, m := range p.names {
			e.patches = append(e.patches, patch{m.value, m.to, with})
		}
	}
	return told
}

// mediaNames returns the names of objects for an engine whose card's media_keys is way; nil if the engine
// takes none, or there are no objects.
func namesOf(way string, objects []media.Object) []string {
	if way == "" || len(objects) == 0 {
		return nil
	}
	names := make([]string, len(objects))
	for i := range objects {
		if objects[i].Key.IsZero() {
			return nil
		}
		names[i] = objects[i].Key.UUID()
	}
	return names
}
