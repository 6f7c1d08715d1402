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

// rowError is what is wrong with a row. The source puts the file's name before it.
type rowError struct {
	line  int
	cause error
}

func (e *rowError) Error() string { return "line " + strconv.Itoa(e.line) + ": " + e.cause.Error() }
func (e *rowError) Unwrap() error { return e.cause }

// fail says on which line the fault is.
func fail(line int, err error) error {
	if _, ok := errors.AsType[*rowError](err); ok {
		return err
	}
	return &rowError{line: line, cause: err}
}

// clip makes a name from a file fit for a message.
func clip(name string) string {
	const limit = 64
	if len(name) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "…"
	}
	return printable(name)
}

// printable replaces what could do something to a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// jsonError puts an error of strictjson, which was made for the bodies of
// requests, in the words of a file.
func jsonError(what string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); !ok {
		return err
	}
	message := err.Error()
	if rest, ok := strings.CutPrefix(message, "the request body "); ok {
		message = what + " " + rest
	}
	return errors.New(printable(message))
}

// found describes the text of a value that should have been a number or a time: what
// it is if it looks like one, or how long it is, as it may be part of a prompt.
func found(text string) string {
	switch {
	case text == "":
		return "nothing"
	case len(text) <= 32 && strings.Trim(text, "0123456789+-.:eETZ ") == "":
		return text
	}
	return fmt.Sprintf("a text of %d characters", utf8.RuneCountInString(text))
}
