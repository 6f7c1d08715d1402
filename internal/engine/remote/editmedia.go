package remote

import (
	"slices"

	"penstock/core/media"
	"penstock/internal/strictjson"
)

// null is the value of what is taken away from a client's request.
var null = []byte("null")

// uuidKey is the member of a part that names what it shows.
const uuidKey = "uuid"

// place is where a part of a message shows a media object.
type place struct {
	open  int      // behind its brace
	names []member // values that name the object, as the client wrote it
}

// showing are the types of parts that show media, and the members that do in parts without a type.
func showing(kind string) bool {
	switch kind {
	case "image_url", "video_url", "audio_url", "input_audio", "input_image", "image", "video", "audio", "image_pil", "image_embeds", "audio_embeds":
		return true
	}
	return false
}

// messages reads a list of messages, each with a text or a list of parts.
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

// part reads a part of a message.
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

// shown reads what a part shows, where some engines take a client's word for what its content is.
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

// name notes what the media are to be called, and reports whether all of them have a name: if there are others than
// names are for, none has one.
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

// namesOf are what an engine that takes keys in the way of a card's media_keys is to call objects; nil if it takes
// none, or there are none.
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
