package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// encode returns a safetensors file.
func encode(header string, data []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *Checkpoint {
	t.Helper()
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOpenSingle(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, singleFile, encode(
		`{"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},`+
			`"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]},`+
			`"f":{"dtype":"F32","shape":[],"data_offsets":[8,12]},`+
			`"i":{"dtype":"I32","shape":[1],"data_offsets":[12,16]}}`,
		[]byte{0, 0x3c, 0, 0xc0, 0x80, 0x3f, 0x20, 0xc0, 0, 0, 0x40, 0x40, 1, 0, 0, 0}))
	c := open(t, dir)
	if want := []string{"b", "f", "h", "i"}; !slices.Equal(c.Names(), want) {
		t.Errorf("got %v, want %v", c.Names(), want)
	}
	for name, want := range map[string]Tensor{
		"h": {[]int{2}, []float32{1, -2}},
		"b": {[]int{1, 2}, []float32{1, -2.5}},
		"f": {[]int{}, []float32{3}},
	} {
		got, err := c.Tensor(name)
		if err != nil || !slices.Equal(got.Shape, want.Shape) || !slices.Equal(got.Data, want.Data) {
			t.Errorf("%s is %v (%v), want %v", name, got, err, want)
		}
	}
	if _, err := c.Tensor("i"); err == nil || !strings.Contains(err.Error(), `model.safetensors: tensor "i": is I32`) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Tensor("x"); err == nil || !strings.Contains(err.Error(), `"x" is missing`) {
		t.Errorf("got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// TestLargeTensor exceeds a chunk by an odd number of elements.
func TestLargeTensor(t *testing.T) {
	const n = chunkBytes/4*2 + 3
	data := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(i)))
	}
	dir := t.TempDir()
	write(t, dir, singleFile, encode(fmt.Sprintf(`{"a":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}`, n, 4*n), data))
	got, err := open(t, dir).Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got.Data {
		if v != float32(i) {
			t.Fatalf("element %d is %v", i, v)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	good := encode(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, []byte{1, 2})
	for _, test := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "0 bytes are no safetensors file"},
		{"short", good[:7], "7 bytes are no safetensors file"},
		{"no header", good[:8], "header of 53 bytes in a file with 0 left; the file is truncated"},
		{"cut header", good[:40], "the file is truncated"},
		{"cut data", good[:len(good)-1], `tensor "a": ends 1 bytes after the end of the file`},
		{"longer", append(slices.Clone(good), 0), "1 bytes after the last tensor"},
		{"a pickle", []byte("PK\x03\x04 and so on and on"), "this is no safetensors file"},
		{"endless header", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "this is no safetensors file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, singleFile, test.file)
			_, err := Open(dir)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), singleFile) {
				t.Fatalf("got %v, want %q about %s", err, test.want, singleFile)
			}
		})
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "neither model.safetensors nor model.safetensors.index.json") {
		t.Errorf("an empty directory: got %v", err)
	}
}

// TestHeaderMemory gives a false header length. Nothing of that size may be allocated.
func TestHeaderMemory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, singleFile, binary.LittleEndian.AppendUint64(nil, maxHeader))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Open(dir)
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Fatal("accepted")
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Fatalf("%d bytes allocated", n)
	}
}

// TestShrunkFile truncates a file after its header was checked.
func TestShrunkFile(t *testing.T) {
	dir := t.TempDir()
	file := encode(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4))
	write(t, dir, singleFile, file)
	c := open(t, dir)
	if err := os.Truncate(filepath.Join(dir, singleFile), int64(len(file)-1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Tensor("a"); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Fatalf("got %v", err)
	}
}

func TestOpenSharded(t *testing.T) {
	dir := t.TempDir()
	one := encode(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0})
	two := encode(`{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"c":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, []byte{0, 0, 0, 0x40, 0, 0, 0x40, 0x40})
	write(t, dir, "one.safetensors", one)
	write(t, dir, "two.safetensors", two)
	write(t, dir, indexFile, []byte(`{"metadata":{"total_size":16},"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"}}`))
	// The index takes precedence over a stray single file.
	write(t, dir, singleFile, []byte("not even one"))
	c := open(t, dir)
	if want := []string{"a", "b", "c"}; !slices.Equal(c.Names(), want) {
		t.Errorf("got %v, want %v", c.Names(), want)
	}
	for name, want := range map[string]float32{"a": 1, "b": 2, "c": 3} {
		if got, err := c.Tensor(name); err != nil || got.Data[0] != want {
			t.Errorf("%s is %v (%v), want %v", name, got, err, want)
		}
	}
}

// TestLinkedShard follows a symbolic link out of the directory, as in the caches of download tools.
func TestLinkedShard(t *testing.T) {
	dir, blobs := t.TempDir(), t.TempDir()
	write(t, blobs, "0f3a", encode(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)))
	if err := os.Symlink(filepath.Join(blobs, "0f3a"), filepath.Join(dir, singleFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).Tensor("a"); err != nil {
		t.Fatal(err)
	}
}

func TestIndexRefuses(t *testing.T) {
	shard := func(name string) string { return `{"weight_map":{"a":"` + name + `"}}` }
	for _, test := range []struct{ name, index, want string }{
		{"parent", shard(`../one.safetensors`), "is not the name of a .safetensors file in the same directory"},
		{"absolute", shard(`/etc/one.safetensors`), "is not the name"},
		{"below", shard(`sub/one.safetensors`), "is not the name"},
		{"backslash", shard(`..\\one.safetensors`), "is not the name"},
		{"drive", shard(`c:one.safetensors`), "is not the name"},
		{"other file", shard(`config.json`), "is not the name"},
		{"no name", shard(``), "is not the name"},
		{"missing shard", shard(`gone.safetensors`), "names gone.safetensors, which is missing"},
		{"not in shard", `{"weight_map":{"b":"one.safetensors"}}`, `tensor "b" is not in one.safetensors as the index says`},
		{"twice", `{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}`, `"a" occurs twice`},
		{"number", `{"weight_map":{"a":1}}`, "want a string"},
		{"no map", `{"metadata":{}}`, "missing or empty"},
		{"no tensors", `{"weight_map":{}}`, "missing or empty"},
		{"trailing", shard(`one.safetensors`) + `1`, "data after the end"},
		{"cut", `{"weight_map":{`, "the file is truncated"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "one.safetensors", encode(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)))
			write(t, dir, indexFile, []byte(test.index))
			_, err := Open(dir)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), indexFile) {
				t.Fatalf("got %v, want %q about %s", err, test.want, indexFile)
			}
		})
	}
}

// FuzzDecodeIndex checks that no accepted name leads out of the directory.
func FuzzDecodeIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"model-1.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		weights, err := decodeIndex(data)
		if err != nil {
			return
		}
		for tensor, shard := range weights {
			if filepath.Dir(filepath.Join("dir", shard)) != "dir" || filepath.Base(shard) != shard {
				t.Fatalf("%q is in %q", tensor, shard)
			}
		}
	})
}
