package trace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/core/fault"
)

// rowError is an error of a row. The source adds the file's name.
type rowError struct {
	line  int
	cause error
}

func (e *rowError) Error() string { return "line " + strconv.Itoa(e.line) + ": " + e.cause.Error() }
func (e *rowError) Unwrap() error { return e.cause }

// errorAtLine adds the line to an error.
func errorAtLine(line int, err error) error {
	if _, ok := errors.AsType[*rowError](err); ok {
		return err
	}
	return &rowError{line: line, cause: err}
}

// clipName shortens a name from a file for a message.
func clipName(name string) string {
	const limit = 64
	if len(name) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "…"
	}
	return replaceUnprintable(name)
}

// replaceUnprintable replaces characters which could affect a terminal.
func replaceUnprintable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// jsonError rewords an error of strictjson, which was made for request bodies, for a file.
func jsonError(what string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); !ok {
		return err
	}
	message := err.Error()
	if rest, ok := strings.CutPrefix(message, "the request body "); ok {
		message = what + " " + rest
	}
	return errors.New(replaceUnprintable(message))
}

// describeValue describes the text of a value which should have been a number or a time: the text if it looks
// like one, otherwise its length only, as it may be part of a prompt.
func describeValue(text string) string {
	switch {
	case text == "":
		return "nothing"
	case len(text) <= 32 && strings.Trim(text, "0123456789+-.:eETZ ") == "":
		return text
	}
	return fmt.Sprintf("a text of %d characters", utf8.RuneCountInString(text))
}
