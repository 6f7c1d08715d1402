package openai

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"

	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

// AppendLogprobs appends log-probabilities as JSON array elements, as in chat answers:
// {"token","logprob","bytes","top_logprobs"}, separated by commas.
func AppendLogprobs(dst []byte, lps []api.Logprob) []byte { return appendChatLogprobs(dst, lps) }

// appendChatLogprobs appends the elements of a chat choice's logprobs.content.
func appendChatLogprobs(dst []byte, lps []api.Logprob) []byte {
	for i := range lps {
		dst = strictjson.AppendComma(dst, i)
		dst = append(dst, '{')
		dst = appendToken(dst, lps[i].Token, lps[i].Logprob)
		dst = append(dst, `,"top_logprobs":[`...)
		for j, t := range lps[i].Top {
			dst = strictjson.AppendComma(dst, j)
			dst = append(dst, '{')
			dst = appendToken(dst, t.Token, t.Logprob)
			dst = append(dst, '}')
		}
		dst = append(dst, `]}`...)
	}
	return dst
}

func appendToken(dst, token []byte, logprob float32) []byte {
	dst = append(dst, `"token":`...)
	dst = appendTokenText(dst, token, "")
	dst = append(dst, `,"logprob":`...)
	dst = appendLogprob(dst, logprob)
	dst = append(dst, `,"bytes":[`...)
	for i, c := range token {
		dst = strictjson.AppendComma(dst, i)
		dst = strconv.AppendUint(dst, uint64(c), 10)
	}
	return append(dst, ']')
}

const hexDigits = "0123456789abcdef"

// appendTokenText appends a token as a JSON string. A token which is not valid UTF-8 is written as mark and
// the escapes \xNN of all its bytes, so that different tokens stay different.
func appendTokenText(dst, token []byte, mark string) []byte {
	if utf8.Valid(token) {
		return strictjson.AppendString(dst, token)
	}
	dst = append(dst, '"')
	dst = append(dst, mark...)
	for _, c := range token {
		dst = append(dst, '\\', '\\', 'x', hexDigits[c>>4], hexDigits[c&0xf])
	}
	return append(dst, '"')
}

// appendCompletionLogprobs appends a completions choice's logprobs: four parallel arrays.
func (f *answerOptions) appendCompletionLogprobs(dst []byte, lps []api.Logprob) []byte {
	dst = append(dst, `{"tokens":[`...)
	dst = appendTokenTexts(dst, lps)
	dst = append(dst, `],"token_logprobs":[`...)
	dst = appendTokenLogprobs(dst, lps)
	dst = append(dst, `],"top_logprobs":`...)
	if f.alternatives == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '[')
		dst = appendTopLogprobs(dst, lps)
		dst = append(dst, ']')
	}
	dst = append(dst, `,"text_offset":[`...)
	dst = appendOffsets(dst, lps)
	return append(dst, `]}`...)
}

func appendTokenTexts(dst []byte, lps []api.Logprob) []byte {
	for i := range lps {
		dst = strictjson.AppendComma(dst, i)
		dst = appendTokenText(dst, lps[i].Token, "bytes:")
	}
	return dst
}

func appendTokenLogprobs(dst []byte, lps []api.Logprob) []byte {
	for i := range lps {
		dst = strictjson.AppendComma(dst, i)
		dst = appendLogprob(dst, lps[i].Logprob)
	}
	return dst
}

// appendTopLogprobs appends for each token an object which maps the alternatives to their log-probabilities.
// It always includes the chosen token. Tokens of equal text share one key, with the highest probability.
func appendTopLogprobs(dst []byte, lps []api.Logprob) []byte {
	for i := range lps {
		dst = strictjson.AppendComma(dst, i)
		dst = append(dst, '{')
		n := 0
		chosen := false
		top := lps[i].Top
		for j, t := range top {
			if containsToken(top[:j], t.Token) {
				continue
			}
			dst = appendTopLogprob(dst, n, t.Token, t.Logprob)
			chosen = chosen || bytes.Equal(t.Token, lps[i].Token)
			n++
		}
		if !chosen {
			dst = appendTopLogprob(dst, n, lps[i].Token, lps[i].Logprob)
		}
		dst = append(dst, '}')
	}
	return dst
}

func containsToken(top []api.TokenLogprob, token []byte) bool {
	for _, t := range top {
		if bytes.Equal(t.Token, token) {
			return true
		}
	}
	return false
}

func appendTopLogprob(dst []byte, n int, token []byte, logprob float32) []byte {
	dst = strictjson.AppendComma(dst, n)
	dst = appendTokenText(dst, token, "bytes:")
	dst = append(dst, ':')
	return appendLogprob(dst, logprob)
}

func appendOffsets(dst []byte, lps []api.Logprob) []byte {
	for i := range lps {
		dst = strictjson.AppendComma(dst, i)
		dst = strconv.AppendInt(dst, int64(lps[i].Offset), 10)
	}
	return dst
}

// appendLogprob appends a log-probability. JSON has no infinity: like other servers, it writes -9999 for a
// probability of zero.
func appendLogprob(dst []byte, p float32) []byte {
	if p < -9999 || math.IsNaN(float64(p)) || math.IsInf(float64(p), 1) {
		return append(dst, "-9999"...)
	}
	return strconv.AppendFloat(dst, float64(p), 'g', -1, 32)
}
