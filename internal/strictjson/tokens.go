package strictjson

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"

	"penstock/core/kv"
)

// AppendTokens appends token ids to dst as one JSON array.
func AppendTokens(dst []byte, lists ...[]kv.Token) []byte {
	dst = append(dst, '[')
	empty := len(dst)
	for _, list := range lists {
		dst = slices.Grow(dst, len(list)*(maxDigits+1))
		at, room := len(dst), dst[:cap(dst)]
		for _, t := range list {
			at += putToken(room[at:at+maxDigits+1], t)
		}
		dst = dst[:at]
	}
	if len(dst) > empty { // the last comma
		dst = dst[:len(dst)-1]
	}
	return append(dst, ']')
}

// maxDigits is the largest number of digits of a token id.
const maxDigits = 10

// digitPairs holds the numbers below 100 with two digits each.
const digitPairs = "0001020304050607080910111213141516171819" +
	"2021222324252627282930313233343536373839" +
	"4041424344454647484950515253545556575859" +
	"6061626364656667686970717273747576777879" +
	"8081828384858687888990919293949596979899"

// putToken writes an id and a comma to b, and returns their length in bytes. A prompt has tens of thousands
// of ids, in an order that a processor cannot predict: no branch depends on an id below 1,000,000.
func putToken(b []byte, t kv.Token) int {
	if t >= 1_000_000 {
		return len(append(strconv.AppendUint(b[:0], uint64(t), 10), ','))
	}
	most := bits.Len32(uint32(t)|1) * 1233 >> 12 // its number of digits, or one less
	n := most + 1 - int((t-powersOfTen[most&7])>>31)
	six := twoDigits(t/10_000) | twoDigits(t/100%100)<<16 | twoDigits(t%100)<<32 | ','<<48
	binary.LittleEndian.PutUint64(b, six>>(8*(6-n)))
	return n + 1
}

// powersOfTen starts with 0 for the id 0, which has one digit too.
var powersOfTen = [8]kv.Token{0, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000}

// twoDigits returns the two digits of a number below 100.
func twoDigits(n kv.Token) uint64 { return uint64(digitPairs[2*n]) | uint64(digitPairs[2*n+1])<<8 }
