package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
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

// fakeGo takes the place of the go command. It records each build: the state of the checkout, and the settings which it
// sees. What it builds does nothing but write an archive if it has -out.
const fakeGo = `#!/bin/sh
set -e
if [ "$1" = env ]; then
  echo "from-$2"
  exit
fi
while [ "$1" != -o ]; do shift; done
echo "$3 $GOOS GOENV=$GOENV GOPROXY=$GOPROXY GOFLAGS=$GOFLAGS changes:$(git status --porcelain | wc -l)" >>"$BUILDS"
cat >"$2" <<'END'
#!/bin/sh
[ "$1" != version ] || echo penstock 1.2.3
while [ $# -gt 0 ]; do
  case "$1" in
  -name) name="$2" ;;
  -out) : >"$2/$name.tar.gz" ;;
  esac
  shift
done
END
chmod +x "$2"
`

// TestScriptBuildsCleanTree: with a directory in the checkout all programs are built from a tree without changes, and
// without the settings of go env -w except for the source of modules.
func TestScriptBuildsCleanTree(t *testing.T) {
	dir := t.TempDir()
	checkout, builds := filepath.Join(dir, "checkout"), filepath.Join(dir, "builds")
	script, err := os.ReadFile("../release.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"checkout/tools/release.sh": string(script), "checkout/deploy/systemd/unit": "", "bin/go": fakeGo,
		"checkout/LICENSE": "", "checkout/README.md": "", "checkout/CHANGELOG.md": "", "checkout/SECURITY.md": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = checkout
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "BUILDS="+builds)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	run("git", "init", "-q")
	run("git", "add", ".")
	run("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "all")
	run("bash", "tools/release.sh", "out", "linux/amd64", "darwin/arm64")
	got, err := os.ReadFile(builds)
	if err != nil {
		t.Fatal(err)
	}
	const settings = " GOENV=off GOPROXY=from-GOPROXY GOFLAGS= changes:0\n"
	want := "./cmd/penstock " + settings + "./tools/release " + settings + "./cmd/penstock linux" + settings + "./cmd/penstock darwin" + settings
	if string(got) != want {
		t.Errorf("builds:\n%swant:\n%s", got, want)
	}
	archives, err := filepath.Glob(filepath.Join(checkout, "out", "*.tar.gz"))
	if err != nil || len(archives) != 2 {
		t.Errorf("archives %q, %v", archives, err)
	}
}
