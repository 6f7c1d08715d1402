// Package trace reads workloads from files: published traces of real services in their own formats, and a
// superset of the most common one for one's own traffic. docs/format/trace.md describes the formats field by
// field.
//
// Files are streamed, again for every run, in memory which does not grow with them. A file which violates its
// format is refused with the line and the field: a replay of half-understood rows would measure the wrong
// thing unnoticed. Messages name fields and numbers and never repeat prompt text.
package trace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/internal/replay"
)

// Format names the format of a file.
type Format string

// The formats.
const (
	// Mooncake is a JSON object on each line: the rows of the Mooncake traces, with additional fields for
	// everything a request can have.
	Mooncake Format = "mooncake"
	// Bailian is a JSON object on each line, with chats which follow one another.
	Bailian Format = "bailian"
	// Azure is a CSV file with TIMESTAMP, ContextTokens, GeneratedTokens and perhaps
	// NumImages.
	Azure Format = "azure"
	// BurstGPT is a CSV file with Timestamp, Request tokens, Response tokens and more.
	BurstGPT Format = "burstgpt"
	// ShareGPT is one JSON array of conversations, with their text.
	ShareGPT Format = "sharegpt"
)

// Formats returns all formats, in the order in which they are tried.
func Formats() []Format { return []Format{Mooncake, Bailian, ShareGPT, Azure, BurstGPT} }

const (
	maxLine      = 16 << 20 // bytes of a row or of a conversation
	maxTokens    = 16 << 20 // of a prompt or a response: far beyond any model's context
	maxBlockSize = 1 << 20  // tokens
	maxName      = 1 << 10  // bytes of an id
	maxMedia     = 1 << 10  // objects of one request

	mooncakeBlock = 512 // tokens
	bailianBlock  = 16

	defaultSortBytes  = 256 << 20
	defaultSpoolBytes = 4 << 30
)

// Options says how to read a file. The zero value detects the format.
type Options struct {
	// Format is the file's format; "" is detected from its start.
	Format Format
	// IgnoreUnknown skips unknown fields and columns. Without it they are refused: the request may depend on
	// them.
	IgnoreUnknown bool
	// BlockSize is the tokens of a block in rows with hash_ids and without a block size; 0 is the format's
	// own.
	BlockSize int

	// Sort sorts requests by time. Without it a file whose times go back is refused. It buffers up to
	// SortBytes of requests (0 is 256 MiB) and returns the earliest, so it sorts any file of that size, and
	// larger ones whose rows are not displaced by more than that.
	Sort      bool
	SortBytes int

	// Stdin is read for the path "-". Input which can be read only once is copied to a temporary file of at
	// most SpoolBytes (0 is 4 GiB).
	Stdin      io.Reader
	SpoolBytes int64
}

// validate reports invalid options and sets defaults.
func (o *Options) validate() error {
	if o.Format != "" && !slices.Contains(Formats(), o.Format) {
		var names []string
		for _, f := range Formats() {
			names = append(names, string(f))
		}
		return fmt.Errorf("there is no trace format %q; there are %s", clipName(string(o.Format)), strings.Join(names, ", "))
	}
	if o.BlockSize < 0 || o.BlockSize > maxBlockSize {
		return fmt.Errorf("a block size of %d tokens: must be between 1 and %d", o.BlockSize, maxBlockSize)
	}
	if o.SortBytes <= 0 {
		o.SortBytes = defaultSortBytes
	}
	if o.SpoolBytes <= 0 {
		o.SpoolBytes = defaultSpoolBytes
	}
	return nil
}

// Workload is a file of requests, a [replay.Workload].
type Workload struct {
	name   string // for messages
	path   string
	stat   fs.FileInfo
	spool  spool // a copy of input which can be read only once; nil if the path can be opened again
	format Format
	opts   Options
}

// spool is a copy which can be read repeatedly.
type spool interface {
	io.ReaderAt
	io.Closer
}

var _ replay.Workload = (*Workload)(nil)

// Open prepares the file at path, or Options.Stdin if path is "-", and detects its format. The content may be
// compressed by gzip. A file which is not regular, such as a pipe, is copied, as it can be read only once.
// The caller closes the workload.
func Open(path string, opts Options) (*Workload, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	w := &Workload{name: path, path: path, opts: opts}
	if err := w.openOrSpool(); err != nil {
		return nil, fmt.Errorf("read trace %s: %w", w.name, err)
	}
	if err := w.detectFormat(); err != nil {
		_ = w.Close() // what was read of it is of no use
		return nil, fmt.Errorf("read trace %s: %w", w.name, err)
	}
	return w, nil
}

// Format returns the format by which the file is read.
func (w *Workload) Format() Format { return w.format }

// Open starts to read the requests from the first.
func (w *Workload) Open() (replay.Source, error) {
	file, err := w.openText()
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", w.name, err)
	}
	return newTraceSource(w, file), nil
}

// Close releases the copy of a file which can be read only once. Open sources then fail.
func (w *Workload) Close() error {
	if w.spool == nil {
		return nil
	}
	spool := w.spool
	w.spool = nil
	return spool.Close()
}

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
