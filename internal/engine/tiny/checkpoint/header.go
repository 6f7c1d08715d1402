package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// maxHeader is the largest header that the format's reference reader accepts.
	maxHeader = 100_000_000
	// maxDims is far above the dimensions of any weight.
	maxDims = 8
)

// tensorEntry describes one tensor of a safetensors file.
type tensorEntry struct {
	name       string
	dtype      dtype
	shape      []int
	begin, end int64 // bytes within the data part of the file
}

// decodeHeader parses the JSON header of a safetensors file whose data part has size bytes. The entries are
// in the order of their data, which they cover completely: without overlaps, gaps or trailing bytes.
func decodeHeader(header []byte, size int64) ([]tensorEntry, error) {
	dec := json.NewDecoder(bytes.NewReader(header))
	dec.UseNumber()
	var entries []tensorEntry
	err := walkObject(dec, func(key string) error {
		if key == "__metadata__" {
			return skipMetadata(dec)
		}
		e, err := decodeEntry(dec, key)
		if err != nil {
			return fmt.Errorf("tensor %.100q: %w", key, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err == nil {
		err = expectEnd(dec)
	}
	if err != nil {
		return nil, err
	}
	return entries, sortEntries(entries, size)
}

func skipMetadata(dec *json.Decoder) error {
	err := walkObject(dec, func(string) error {
		_, err := readString(dec)
		return err
	})
	if err != nil {
		return fmt.Errorf("__metadata__: %w", err)
	}
	return nil
}

func decodeEntry(dec *json.Decoder, name string) (tensorEntry, error) {
	var (
		typ            string
		shape, offsets []int64
		has            int
	)
	err := walkObject(dec, func(key string) (err error) {
		has++
		switch key {
		case "dtype":
			typ, err = readString(dec)
		case "shape":
			shape, err = readInts(dec, maxDims)
		case "data_offsets":
			offsets, err = readInts(dec, 2)
		default:
			return fmt.Errorf("unknown key %.100q", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return tensorEntry{}, err
	case has != 3:
		return tensorEntry{}, errors.New("needs dtype, shape and data_offsets")
	case len(offsets) != 2 || offsets[0] > offsets[1]:
		return tensorEntry{}, fmt.Errorf("data_offsets %v are not a range", offsets)
	}
	e := tensorEntry{name: name, dtype: dtype(typ), begin: offsets[0], end: offsets[1], shape: make([]int, len(shape))}
	for i, n := range shape {
		e.shape[i] = int(n)
	}
	return e, e.checkSize(shape)
}

// checkSize checks that dtype and shape account for exactly the bytes given.
func (e *tensorEntry) checkSize(shape []int64) error {
	unit := e.dtype.byteSize()
	if unit == 0 {
		return fmt.Errorf("dtype %.100q is not supported; convert the checkpoint to BF16, F16 or F32", string(e.dtype))
	}
	total := uint64(unit)
	for _, n := range shape {
		hi, lo := bits.Mul64(total, uint64(n))
		if hi != 0 || lo > 1<<62 {
			return fmt.Errorf("shape %v overflows", shape)
		}
		total = lo
	}
	if have := uint64(e.end - e.begin); have != total {
		return fmt.Errorf("shape %v of %s needs %d bytes, data_offsets give %d", shape, e.dtype, total, have)
	}
	return nil
}

// sortEntries sorts entries by their data and checks that they cover size bytes.
func sortEntries(entries []tensorEntry, size int64) error {
	slices.SortFunc(entries, func(a, b tensorEntry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	var at int64
	for _, e := range entries {
		switch {
		case e.begin < at:
			return fmt.Errorf("tensor %.100q: overlaps the tensor before it", e.name)
		case e.begin > at:
			return fmt.Errorf("tensor %.100q: %d unused bytes before it", e.name, e.begin-at)
		case e.end > size:
			return fmt.Errorf("tensor %.100q: ends %d bytes after the end of the file; the file is truncated, fetch it again", e.name, e.end-size)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("%d bytes after the last tensor", size-at)
	}
	return nil
}

// maxShards bounds the files held open at once.
const maxShards = 1024

// decodeIndex parses model.safetensors.index.json into a map from tensor name to
// the shard that holds it.
func decodeIndex(data []byte) (map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var weights map[string]string
	shards := make(map[string]struct{})
	err := walkObject(dec, func(key string) error {
		if key != "weight_map" {
			var ignored json.RawMessage
			return dec.Decode(&ignored)
		}
		weights = make(map[string]string)
		err := walkObject(dec, func(tensor string) error {
			shard, err := readString(dec)
			if err == nil {
				err = checkShardName(shard)
			}
			if err != nil {
				return fmt.Errorf("tensor %.100q: %w", tensor, err)
			}
			shards[shard] = struct{}{}
			if len(shards) > maxShards {
				return fmt.Errorf("more than %d shards", maxShards)
			}
			weights[tensor] = shard
			return nil
		})
		if err != nil {
			return fmt.Errorf("weight_map: %w", err)
		}
		return nil
	})
	if err == nil {
		err = expectEnd(dec)
	}
	if err != nil {
		return nil, err
	}
	if len(weights) == 0 {
		return nil, errors.New("weight_map is missing or empty")
	}
	return weights, nil
}

// checkShardName accepts the name of a file in the checkpoint's own directory. The name is untrusted, so it
// must not lead anywhere else. The file itself may be a symbolic link, as in the caches of download tools.
func checkShardName(name string) error {
	if !filepath.IsLocal(name) || strings.ContainsAny(name, `/\:`) || !strings.HasSuffix(name, ".safetensors") {
		return fmt.Errorf("shard %.100q is not the name of a .safetensors file in the same directory", name)
	}
	return nil
}
