package parse

import (
	"crypto/sha256"
	"strconv"
)

const alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// makeCallID returns the id of a call. It is a function of the seed and the index, so that a resumed stream
// repeats it. Mistral's templates accept only ids of nine letters and digits.
func (p *Parser) makeCallID(index int) string {
	sum := sha256.Sum256([]byte(p.seed + "/" + strconv.Itoa(index)))
	prefix, n := "call_", 24
	if p.shortIDs {
		prefix, n = "", 9
	}
	id := append(make([]byte, 0, 32), prefix...)
	for _, b := range sum[:n] {
		id = append(id, alphanumeric[int(b)%len(alphanumeric)])
	}
	return string(id)
}
