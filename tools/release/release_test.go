package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var testTime = time.Unix(1_700_000_000, 0).UTC()

// TestWriteArchive: the bytes do not depend on the order in which files were found, and the archive has them all.
func TestWriteArchive(t *testing.T) {
	files := []archiveFile{{"penstock", 0o755, []byte("program")}, {"man/man1/a.1", 0o644, []byte("page")}, {"LICENSE", 0o644, nil}}
	var first, second bytes.Buffer
	if err := writeArchive(&first, "penstock-1-a-b", testTime, files); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(files)
	if err := writeArchive(&second, "penstock-1-a-b", testTime, files); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("another order of files gives other bytes")
	}
	compressed, err := gzip.NewReader(&first)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for in := tar.NewReader(compressed); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil || !h.ModTime.Equal(testTime) || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%+v: %v", h, err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+string(data))
	}
	want := []string{"-rw-r--r-- penstock-1-a-b/LICENSE ", "-rw-r--r-- penstock-1-a-b/man/man1/a.1 page", "-rwxr-xr-x penstock-1-a-b/penstock program"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// TestPack packs this test itself: the archive, the SBOM beside it and the checksums are there, and alike the second time,
// when the files lie at another path and are newer.
func TestPack(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pack := func() (sums string, sbom []byte) {
		dir := t.TempDir()
		tree, out := filepath.Join(dir, "tree"), filepath.Join(dir, "out")
		for _, d := range []string{filepath.Join(tree, "man"), out} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"LICENSE", "man/a.1"} {
			if err := os.WriteFile(filepath.Join(tree, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p := packing{binary: self, version: "1.2.3", name: "n", tree: tree, out: out, time: testTime}
		if err := p.write(); err != nil {
			t.Fatal(err)
		}
		if err := writeSums(out); err != nil {
			t.Fatal(err)
		}
		said, err := os.ReadFile(filepath.Join(out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		if sbom, err = os.ReadFile(filepath.Join(out, "n.cdx.json")); err != nil {
			t.Fatal(err)
		}
		return string(said), sbom
	}
	sums, sbom := pack()
	if again, _ := pack(); again != sums {
		t.Errorf("the first time:\n%sthe second time:\n%s", sums, again)
	}
	lines := strings.Split(sums, "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "  n.cdx.json") || !strings.HasSuffix(lines[1], "  n.tar.gz") {
		t.Errorf("SHA256SUMS\n%s", sums)
	}
	var b bom
	if err := json.Unmarshal(sbom, &b); err != nil {
		t.Fatal(err)
	}
	std := "pkg:golang/std@" + strings.Fields(strings.TrimPrefix(runtime.Version(), "go"))[0]
	if b.Format != "CycloneDX" || b.SpecVersion != "1.6" || b.Metadata.Component.Version != "1.2.3" || b.Metadata.Timestamp != "2023-11-14T22:13:20Z" ||
		!slices.ContainsFunc(b.Components, func(c component) bool { return c.PackageURL == std }) || len(b.Dependencies[0].DependsOn) != len(b.Components) {
		t.Errorf("SBOM\n%s", sbom)
	}
}

func TestNewModule(t *testing.T) {
	c := newModule("example.com/a/v2", "v2.0.0+incompatible", "h1:x=")
	if c.PackageURL != "pkg:golang/example.com/a/v2@v2.0.0+incompatible" || c.Properties[0].Value != "h1:x=" {
		t.Errorf("%+v", c)
	}
}
