package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// archiveSuffix is the end of the name of an archive.
const archiveSuffix = ".tar.gz"

// archiveFile is a file of an archive. path has slashes, and is relative to the archive's directory.
type archiveFile struct {
	path string
	mode fs.FileMode
	data []byte
}

// readTree reads the files below dir. None may be executed.
func readTree(dir string) (files []archiveFile, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, name)
		files = append(files, archiveFile{filepath.ToSlash(relative), 0o644, data})
		return err
	})
	return files, err
}

// writeArchive writes a tar archive, compressed with gzip, with all files below the directory name. Its bytes depend on
// names, modes and contents, the given time and the version of Go, and on nothing else: files are sorted, and belong to
// root.
func writeArchive(w io.Writer, name string, at time.Time, files []archiveFile) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression) // its header has no name and no time
	if err != nil {
		return err
	}
	out := tar.NewWriter(compressed)
	files = slices.SortedFunc(slices.Values(files), func(a, b archiveFile) int { return cmp.Compare(a.path, b.path) })
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(name, f.path), Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: at,
			Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), compressed.Close())
}
