package openai

import (
	"penstock/internal/strictjson"
)

// Model is one served model as GET /v1/models lists it.
type Model struct {
	ID            string
	Root          string // the model which ID names
	Parent        string // the model which it adapts; "" if it is not an adapter
	Created       int64  // seconds since 1970
	ContextLength int    // tokens
}

// AppendModel appends m as JSON.
func AppendModel(dst []byte, m Model) []byte {
	dst = strictjson.AppendMember(dst, `{"id":`, m.ID)
	dst = strictjson.AppendInt(dst, `,"object":"model","created":`, int(m.Created))
	dst = strictjson.AppendMember(dst, `,"owned_by":"penstock","root":`, m.Root)
	if m.Parent != "" {
		dst = strictjson.AppendMember(dst, `,"parent":`, m.Parent)
	}
	dst = strictjson.AppendInt(dst, `,"max_model_len":`, m.ContextLength)
	return append(dst, '}')
}

// AppendModels appends the list of models as JSON.
func AppendModels(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		dst = strictjson.AppendComma(dst, i)
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}
