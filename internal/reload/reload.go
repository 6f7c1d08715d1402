// Package reload follows files which change while the process runs: keys, certificates. If a file
// becomes unreadable or invalid, the previous content stays in use. It also replaces files so that
// readers find the old or the new content.
package reload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// PollInterval is the time between two reads of the files.
const PollInterval = 2 * time.Second

// maxFile bounds a file, in bytes.
const maxFile = 4 << 20

// Files is one or more files that are used together, such as a certificate and its key. Files are
// polled, not watched: reading a few kilobytes costs nothing, and it detects every kind of change,
// including swapped symbolic links.
type Files struct {
	what  string
	paths []string
	use   func(contents [][]byte) error

	usedSum     [sha256.Size]byte // checksum of the content that use last accepted or was opened with
	lastSum     [sha256.Size]byte // checksum of the last read
	lastProblem string            // the problem that was logged last
}

// Open reads the files and calls use with their contents, in the order of paths. what names them in
// errors and logs, for example "API keys"; neither contains file content, unless use's errors do.
// Run calls use again when the files have changed. If use returns an error, it must keep nothing of
// the new contents.
func Open(what string, use func(contents [][]byte) error, paths ...string) (*Files, error) {
	f := &Files{what: what, paths: paths, use: use}
	contents, sum, err := f.readFiles()
	if err == nil {
		err = use(contents)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f.usedSum, f.lastSum = sum, sum
	return f, nil
}

// Run polls the files until ctx ends, and then returns nil.
func (f *Files) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(PollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.pollFiles(log)
		case <-ctx.Done():
			return nil
		}
	}
}

// pollFiles calls use if the content is new and was the same in the previous poll: a file which is
// still being written is not used.
func (f *Files) pollFiles(log *slog.Logger) {
	contents, sum, err := f.readFiles()
	if err != nil {
		f.logProblem(log, err)
		return
	}
	settled := sum == f.lastSum
	f.lastSum = sum
	if !settled {
		return
	}
	if sum == f.usedSum {
		if f.lastProblem != "" {
			f.lastProblem = ""
			log.Info("file can be read again and has what is in use", "what", f.what)
		}
		return
	}
	if err := f.use(contents); err != nil {
		f.logProblem(log, err)
		return
	}
	f.usedSum, f.lastProblem = sum, ""
	log.Info("file was read anew", "what", f.what)
}

// logProblem logs a problem once until it changes.
func (f *Files) logProblem(log *slog.Logger, err error) {
	if text := err.Error(); text != f.lastProblem {
		f.lastProblem = text
		log.Error("file cannot be used, what was read before stays in force", "what", f.what, "error", err)
	}
}

func (f *Files) readFiles() (contents [][]byte, sum [sha256.Size]byte, err error) {
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
	// A device or a pipe may be endless, and opening it may block.
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

// ReplaceFile writes a file so that a crash leaves either the old contents or the new.
func ReplaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Certificate is a certificate chain with its private key, from PEM files. It follows changes of
// them while its Files run.
type Certificate struct {
	*Files
	pair atomic.Pointer[tls.Certificate]
}

// OpenCertificate reads a chain, which starts with the server's own certificate, and its key.
func OpenCertificate(certPath, keyPath string) (*Certificate, error) {
	c := &Certificate{}
	var err error
	c.Files, err = Open("TLS certificate", func(contents [][]byte) error { return c.storePair(contents[0], contents[1]) }, certPath, keyPath)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Certificate) storePair(cert, key []byte) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if late := pair.Leaf.NotAfter; time.Now().After(late) {
		return fmt.Errorf("the certificate ended at %s: get a new one", late.UTC().Format(time.RFC3339))
	}
	c.pair.Store(&pair)
	return nil
}

// Get returns the current pair, for [tls.Config.GetCertificate].
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil }
