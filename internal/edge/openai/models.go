package openai

import (
	"strconv"

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
	dst = append(dst, `{"id":`...)
	dst = strictjson.AppendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":"penstock","root":`...)
	dst = strictjson.AppendString(dst, m.Root)
	if m.Parent != "" {
		dst = append(dst, `,"parent":`...)
		dst = strictjson.AppendString(dst, m.Parent)
	}
	dst = append(dst, `,"max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(m.ContextLength), 10)
	return append(dst, '}')
}

// AppendModels appends the list of models as JSON.
func AppendModels(dst []byte, models []Model) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}
