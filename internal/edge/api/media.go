package api

import (
	"slices"
	"strings"

	"penstock/core/media"
	"penstock/internal/strictjson"
)

// MaxMedia bounds the media objects of one request, independent of model and settings.
const MaxMedia = 256

// MaxURL bounds a URL other than a data: URI, and MaxMediaName a client's name of an object, in bytes.
const (
	MaxURL       = 16 << 10
	MaxMediaName = 512
)

// Part is a part of a message's content: a media object, or a text if Media is nil.
type Part struct {
	Text  string
	Media *Media
}

// Media is a media object as a client sends it.
type Media struct {
	Kind media.Kind
	// Type is the type of the part in the client's API. Part is the path of the part in the request
	// ("messages[1].content[2]"), and Param that of the URL.
	Type, Part, Param string
	// URL is an http, https or data: URI. Base64 data is converted to a data: URI.
	URL string
	// Name is the client's own name of the object (uuid); "" if there is none.
	Name string
	// Halvings is how often the object is halved before it is encoded. The server sets it.
	Halvings int
}

// HasMedia reports whether a message contains media.
func (r *Request) HasMedia() bool {
	return slices.ContainsFunc(r.Messages, func(m Message) bool { return m.HasMedia() })
}

// HasMedia reports whether the message contains media.
func (m *Message) HasMedia() bool {
	return slices.ContainsFunc(m.Parts, func(p Part) bool { return p.Media != nil })
}

// MediaObjects returns the media objects of all messages, in order.
func (r *Request) MediaObjects() []*Media {
	var all []*Media
	for i := range r.Messages {
		for j := range r.Messages[i].Parts {
			if m := r.Messages[i].Parts[j].Media; m != nil {
				all = append(all, m)
			}
		}
	}
	return all
}

// RemoveMedia removes an object from the conversation: the request is then as if it had been sent without it. It is not
// for the Messages API, whose messages have parts only for media.
func (r *Request) RemoveMedia(m *Media) {
	for i := range r.Messages {
		of := &r.Messages[i]
		j := slices.IndexFunc(of.Parts, func(p Part) bool { return p.Media == m })
		if j < 0 {
			continue
		}
		of.Parts = slices.Delete(of.Parts, j, j+1)
		if len(of.Parts) == 0 {
			of.Parts = nil // as a content without parts
		}
	}
}

// MediaCount counts the media objects of a request. The zero value is ready to use.
type MediaCount struct{ n int }

// CountObject counts one object, the part being read. It refuses the object after MaxMedia.
func (c *MediaCount) CountObject(r *strictjson.Reader) error {
	if c.n++; c.n > MaxMedia {
		return r.InvalidError("is one media object too many: a request has at most %d", MaxMedia)
	}
	return nil
}

// ReadURL reads a URL, a string, into m.
func ReadURL(r *strictjson.Reader, m *Media) error {
	m.Param = r.ParamPath()
	if err := r.ReadStringInto(&m.URL); err != nil {
		return err
	}
	scheme, _, ok := strings.Cut(m.URL[:min(len(m.URL), 16)], ":")
	switch scheme = strings.ToLower(scheme); {
	case ok && scheme == "data":
		return nil
	case !ok || scheme != "http" && scheme != "https":
		return r.InvalidError("must be an http or https URL, or a data: URI")
	case len(m.URL) > MaxURL:
		return r.InvalidError("is a URL of %d bytes; at most %d are taken", len(m.URL), MaxURL)
	}
	return nil
}

// ReadMediaLocation reads the URL of an object: a string, or an object with members "url" and, optionally,
// "detail".
func ReadMediaLocation(r *strictjson.Reader, m *Media) error {
	if r.Kind() != strictjson.ObjectKind {
		if r.Kind() != strictjson.StringKind {
			return r.WrongTypeError("a URL or an object with a 'url'")
		}
		return ReadURL(r, m)
	}
	err := r.ReadMembers(func(key string) error {
		switch key {
		case "url":
			return ReadURL(r, m)
		case "detail":
			return ReadImageDetail(r)
		}
		return r.UnsupportedError()
	})
	if err == nil && m.URL == "" {
		return r.InvalidError("needs a 'url'")
	}
	return err
}

// ReadImageDetail reads the detail of an image. It has no effect, since the model's processor decides by the
// image's size.
func ReadImageDetail(r *strictjson.Reader) error {
	s, err := r.ReadString()
	if err != nil {
		return err
	}
	switch s {
	case "auto", "low", "high", "original":
		return nil
	}
	return r.InvalidError("must be one of auto, low, high and original")
}

// ReadAudio reads audio in base64: {"data","format"}.
func ReadAudio(r *strictjson.Reader, m *Media) error {
	if r.Kind() != strictjson.ObjectKind {
		return r.WrongTypeError("an object with 'data' and 'format'")
	}
	var data, format string
	err := r.ReadMembers(func(key string) error {
		switch key {
		case "data":
			m.Param = r.ParamPath()
			return r.ReadStringInto(&data)
		case "format":
			if err := r.ReadStringInto(&format); err != nil {
				return err
			}
			if !IsValidName(format, 32, "-+.") {
				return r.InvalidError("must be the name of a format, such as wav")
			}
			return nil
		}
		return r.UnsupportedError()
	})
	switch {
	case err != nil:
		return err
	case data == "":
		return r.InvalidError("needs 'data': the sound in base64")
	case format == "":
		return r.InvalidError("needs a 'format', such as wav")
	}
	m.URL = DataURI("audio/"+format, data)
	return nil
}

// ReadMediaName reads a client's own name of an object.
func ReadMediaName(r *strictjson.Reader, m *Media) error {
	if err := r.ReadStringInto(&m.Name); err != nil {
		return err
	}
	if m.Name == "" || len(m.Name) > MaxMediaName {
		return r.InvalidError("must have between 1 and %d bytes, not %d", MaxMediaName, len(m.Name))
	}
	return nil
}

// DataURI returns the data: URI of base64 data.
func DataURI(mime, base64 string) string { return "data:" + mime + ";base64," + base64 }
