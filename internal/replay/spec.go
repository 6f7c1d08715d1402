package replay

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// flagSpec is a kind with parameters in the form of a flag: kind:key=value,key=value.
type flagSpec struct {
	kind   string
	values map[string]string
}

// parseFlagSpec parses s.
func parseFlagSpec(s string) (flagSpec, error) {
	kind, rest, _ := strings.Cut(s, ":")
	out := flagSpec{kind: strings.TrimSpace(kind), values: map[string]string{}}
	if rest == "" {
		return out, nil
	}
	for pair := range strings.SplitSeq(rest, ",") {
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" {
			return out, fmt.Errorf("%q is not key=value; write it like %s:key=value,key=value", pair, out.kind)
		}
		if _, twice := out.values[key]; twice {
			return out, fmt.Errorf("%s is given twice", key)
		}
		out.values[key] = strings.TrimSpace(value)
	}
	return out, nil
}

// parameter is a parameter of a kind, with its destination and check.
type parameter struct {
	name     string
	setValue func(value string) error
}

// applyParameters sets the parameters to the values of s. For an unknown key the error lists the known ones.
func (s *flagSpec) applyParameters(knobs []parameter) error {
	left := len(s.values)
	for _, k := range knobs {
		value, given := s.values[k.name]
		if !given {
			continue
		}
		left--
		if err := k.setValue(value); err != nil {
			return fmt.Errorf("%s: %s=%s: %w", s.kind, k.name, value, err)
		}
	}
	if left == 0 {
		return nil
	}
	var names, unknown []string
	for _, k := range knobs {
		names = append(names, k.name)
	}
	for key := range s.values {
		if !slices.Contains(names, key) {
			unknown = append(unknown, key)
		}
	}
	slices.Sort(unknown)
	if len(names) == 0 {
		return fmt.Errorf("%s has no parameters, so not %s", s.kind, strings.Join(unknown, ", "))
	}
	return fmt.Errorf("%s has no parameter %s; it has %s", s.kind, strings.Join(unknown, ", "), strings.Join(names, ", "))
}

// intParameter is an integer parameter from least to most.
func intParameter(name string, to *int, least, most int) parameter {
	return parameter{name, func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*to = n
		return nil
	}}
}

// floatParameter is a number parameter from least to most.
func floatParameter(name string, to *float64, least, most float64) parameter {
	return parameter{name, func(value string) error {
		x, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(x) || x < least || x > most {
			return fmt.Errorf("must be a number from %v to %v", least, most)
		}
		*to = x
		return nil
	}}
}

// durationParameter is a time of at most a day.
func durationParameter(name string, to *time.Duration) parameter {
	return parameter{name, func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > 24*time.Hour {
			return fmt.Errorf("must be a time from 0s to 24h, such as 1.5s")
		}
		*to = d
		return nil
	}}
}

// choiceParameter is one of several words.
func choiceParameter[T ~string](name string, to *T, words ...T) parameter {
	return parameter{name, func(value string) error {
		if !slices.Contains(words, T(value)) {
			return fmt.Errorf("must be one of %s", joinWords(words))
		}
		*to = T(value)
		return nil
	}}
}

// joinWords joins words for a message.
func joinWords[T ~string](words []T) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return strings.Join(out, ", ")
}
