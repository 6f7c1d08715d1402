// Package openai implements the wire format of the OpenAI API: strict decoding of chat, completion and
// embedding requests, and encoding of answers, streams and errors.
//
// The decoder knows every field of OpenAI and of other servers of that API. It implements a field, or accepts
// it because ignoring it cannot change the answer, or refuses it by name. It drops nothing silently.
package openai
