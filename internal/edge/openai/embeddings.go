package openai

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// maxInputs bounds the inputs of one request; OpenAI's bound is the same.
const maxInputs = 2048

// EmbeddingsRequest is a decoded request to POST /v1/embeddings.
type EmbeddingsRequest struct {
	Model  string
	Inputs []api.Prompt // at least one
	Format VectorFormat
}

// VectorFormat is the encoding of vectors in an answer.
type VectorFormat uint8

// The formats.
const (
	Floats VectorFormat = iota // an array of numbers
	Base64                     // standard base64 of 4 bytes per number, little-endian
)

// DecodeEmbeddings decodes the body of a request for embeddings. The result does not reference body. The
// error is a *fault.Error of code Invalid which names the field.
func DecodeEmbeddings(body []byte) (*EmbeddingsRequest, error) {
	d := &embeddingsDecoder{requestDecoder: requestDecoder{BodyDecoder: api.BodyDecoder{Req: &api.Request{Endpoint: api.Embeddings}}}}
	if err := embeddingsTable.DecodeBody(d, body); err != nil {
		return nil, err
	}
	if err := d.CheckModel(); err != nil {
		return nil, err
	}
	if len(d.Req.Prompts) == 0 {
		return nil, fault.InvalidParam("input", "'input' is required")
	}
	return &EmbeddingsRequest{Model: d.Req.Model, Inputs: d.Req.Prompts, Format: d.format}, nil
}

// embeddingsDecoder decodes one request for embeddings.
type embeddingsDecoder struct {
	requestDecoder
	format VectorFormat
}

var embeddingsTable = api.NewTable([]api.FieldRow[*embeddingsDecoder]{
	{Name: "model", Required: true, Value: api.Model},
	{Name: "input", Required: true, Schema: promptSchema, Read: func(d *embeddingsDecoder) error { return d.readPrompts(maxInputs) }},
	{Name: "encoding_format", Schema: api.EnumSchema("float", "base64"), Read: (*embeddingsDecoder).readVectorFormat},
	{Name: "user", Treatment: api.Accepted, Value: api.AnyString},
	{Name: "priority", Treatment: api.Accepted, Value: api.AnyInteger},
	{Name: "add_special_tokens", Treatment: api.Accepted, Value: api.OnlyTrue},
	{Name: "dimensions", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "truncate_prompt_tokens", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "input_type", Treatment: api.Refused, Value: api.OnlyNull},
	{Name: "task", Treatment: api.Refused, Value: api.OnlyNull},
})

// EmbeddingsFields lists the fields of POST /v1/embeddings.
func EmbeddingsFields() []api.Field { return embeddingsTable.Fields() }

func (d *embeddingsDecoder) readVectorFormat() error {
	s, err := d.ReadWord("float", "base64")
	if s == "base64" {
		d.format = Base64
	}
	return err
}

// EmbeddingsAnswer is the answer to a request for embeddings.
type EmbeddingsAnswer struct {
	Model   string // as in the request
	Vectors [][]float32
	Format  VectorFormat
	Tokens  int // of all inputs
}

// AppendEmbeddings appends a as JSON. All numbers must be finite.
func AppendEmbeddings(dst []byte, a *EmbeddingsAnswer) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, v := range a.Vectors {
		dst = strictjson.AppendComma(dst, i)
		dst = strictjson.AppendInt(dst, `{"object":"embedding","index":`, i)
		dst = append(dst, `,"embedding":`...)
		dst = a.Format.appendVector(dst, v)
		dst = append(dst, '}')
	}
	dst = strictjson.AppendMember(dst, `],"model":`, a.Model)
	dst = strictjson.AppendInt(dst, `,"usage":{"prompt_tokens":`, a.Tokens)
	dst = strictjson.AppendInt(dst, `,"total_tokens":`, a.Tokens)
	return append(dst, `}}`...)
}

// appendVector appends a vector. A number has the shortest form which parses to the same 32-bit float.
func (f VectorFormat) appendVector(dst []byte, v []float32) []byte {
	if f == Base64 {
		raw := make([]byte, 0, 4*len(v))
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, raw)
		return append(dst, '"')
	}
	dst = append(dst, '[')
	for i, x := range v {
		dst = strictjson.AppendComma(dst, i)
		dst = strconv.AppendFloat(dst, float64(x), 'g', -1, 32)
	}
	return append(dst, ']')
}

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
