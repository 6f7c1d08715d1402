package fetch

import (
	"encoding/base64"
	"strings"

	"penstock/core/fault"
)

// ParsedData is the content of a data: URI.
type ParsedData struct {
	MIME  string // in lower case, without parameters; text/plain if the URI has none
	Bytes []byte
}

// maxHeader bounds the part of a data: URI before its data, in bytes.
const maxHeader = 1 << 10

// dataURI is a split data: URI.
type dataURI struct {
	mime   string
	base64 bool
	data   string
}

// errData returns the error for an invalid data: URI.
func errData(message string) error {
	return &fault.Error{Code: fault.Invalid, Message: "data: URI: " + message}
}

// splitDataURI splits a data: URI.
func splitDataURI(uri string) (dataURI, error) {
	const scheme = "data:"
	if len(uri) < len(scheme) || !strings.EqualFold(uri[:len(scheme)], scheme) {
		return dataURI{}, errData("it does not begin with data:")
	}
	rest := uri[len(scheme):]
	comma := strings.IndexByte(rest[:min(len(rest), maxHeader)], ',')
	if comma < 0 {
		return dataURI{}, errData("there is no comma before the data")
	}
	fields := strings.Split(strings.ToLower(rest[:comma]), ";")
	d := dataURI{mime: strings.TrimSpace(fields[0]), data: rest[comma+1:]}
	if d.mime == "" {
		d.mime = "text/plain"
	}
	d.base64 = len(fields) > 1 && strings.TrimSpace(fields[len(fields)-1]) == "base64"
	return d, nil
}

// ParseData decodes a data: URI. It rejects data of more than max bytes before it allocates
// anything.
func ParseData(uri string, max int64) (ParsedData, error) {
	d, err := splitDataURI(uri)
	if err != nil {
		return ParsedData{}, err
	}
	b, err := d.decodeData(max)
	return ParsedData{MIME: d.mime, Bytes: b}, err
}

// decodeData returns the data, of at most max bytes.
func (d dataURI) decodeData(max int64) ([]byte, error) {
	if !d.base64 {
		return d.unescapeData(max)
	}
	text := d.data
	if n := strings.Count(text, "\n") + strings.Count(text, "\r"); n > 0 {
		if int64(base64.RawStdEncoding.DecodedLen(len(text)-n)) > max+2 {
			return nil, errTooLong()
		}
		text = removeLineBreaks(text, len(text)-n)
	}
	text = strings.TrimRight(text, "=")
	if int64(base64.RawStdEncoding.DecodedLen(len(text))) > max {
		return nil, errTooLong()
	}
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, errData("it is not in base64")
	}
	return b, nil
}

// removeLineBreaks returns text without line breaks, which has n bytes.
func removeLineBreaks(text string, n int) string {
	var b strings.Builder
	b.Grow(n)
	for i := range len(text) {
		if c := text[i]; c != '\n' && c != '\r' {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// errTooLong returns the error for a data: URI above the limit.
func errTooLong() error {
	return errData("it has more bytes than this server takes: send a smaller file")
}

// unescapeData decodes data which is percent-encoded instead of base64.
func (d dataURI) unescapeData(most int64) ([]byte, error) {
	n := max(0, len(d.data)-2*strings.Count(d.data, "%"))
	if int64(n) > most {
		return nil, errTooLong()
	}
	b := make([]byte, 0, n)
	for i := 0; i < len(d.data); i++ {
		c := d.data[i]
		if c == '%' {
			high, low := -1, -1
			if i+2 < len(d.data) {
				high, low = hexDigit(d.data[i+1]), hexDigit(d.data[i+2])
			}
			if high < 0 || low < 0 {
				return nil, errData("an escape is no hexadecimal number")
			}
			c, i = byte(high<<4|low), i+2
		}
		b = append(b, c)
	}
	return b, nil
}

// hexDigit returns the value of a hexadecimal digit, -1 if c is none.
func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}
