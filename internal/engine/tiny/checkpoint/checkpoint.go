// Package checkpoint reads published model checkpoints: weights in the safetensors format, in one file or
// several with an index, with config.json and generation_config.json.
//
// Checkpoints are untrusted input: each length is checked against the size of its file before memory is
// allocated for it, the tensors of a file must cover its data exactly, keys must not occur twice, and the
// index cannot name files outside the directory. The meaning of a configuration's fields for the computation
// is decided elsewhere.
package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
)

// Tensor is a tensor in memory: Data in row-major order, with as many elements as the product of Shape. A
// scalar has no dimensions.
type Tensor struct {
	Shape []int
	Data  []float32
}

// Checkpoint is an open set of weights. Its methods may be called concurrently,
// except Close.
type Checkpoint struct {
	files   []*shardFile
	names   []string
	tensors map[string]tensorLocation
}

type tensorLocation struct {
	file  *shardFile
	entry *tensorEntry
}

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	// maxIndex is some ten times the index of the largest models published.
	maxIndex = 64 << 20
)

// Open opens the weights in dir and reads their headers, but no tensor. With an index the tensors are the
// ones it names, otherwise the ones in model.safetensors. The caller must Close the checkpoint.
func Open(dir string) (*Checkpoint, error) {
	c := &Checkpoint{tensors: make(map[string]tensorLocation)}
	err := c.openSharded(dir)
	if errors.Is(err, errNoIndex) {
		err = c.openSingle(dir)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.names = sortedKeys(c.tensors)
	return c, nil
}

var errNoIndex = errors.New("no index")

func (c *Checkpoint) openSingle(dir string) error {
	f, err := c.openShard(dir, singleFile)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint %s: neither %s nor %s is there; only safetensors weights are read, convert others", dir, singleFile, indexFile)
	}
	if err != nil {
		return err
	}
	for i := range f.entries {
		c.tensors[f.entries[i].name] = tensorLocation{f, &f.entries[i]}
	}
	return nil
}

func (c *Checkpoint) openSharded(dir string) error {
	data, err := readSmall(dir, indexFile, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoIndex
	}
	if err != nil {
		return err
	}
	weights, err := decodeIndex(data)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", indexFile, err)
	}
	for _, shard := range slices.Compact(slices.Sorted(maps.Values(weights))) {
		f, err := c.openShard(dir, shard)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("checkpoint %s: names %s, which is missing; fetch it", indexFile, shard)
		}
		if err != nil {
			return err
		}
		for i := range f.entries {
			if e := &f.entries[i]; weights[e.name] == shard {
				c.tensors[e.name] = tensorLocation{f, e}
			}
		}
	}
	for _, name := range sortedKeys(weights) {
		if _, ok := c.tensors[name]; !ok {
			return fmt.Errorf("checkpoint %s: tensor %.100q is not in %s as the index says; fetch both again", indexFile, name, weights[name])
		}
	}
	return nil
}

func (c *Checkpoint) openShard(dir, name string) (*shardFile, error) {
	f, err := openFile(filepath.Join(dir, name), name)
	if err != nil {
		return nil, err
	}
	c.files = append(c.files, f)
	return f, nil
}

// Names returns the names of all tensors, sorted. The slice is the checkpoint's.
func (c *Checkpoint) Names() []string { return c.names }

// Tensor reads one tensor. Each call returns new memory.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	at, ok := c.tensors[name]
	if !ok {
		return Tensor{}, fmt.Errorf("checkpoint: tensor %.100q is missing", name)
	}
	t, err := at.file.readTensor(at.entry)
	if err != nil {
		return Tensor{}, fmt.Errorf("checkpoint %s: tensor %.100q: %w", at.file.name, name, err)
	}
	return t, nil
}

// Close closes the files. Closing twice is allowed.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.handle.Close())
	}
	c.files = nil
	return errors.Join(errs...)
}

// readSmall reads a whole file of at most limit bytes.
func readSmall(dir, name string, limit int64) ([]byte, error) {
	f, err := openRegular(filepath.Join(dir, name), name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("checkpoint %s: %d bytes, more than the %d that are read", name, info.Size(), limit)
	}
	data := make([]byte, info.Size())
	if n, err := f.ReadAt(data, 0); n < len(data) {
		return nil, fmt.Errorf("checkpoint %s: read: %w", name, err)
	}
	return data, nil
}
