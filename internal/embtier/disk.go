package embtier

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
)

// disk is a directory of records: each in a file of its own, in one of 256 directories by the first byte of its key.
// A file is written under another name and renamed, so that a name has a whole record, or a torn one after a crash of
// the system. Its time of modification is that of its last use.
type disk struct {
	dir string
	// create opens a new file; tests replace it.
	create func(name string) (io.WriteCloser, error)
}

// partSuffix ends the names of files which are being written.
const partSuffix = ".part"

// entryName returns the name of an entry.
func entryName(key kv.Digest) string { return hex.EncodeToString(key[:]) }

// parseName reads the name of an entry.
func parseName(name string) (key kv.Digest, ok bool) {
	b, err := hex.DecodeString(name)
	return key, err == nil && len(name) == 2*len(key) && strings.ToLower(name) == name && copy(key[:], b) == len(key)
}

// openDisk opens a directory, which it makes if it is not there, and tells the index which entries are in it. It
// removes what an earlier process had not finished, and what exceeds the capacity. It leaves other files alone.
func openDisk(dir string, index *embcache.Tier) (*disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedding cache on disk: %w", err)
	}
	d := &disk{dir: dir, create: createFile}
	all, err := d.listEntries()
	if err != nil {
		return nil, fmt.Errorf("embedding cache on disk: %w", err)
	}
	slices.SortFunc(all, func(a, b diskEntry) int {
		return cmp.Or(a.used.Compare(b.used), slices.Compare(a.Key[:], b.Key[:]))
	})
	var evicted []embcache.TierEntry
	for _, e := range all {
		evicted = index.Observe(e.TierEntry, evicted)
	}
	for _, e := range evicted {
		if err := os.Remove(d.path(e.Key)); err != nil {
			return nil, fmt.Errorf("embedding cache on disk: %w", err)
		}
	}
	return d, nil
}

type diskEntry struct {
	embcache.TierEntry
	used time.Time
}

// listEntries lists the entries of the directory, and removes files which were not finished.
func (d *disk) listEntries() (all []diskEntry, err error) {
	for first := range 256 {
		sub := filepath.Join(d.dir, fmt.Sprintf("%02x", first))
		files, err := os.ReadDir(sub)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			base, part := strings.CutSuffix(f.Name(), partSuffix)
			key, ok := parseName(base)
			if !ok || int(key[0]) != first || !f.Type().IsRegular() {
				continue
			}
			if part {
				if err := os.Remove(filepath.Join(sub, f.Name())); err != nil {
					return nil, err
				}
				continue
			}
			st, err := f.Info()
			if err != nil {
				return nil, err
			}
			all = append(all, diskEntry{embcache.TierEntry{Key: key, Bytes: st.Size()}, st.ModTime()})
		}
	}
	return all, nil
}

func (d *disk) path(key kv.Digest) string {
	name := entryName(key)
	return filepath.Join(d.dir, name[:2], name)
}

// read reads a record, which must have its size.
func (d *disk) read(_ context.Context, key kv.Digest, size int64) ([]byte, error) {
	f, err := os.Open(d.path(key))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != size {
		return nil, cmp.Or(err, errDamaged)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err) // also what the medium cannot read any more
	}
	return data, nil
}

func createFile(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
}

// write writes a record. It does not wait for the medium: a record which a crash of the system tears is not read.
func (d *disk) write(_ context.Context, key kv.Digest, record []byte) (err error) {
	name := d.path(key)
	part := name + partSuffix
	f, err := d.create(part)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(filepath.Dir(name), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			f, err = d.create(part)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(record)
	if err = errors.Join(err, f.Close()); err == nil {
		now := time.Now()
		err = os.Chtimes(part, now, now)
	}
	if err == nil {
		err = os.Rename(part, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

func (d *disk) remove(_ context.Context, key kv.Digest) error { return os.Remove(d.path(key)) }

func (d *disk) touch(_ context.Context, key kv.Digest) error {
	return os.Chtimes(d.path(key), time.Time{}, time.Now())
}
