package openai

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

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
	r, err := strictjson.NewReader(body)
	if err != nil {
		return nil, err
	}
	q := &EmbeddingsRequest{}
	d := &requestDecoder{Reader: r, req: &api.Request{Endpoint: api.Embeddings}}
	err = r.ReadObject(func(key string) error {
		if none, err := d.ReadNull(); none || err != nil {
			return err
		}
		return d.readEmbeddingsField(key, q)
	})
	if err == nil {
		err = r.CheckEnd()
	}
	if err == nil {
		err = d.unknown.Err()
	}
	switch {
	case err != nil:
		return nil, err
	case strings.TrimSpace(q.Model) == "":
		return nil, fault.InvalidParam("model", "'model' is required and must not be blank: name one of GET /v1/models")
	case len(d.req.Prompts) == 0:
		return nil, fault.InvalidParam("input", "'input' is required")
	}
	q.Inputs = d.req.Prompts
	return q, nil
}

// readEmbeddingsField reads the value of one top-level key.
func (d *requestDecoder) readEmbeddingsField(key string, q *EmbeddingsRequest) error {
	switch key {
	case "model":
		return d.ReadStringInto(&q.Model)
	case "input":
		return d.readPrompts(maxInputs)
	case "encoding_format":
		return d.readVectorFormat(&q.Format)
	case "dimensions", "truncate_prompt_tokens", "input_type", "task":
		return d.refuseUnsupported()
	case "user":
		_, err := d.ReadString()
		return err
	case "priority":
		_, err := d.ReadInt()
		return err
	case "add_special_tokens":
		return d.requireBool(true)
	}
	d.unknown.Add(key)
	return d.SkipValue()
}

func (d *requestDecoder) readVectorFormat(dst *VectorFormat) error {
	s, err := d.ReadString()
	switch {
	case err != nil:
		return err
	case s == "float":
		*dst = Floats
		return nil
	case s == "base64":
		*dst = Base64
		return nil
	}
	return d.InvalidError("must be float or base64")
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
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"embedding":`...)
		dst = a.Format.appendVector(dst, v)
		dst = append(dst, '}')
	}
	dst = append(dst, `],"model":`...)
	dst = strictjson.AppendString(dst, a.Model)
	dst = append(dst, `,"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.Tokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.Tokens), 10)
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
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(x), 'g', -1, 32)
	}
	return append(dst, ']')
}
