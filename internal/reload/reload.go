// Package reload follows files that change while the process runs: keys,
// certificates. What cannot be read or used leaves in force what was.
package reload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// Every is how often files are looked at.
const Every = 2 * time.Second

// maxFile bounds a file, in bytes.
const maxFile = 4 << 20

// Files are one or more files that are of use together, such as a certificate and
// its key. Files are read, not watched: a look at a few kilobytes costs nothing, and
// it sees a change whatever it was made by, links that are swapped included.
type Files struct {
	what  string
	paths []string
	use   func(contents [][]byte) error

	inUse   [sha256.Size]byte // of what use was last called with
	seen    [sha256.Size]byte // by the last look
	trouble string            // that was last logged
}

// Open reads the files and calls use with their contents, in the order of paths.
// what names them in errors and in the log, as "API keys"; neither has what a file
// holds, unless use's errors do. use keeps nothing that it refuses, and is called
// again, by Run, when the files have changed.
func Open(what string, use func(contents [][]byte) error, paths ...string) (*Files, error) {
	f := &Files{what: what, paths: paths, use: use}
	contents, sum, err := f.read()
	if err == nil {
		err = use(contents)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f.inUse, f.seen = sum, sum
	return f, nil
}

// Run looks at the files until ctx ends, and returns nil then.
func (f *Files) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.look(log)
		case <-ctx.Done():
			return nil
		}
	}
}

// look uses what the files hold if that is new, and was there at the last look
// already: a file that is being written is left alone.
func (f *Files) look(log *slog.Logger) {
	contents, sum, err := f.read()
	if err != nil {
		f.complain(log, err)
		return
	}
	settled := sum == f.seen
	f.seen = sum
	if !settled {
		return
	}
	if sum == f.inUse {
		if f.trouble != "" {
			f.trouble = ""
			log.Info("file can be read again and has what is in use", "what", f.what)
		}
		return
	}
	if err := f.use(contents); err != nil {
		f.complain(log, err)
		return
	}
	f.inUse, f.trouble = sum, ""
	log.Info("file was read anew", "what", f.what)
}

// complain logs a trouble once, as long as it is the same.
func (f *Files) complain(log *slog.Logger, err error) {
	if text := err.Error(); text != f.trouble {
		f.trouble = text
		log.Error("file cannot be used, what was read before stays in force", "what", f.what, "error", err)
	}
}

func (f *Files) read() (contents [][]byte, sum [sha256.Size]byte, err error) {
	all := sha256.New()
	for _, path := range f.paths {
		data, err := readFile(path)
		if err != nil {
			return nil, sum, err
		}
		contents = append(contents, data)
		one := sha256.Sum256(data)
		all.Write(one[:])
	}
	all.Sum(sum[:0])
	return contents, sum, nil
}

func readFile(path string) ([]byte, error) {
	// A device or a pipe may have no end, and opening it may wait for ever.
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}
