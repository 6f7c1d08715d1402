package enginemock

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseFault parses a fault of a command line: KIND, and after commas count=N, skip=N, probability=P,
// after=TOKENS, min-tokens=N, status=N and for=DURATION, all optional.
func ParseFault(text string) (Fault, error) {
	kind, rest, _ := strings.Cut(text, ",")
	f := Fault{Kind: FaultKind(kind)}
	for _, item := range splitItems(rest) {
		key, value, _ := strings.Cut(item, "=")
		var err error
		switch key {
		case "count":
			f.Count, err = strconv.Atoi(value)
		case "skip":
			f.Skip, err = strconv.Atoi(value)
		case "probability":
			f.Probability, err = strconv.ParseFloat(value, 64)
		case "after":
			f.After, err = strconv.Atoi(value)
		case "min-tokens":
			f.MinTokens, err = strconv.Atoi(value)
		case "status":
			f.Status, err = strconv.Atoi(value)
		case "for":
			var d time.Duration
			d, err = time.ParseDuration(value)
			f.For = Wait(d)
		default:
			return f, fmt.Errorf("fault %.80q: %.40q is not one of count, skip, probability, after, min-tokens, status, for", text, key)
		}
		if err != nil {
			return f, fmt.Errorf("fault %.80q: %s: %.40q cannot be read", text, key, value)
		}
	}
	if err := f.Validate(); err != nil {
		return f, fmt.Errorf("fault %.80q: %w", text, err)
	}
	return f, nil
}

// splitItems splits the items between commas; none for "".
func splitItems(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// switches returns the switches by their command-line names.
func (f *Features) switches() map[string]*Switch {
	return map[string]*Switch{
		"tokens": &f.Tokens, "details": &f.Details, "metrics": &f.Metrics, "dev": &f.Dev, "cumulative": &f.Cumulative, "map-events": &f.MapEvents, "extra-keys": &f.ExtraKeys, "uuids": &f.UUIDs,
		"push": &f.Push, "binary-hashes": &f.BinaryHashes, "duplicates": &f.Duplicates, "offload": &f.Offload, "hybrid": &f.Hybrid,
		"jpeg-sequences": &f.Sequences, "frame-sampling": &f.Sampling, "round-up": &f.RoundUp,
		"kv-transfer": &f.KVTransfer, "fail-kv-loads": &f.FailKVLoads, "hide-received": &f.HideReceived,
	}
}

// Set parses one switch of a command line: NAME=on or NAME=off.
func (f *Features) Set(text string) error {
	name, value, _ := strings.Cut(text, "=")
	all := f.switches()
	to, ok := all[name]
	if !ok {
		return fmt.Errorf("feature %.40q is not one of %s", name, strings.Join(sortedKeys(all), ", "))
	}
	switch value {
	case "on":
		*to = On
	case "off":
		*to = Off
	default:
		return fmt.Errorf("feature %s: %.40q is neither on nor off", name, value)
	}
	return nil
}
