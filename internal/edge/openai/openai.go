// Package openai is the wire form of the OpenAI API: strict decoding of chat,
// completion and embedding requests, and the bytes of answers, streams and errors.
//
// Decoding knows every field that OpenAI and the servers in the field define.
// A field is understood, or accepted because ignoring it cannot change the
// answer, or refused by name; nothing is dropped in silence.
package openai
