package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ByteSize is a number of bytes which is written like 16GB, 512MiB or 1000.
type ByteSize int64

// byteUnits are the units, the largest first.
var byteUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}}

// ParseByteSize parses a size: a number, and perhaps a unit.
func ParseByteSize(text string) (ByteSize, error) {
	number, unit := strings.TrimSpace(text), int64(1)
	for _, u := range byteUnits {
		if n := len(number) - len(u.name); n > 0 && strings.EqualFold(number[n:], u.name) {
			number, unit = strings.TrimSpace(number[:n]), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if bytes := v * float64(unit); err == nil && bytes >= 0 && bytes < math.MaxInt64 {
		return ByteSize(bytes), nil
	}
	return 0, fmt.Errorf("%.100q is not a size in bytes, for example 16GB or 512MiB", text)
}

// String returns the size with the largest unit that divides it.
func (s ByteSize) String() string {
	for _, u := range byteUnits {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// UnmarshalYAML reads a size.
func (s *ByteSize) UnmarshalYAML(n *yaml.Node) (err error) {
	*s, err = ParseByteSize(n.Value)
	return err
}

// Set implements pflag.Value.
func (s *ByteSize) Set(text string) (err error) {
	*s, err = ParseByteSize(text)
	return err
}

// Type implements pflag.Value.
func (*ByteSize) Type() string { return "size" }
