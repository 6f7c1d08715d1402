package sim

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// NumPy itself wrote the files (tools/fixtures/make_profile.py) and computed the resulting times.
func TestProfilesOfNumPy(t *testing.T) {
	raw, err := os.ReadFile("testdata/profile.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Prefill [][2]float64 // tokens, ms
		Decode  [][3]float64 // tokens in the cache, context, ms
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Prefill) == 0 || len(want.Decode) == 0 {
		t.Fatal("the file has lost its values")
	}
	for _, file := range []string{"profile.npz", "profile-compressed.npz", "profile-fortran.npz", "profile-integers.npz"} {
		p, err := OpenProfile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range want.Prefill {
			if got := p.prefillMillis(v[0]); math.Abs(got-v[1]) > 1e-9 {
				t.Errorf("%s: a prefill of %v tokens takes %v ms, want %v", file, v[0], got, v[1])
			}
		}
		for _, v := range want.Decode {
			if got := p.decodeMillis(v[0], v[1]); math.Abs(got-v[2]) > 1e-9 {
				t.Errorf("%s: decode over %v tokens of %v takes %v ms, want %v", file, v[0], v[1], got, v[2])
			}
		}
	}
}

func testProfile(t testing.TB) *Profile {
	t.Helper()
	p, err := NewProfile(
		[]float64{100, 1000, 8000}, []float64{20, 40, 180},
		[]float64{1000, 100_000}, []float64{128, 4096}, [][]float64{{5, 6}, {20, 25}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProfileTakesThePlaceOfFormulas(t *testing.T) {
	tm := timing(t, "mocker")
	tm.Profile = testProfile(t)
	// Between 100 and 1000 tokens: 20 + 450/900·20.
	if got := tm.PassDuration(&Pass{Prefill: 550, Prompts: 1}, 0); got != 30*time.Millisecond {
		t.Errorf("prefill takes %v, want 30 ms", got)
	}
	// Beyond the last: 180 + 700·140/7000.
	if got := tm.PassDuration(&Pass{Prefill: 8700, Prompts: 1}, 0); got != 194*time.Millisecond {
		t.Errorf("prefill beyond the table takes %v, want 194 ms", got)
	}
	// 100000 tokens of ten sequences that have 10000 on average: 25 + 5904·5/3968.
	if got := tm.PassDuration(&Pass{Tokens: 10, Context: 100_000}, 0); got != 32_439_516 {
		t.Errorf("decode takes %d ns, want 32439516", got)
	}
	one, err := NewProfile([]float64{5}, []float64{7}, []float64{1}, []float64{1}, [][]float64{{0}})
	if err != nil {
		t.Fatal(err)
	}
	tm.Profile = one
	if got := tm.PassDuration(&Pass{Prefill: 900, Prompts: 1, Tokens: 1, Context: 900}, 0); got != 8*time.Millisecond {
		t.Errorf("of one point each, with the floor of decode: %v, want 8 ms", got)
	}
	falling, err := NewProfile([]float64{5, 6}, []float64{7, 6}, []float64{1}, []float64{1}, [][]float64{{0}})
	if err != nil {
		t.Fatal(err)
	}
	if got := falling.prefillMillis(100); got != 0 {
		t.Errorf("beyond a falling table a prefill takes %v ms", got)
	}
}

// npy returns an array as a file with any header.
func npy(header string, values ...float64) []byte {
	b := []byte(npyMagic + "\x01\x00")
	b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	b = append(b, header...)
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

func vector(values ...float64) []byte {
	return npy(fmt.Sprintf("{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }\n", len(values)), values...)
}

func matrix(rows, cols int, values ...float64) []byte {
	return npy(fmt.Sprintf("{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }\n", rows, cols), values...)
}

// members returns the arrays of a valid profile.
func members() map[string][]byte {
	return map[string][]byte{
		arrayISL: vector(100, 200), arrayTTFT: vector(10, 20),
		arrayKV: vector(1, 2), arrayContext: vector(3), arrayITL: matrix(2, 1, 5, 6),
	}
}

func npz(t testing.TB, members map[string][]byte, twice ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	put := func(name string) {
		method := zip.Store
		if len(members[name]) > maxProfile {
			method = zip.Deflate // else the file would be too large, not the array
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: method})
		if err == nil {
			_, err = f.Write(members[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{arrayISL, arrayTTFT, arrayKV, arrayContext, arrayITL} {
		if members[name] != nil {
			put(name)
		}
	}
	for _, name := range twice {
		put(name)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBadProfiles(t *testing.T) {
	if _, err := ReadProfile(npz(t, members())); err != nil {
		t.Fatal(err)
	}
	nan := math.NaN()
	for _, c := range []struct {
		name, array string
		data        []byte
		want        string
	}{
		{"missing", arrayISL, nil, "it is missing"},
		{"empty", arrayISL, []byte{}, "not in the NPY format"},
		{"other format", arrayISL, []byte("PK\x03\x04 something"), "not in the NPY format"},
		{"header cut", arrayISL, vector(1, 2)[:20], "header is cut short"},
		{"long header cut", arrayISL, []byte(npyMagic + "\x02\x00\xff\xff"), "header is cut short"},
		{"huge header", arrayISL, []byte(npyMagic + "\x02\x00\xff\xff\xff\xff{}"), "header is cut short"},
		{"unknown version", arrayISL, append([]byte(npyMagic+"\x09\x00"), make([]byte, 9)...), "version 9"},
		{"objects", arrayISL, npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }\n", 1, 2), "not one of numbers"},
		{"halves", arrayISL, npy("{'descr': '<f2', 'fortran_order': False, 'shape': (8,), }\n", 1, 2), "numbers of type <f2"},
		{"no shape", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, }\n", 1, 2), "not one of numbers"},
		{"numbers missing", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", 1, 2), "does not fit the 2 numbers"},
		{"numbers left", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n", 1, 2), "16 bytes for 1 numbers of 8"},
		{"huge shape", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2147483647, 3), }\n", 1, 2), "does not fit"},
		{"shape beyond integers", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }\n", 1), "not of one or two"},
		{"no dimension", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", 1), "0 dimensions, not 1"},
		{"no points", arrayISL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }\n"), "does not fit"},
		{"two dimensions", arrayISL, matrix(1, 2, 1, 2), "2 dimensions, not 1"},
		{"three dimensions", arrayITL, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1), }\n", 1), "not of one or two"},
		{"one dimension", arrayITL, vector(1, 2), "1 dimensions, not 2"},
		{"not ascending", arrayISL, vector(200, 100), "point 1 is 100 after 200"},
		{"twice the same", arrayKV, vector(2, 2), "must ascend"},
		{"negative tokens", arrayContext, vector(-1), "point 0 is -1"},
		{"tokens not a number", arrayISL, vector(1, nan), "point 1 is NaN"},
		{"time not a number", arrayTTFT, vector(1, nan), "time 1 is NaN"},
		{"infinite time", arrayTTFT, vector(1, math.Inf(1)), "time 1 is +Inf"},
		{"negative time", arrayITL, matrix(2, 1, 1, -1), "row 1: time 0 is -1"},
		{"times missing", arrayTTFT, vector(1), "1 times for the 2 points"},
		{"rows missing", arrayITL, matrix(1, 1, 1), "1 rows for the 2 points"},
		{"columns missing", arrayContext, vector(1, 2), "row 0 has 1 times for the 2 points"},
		{"too large", arrayISL, make([]byte, maxProfile+1), "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := members()
			m[c.array] = c.data
			_, err := ReadProfile(npz(t, m))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "array ") {
				t.Errorf("error %q does not say %q of an array", err, c.want)
			}
		})
	}
}

func TestBadProfileFiles(t *testing.T) {
	whole := npz(t, members())
	many := make([]string, maxMembers)
	for i := range many {
		many[i] = fmt.Sprint("other", i)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"empty":         {nil, "not an NPZ file"},
		"text":          {[]byte("isl,ttft\n1,2\n"), "not an NPZ file"},
		"cut short":     {whole[:len(whole)-30], "not an NPZ file"},
		"changed":       {bytes.Replace(whole, vector(100, 200), vector(100, 300), 1), "checksum error"},
		"twice":         {npz(t, members(), arrayKV), "it is there twice"},
		"many":          {npz(t, members(), many...), "69 arrays, more than 64"},
		"huge":          {make([]byte, maxProfile+1), "larger than"},
		"other members": {npz(t, map[string][]byte{}), "array prefill_isl: it is missing"},
	} {
		if _, err := ReadProfile(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v does not say %q", name, err, c.want)
		}
	}
	if _, err := OpenProfile("testdata/none.npz"); err == nil || !strings.Contains(err.Error(), "none.npz") {
		t.Errorf("a file that is not there: %v", err)
	}
	file := t.TempDir() + "/bad.npz"
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenProfile(file); err == nil || !strings.Contains(err.Error(), "bad.npz") {
		t.Errorf("the error does not name the file: %v", err)
	}
}

// FuzzReadProfile checks that no file does harm, and that accepted ones give times.
func FuzzReadProfile(f *testing.F) {
	f.Add(npz(f, members()))
	for _, file := range []string{"profile.npz", "profile-compressed.npz", "profile-fortran.npz", "profile-integers.npz"} {
		data, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadProfile(data)
		if err != nil {
			return
		}
		tm := Timing{Profile: p}
		tm.EnsureDefaults()
		for _, n := range []int{1, 1000, math.MaxInt32} {
			pass := Pass{Prefill: n, Prompts: 1, Tokens: 1, Context: n}
			if got := tm.PassDuration(&pass, 0); got < time.Millisecond || got > maxPassNanos {
				t.Fatalf("%d tokens take %d ns", n, got)
			}
		}
	})
}

// FuzzReadArray does the same for one array, which no checksum protects.
func FuzzReadArray(f *testing.F) {
	f.Add(vector(1, 2, 3))
	f.Add(matrix(2, 3, 1, 2, 3, 4, 5, 6))
	f.Add(npy("{'descr': '>i4', 'fortran_order': True, 'shape': (2, 1), }\n", 1))
	f.Add([]byte(npyMagic + "\x03\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := readArray(data)
		if err != nil {
			return
		}
		if 4*len(a.values) > len(data) {
			t.Fatalf("%d bytes became %d numbers", len(data), len(a.values))
		}
		if len(a.shape) == 2 {
			n := 0
			for _, row := range a.toRows() {
				n += len(row)
			}
			if n != len(a.values) {
				t.Fatalf("%d numbers in rows of %d", n, len(a.values))
			}
		}
	})
}
