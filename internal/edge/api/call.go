package api

import "penstock/internal/strictjson"

// AppendCall appends a tool call in the form of chat requests and answers.
func AppendCall[S []byte | string](dst []byte, id, name string, arguments S) []byte {
	dst = append(dst, `{"id":`...)
	dst = strictjson.AppendString(dst, id)
	dst = append(dst, `,"type":"function","function":{"name":`...)
	dst = strictjson.AppendString(dst, name)
	dst = append(dst, `,"arguments":`...)
	dst = strictjson.AppendString(dst, arguments)
	return append(dst, `}}`...)
}

// AppendTool appends a function as an element of a chat request's tools. A nil description and nil parameters
// are left out.
func AppendTool(dst []byte, name string, description *string, parameters []byte) []byte {
	dst = append(dst, `{"type":"function","function":{"name":`...)
	dst = strictjson.AppendString(dst, name)
	if description != nil {
		dst = append(dst, `,"description":`...)
		dst = strictjson.AppendString(dst, *description)
	}
	if parameters != nil {
		dst = append(dst, `,"parameters":`...)
		dst = append(dst, parameters...)
	}
	return append(dst, `}}`...)
}
