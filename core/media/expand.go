package media

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Run is a token, so many times.
type Run struct {
	Token kv.Token
	Count int
}

// Layout is what stands in a prompt in place of one placeholder.
type Layout struct {
	// Runs are the tokens, in order.
	Runs []Run
	// Pads are how many of them hold rows of the encoder's output.
	Pads int
	// Grid is how many patches there are in time, height and width, for engines that place
	// them (0 where the family has none).
	Grid [3]int
	// Breaks are the tokens of one line break, of two in a row and so on, if the layout begins
	// and ends with line breaks: tokenizers write those that meet as one token, so that Expand
	// joins them with the ones beside the layout. Nil of other layouts.
	Breaks []kv.Token
}

// Tokens returns how many tokens the layout has.
func (l *Layout) Tokens() int {
	n := 0
	for _, r := range l.Runs {
		n += r.Count
	}
	return n
}

// Placed is a media object that is to be put into a prompt.
type Placed struct {
	Placeholder kv.Token // the token that holds its place
	Key         Key
	Layout      Layout
}

// MaxExpanded bounds the tokens of a prompt whose media were expanded.
const MaxExpanded = 1 << 20

// MismatchError says that a prompt does not show the media that it was given:
// the number of its placeholders differs, or their order.
type MismatchError struct {
	Placeholders, Objects int
	// At is the index of the first placeholder that is another one than its object's, if the
	// numbers are equal.
	At int
}

// Error implements error.
func (e *MismatchError) Error() string {
	if e.Placeholders == e.Objects {
		return fmt.Sprintf("media: placeholder %d of the prompt is of another kind than its object", e.At)
	}
	return fmt.Sprintf("media: the prompt has %d placeholders for %d media objects", e.Placeholders, e.Objects)
}

// LengthError says that a prompt would be longer than limit tokens.
type LengthError struct{ Limit int }

// Error implements error.
func (e *LengthError) Error() string {
	return fmt.Sprintf("media: the prompt would have more than %d tokens", e.Limit)
}

// Expand appends to dst a prompt as the engine's cache sees it, each placeholder
// replaced by its object's layout, and to places where each object stands. marks are
// the tokens that are placeholders, whether an object is shown or not; objects are in
// the order of the prompt. A prompt of more than limit tokens (at most MaxExpanded) is
// refused before anything of that length is allocated. After an error dst and places are
// as they were.
func Expand(dst []kv.Token, places []kv.Media, prompt, marks []kv.Token, objects []Placed, limit int) ([]kv.Token, []kv.Media, error) {
	limit = min(limit, MaxExpanded)
	found, wrong, size := 0, -1, len(prompt)
	for _, t := range prompt {
		if !slices.Contains(marks, t) {
			continue
		}
		if found < len(objects) {
			if objects[found].Placeholder != t && wrong < 0 {
				wrong = found
			}
			if n := objects[found].Layout.Tokens() - 1; n > limit-size {
				return dst, places, &LengthError{Limit: limit}
			} else {
				size += n
			}
		}
		found++
	}
	switch {
	case found != len(objects):
		return dst, places, &MismatchError{Placeholders: found, Objects: len(objects)}
	case wrong >= 0:
		return dst, places, &MismatchError{Placeholders: found, Objects: found, At: wrong}
	case size > limit:
		return dst, places, &LengthError{Limit: limit}
	}
	begin := len(dst)
	dst = slices.Grow(dst, size)
	next := 0
	var breaks []kv.Token // of the layout that ends where dst does
	for _, t := range prompt {
		if next == len(objects) || !slices.Contains(marks, t) {
			dst = join(dst, begin, breaks, t)
			breaks = nil
			continue
		}
		o := &objects[next]
		next++
		start := len(dst) - begin
		for i, r := range o.Layout.Runs {
			for range r.Count {
				if i == 0 && o.Layout.Breaks != nil {
					dst = join(dst, begin, o.Layout.Breaks, r.Token)
					continue
				}
				dst = append(dst, r.Token)
			}
			if i == 0 {
				start = min(start, len(dst)-begin-1)
			}
		}
		breaks = o.Layout.Breaks
		places = append(places, kv.Media{Hash: o.Key.Hash, Start: start, End: len(dst) - begin, Digest: o.Key.Digest})
	}
	return dst, places, nil
}

// join appends t to dst, as one token with the last if both are line breaks; before
// begin is nothing of the prompt. A vocabulary that has no token of so many has the
// longest one first.
func join(dst []kv.Token, begin int, breaks []kv.Token, t kv.Token) []kv.Token {
	j := slices.Index(breaks, t)
	if j < 0 || len(dst) == begin {
		return append(dst, t)
	}
	last := &dst[len(dst)-1]
	i := slices.Index(breaks, *last)
	if i < 0 {
		return append(dst, t)
	}
	n := i + j + 2
	if n <= len(breaks) {
		*last = breaks[n-1]
		return dst
	}
	*last = breaks[len(breaks)-1]
	return append(dst, breaks[n-len(breaks)-1])
}
