package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"penstock/internal/replay"
	"penstock/internal/replay/report"
)

// outputFlags says in which forms a result is written.
type outputFlags struct {
	json      bool
	csv, html string
}

// addFlags defines the flags.
func (o *outputFlags) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.json, "json", false, "print JSON in place of the table")
	fs.StringVar(&o.csv, "csv", "", "write the rows to this file too, as CSV")
	fs.StringVar(&o.html, "report", "", "write a page with plots to this file too, as HTML")
}

// resultFile is a file which gets its name only when it is complete. A target which is not a regular file (a
// device, a pipe) is written directly: it must not be replaced.
type resultFile struct {
	temporary *os.File
	path      string
	target    string // path with symbolic links resolved, so that they stay; "" if it is written directly
	write     func(io.Writer, *replay.Result) error
}

// resultFiles are the files of a result. They are created before the run, so that hours of work are not lost
// to a missing directory.
type resultFiles struct {
	json  bool
	files []resultFile
}

// createFiles creates the files. They must differ from each other and from all of inputs.
func (o *outputFlags) createFiles(inputs ...string) (*resultFiles, error) {
	out := &resultFiles{json: o.json}
	for _, f := range []resultFile{{path: o.csv, write: report.WriteCSV}, {path: o.html, write: report.WriteHTML}} {
		if f.path == "" {
			continue
		}
		var err error
		if err = f.openTarget(inputs); err != nil {
			out.discardUnfinished()
			var at *os.PathError
			if errors.As(err, &at) { // name the directory, not the temporary file
				err = fmt.Errorf("%s: %w", filepath.Dir(f.path), at.Err)
			}
			return nil, fmt.Errorf("write %s: %w", f.path, err)
		}
		out.files = append(out.files, f)
		inputs = append(inputs, f.target)
	}
	return out, nil
}

// openTarget opens the file to write to. Its target must be none of the taken files.
func (f *resultFile) openTarget(taken []string) (err error) {
	f.target = f.path
	if real, err := filepath.EvalSymlinks(f.path); err == nil {
		f.target = real
	}
	info, err := os.Stat(f.target)
	exists := err == nil
	if exists && info.IsDir() {
		return errors.New("it is a directory")
	}
	if exists && !info.Mode().IsRegular() {
		path := f.target
		f.target = ""
		f.temporary, err = os.OpenFile(path, os.O_WRONLY, 0)
		return err
	}
	for _, name := range taken {
		other, err := os.Stat(name)
		if name != "" && (filepath.Clean(name) == filepath.Clean(f.target) || exists && err == nil && os.SameFile(info, other)) {
			return errors.New("the command has another file of that name: it would be lost")
		}
	}
	f.temporary, err = os.CreateTemp(filepath.Dir(f.target), "."+filepath.Base(f.target)+".*")
	return err
}

// writeResult writes the result to the files, and as JSON or a table to out.
func (r *resultFiles) writeResult(out io.Writer, result *replay.Result) error {
	for i := range r.files {
		if err := r.files[i].commitResult(result); err != nil {
			return fmt.Errorf("write %s: %w", r.files[i].path, err)
		}
	}
	if r.json {
		return report.WriteJSON(out, result)
	}
	return report.WriteTable(out, result)
}

// commitResult writes the file and renames it to its target.
func (f *resultFile) commitResult(result *replay.Result) error {
	temporary := f.temporary
	f.temporary = nil
	err := f.write(temporary, result)
	if f.target == "" {
		return errors.Join(err, temporary.Close())
	}
	err = errors.Join(err, temporary.Chmod(0o644), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), f.target)
	}
	if err != nil {
		_ = os.Remove(temporary.Name()) // the first error is returned
	}
	return err
}

// discardUnfinished removes the files which were not committed.
func (r *resultFiles) discardUnfinished() {
	for i := range r.files {
		if f := r.files[i].temporary; f != nil {
			_ = f.Close() // nothing was written to it
			if r.files[i].target != "" {
				_ = os.Remove(f.Name())
			}
		}
	}
}
