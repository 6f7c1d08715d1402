package media

import (
	"fmt"
	"slices"

	"penstock/core/kv"
)

// TokenRun is a token repeated Count times.
type TokenRun struct {
	Token kv.Token
	Count int
}

// Layout holds the tokens which replace one placeholder in a prompt.
type Layout struct {
	// Runs are the tokens, in order.
	Runs []TokenRun
	// PadCount is how many of them stand for rows of the encoder's output.
	PadCount int
	// Grid is the number of patches in time, height and width, for engines which need positions (0 if the
	// family has none).
	Grid [3]int
	// Breaks holds the tokens of one line break, of two in a row and so on, if the layout starts and ends
	// with line breaks. Tokenizers encode adjacent line breaks as one token, so ExpandPrompt joins them
	// with the ones beside the layout. It is nil for other layouts.
	Breaks []kv.Token
}

// CountTokens returns the number of tokens in the layout.
func (l *Layout) CountTokens() int {
	n := 0
	for _, r := range l.Runs {
		n += r.Count
	}
	return n
}

// PromptObject is a media object to insert into a prompt.
type PromptObject struct {
	Placeholder kv.Token // the token in its place
	Key         Key
	Layout      Layout
}

// MaxExpanded bounds the tokens of a prompt after its media are expanded.
const MaxExpanded = 1 << 20

// MismatchError says that a prompt does not match the media sent with it: the number of its placeholders
// differs, or their order.
type MismatchError struct {
	Placeholders, Objects int
	// At is the index of the first placeholder which differs from its object's, if the numbers are equal.
	At int
}

// Error implements error.
func (e *MismatchError) Error() string {
	if e.Placeholders == e.Objects {
		return fmt.Sprintf("media: placeholder %d of the prompt is of another kind than its object", e.At)
	}
	return fmt.Sprintf("media: the prompt has %d placeholders for %d media objects", e.Placeholders, e.Objects)
}

// LengthError says that a prompt would be longer than Limit tokens.
type LengthError struct{ Limit int }

// Error implements error.
func (e *LengthError) Error() string {
	return fmt.Sprintf("media: the prompt would have more than %d tokens", e.Limit)
}

// ExpandPrompt appends to dst the prompt as the engine's cache sees it, with each placeholder replaced by
// its object's layout, and appends the range of each object to places. marks are the placeholder tokens,
// whether objects are sent or not. objects are in prompt order. It refuses a prompt of more than limit
// tokens (at most MaxExpanded) before it allocates anything of that length. After an error dst and places
// are unchanged.
func ExpandPrompt(dst []kv.Token, places []kv.Media, prompt, marks []kv.Token, objects []PromptObject, limit int) ([]kv.Token, []kv.Media, error) {
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
			if n := objects[found].Layout.CountTokens() - 1; n > limit-size {
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
	var breaks []kv.Token // of the layout which ends where dst ends
	for _, t := range prompt {
		if next == len(objects) || !slices.Contains(marks, t) {
			dst = appendJoined(dst, begin, breaks, t)
			breaks = nil
			continue
		}
		o := &objects[next]
		next++
		start := len(dst) - begin
		for i, r := range o.Layout.Runs {
			for range r.Count {
				if i == 0 && o.Layout.Breaks != nil {
					dst = appendJoined(dst, begin, o.Layout.Breaks, r.Token)
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

// appendJoined appends t to dst. It merges t with the last token if both are line breaks; tokens before
// begin are not part of the prompt. If the vocabulary has no token for that many, the longest one comes
// first.
func appendJoined(dst []kv.Token, begin int, breaks []kv.Token, t kv.Token) []kv.Token {
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
