package remote

import (
	"strconv"

	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// AppendFieldName appends a comma and the name of a field, which needs no escapes.
func AppendFieldName(b []byte, name string) []byte {
	return append(append(append(b, ',', '"'), name...), '"', ':')
}

// AppendFloatField appends a field with a number, see [strictjson.AppendFloat].
func AppendFloatField(b []byte, name string, v float64) []byte {
	return strictjson.AppendFloat(AppendFieldName(b, name), v)
}

// AppendIntField appends a field with an integer.
func AppendIntField(b []byte, name string, v int64) []byte {
	return strconv.AppendInt(AppendFieldName(b, name), v, 10)
}

// AppendBiasField appends the field logit_bias, an object with numbers by token ids.
func AppendBiasField(b []byte, bias []engine.TokenBias) []byte {
	b = append(AppendFieldName(b, "logit_bias"), '{')
	for i, t := range bias {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendUint(append(b, '"'), uint64(t.Token), 10), '"', ':')
		b = strictjson.AppendFloat(b, float64(t.Bias))
	}
	return append(b, '}')
}
