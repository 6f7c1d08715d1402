// Command release packs the archive of one target, with its SBOM beside it and inside, or writes the checksums of a
// directory of archives. The same contents give the same bytes. tools/release.sh runs it.
//
//	release -binary FILE -name NAME -tree DIR -time SECONDS -out DIR
//	release -sums DIR
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	var p packing
	seconds := flag.Int64("time", 0, "time of all files in the archive, in seconds since 1970")
	sums := flag.String("sums", "", "directory of archives, to which SHA256SUMS is written")
	flag.StringVar(&p.binary, "binary", "", "the program")
	flag.StringVar(&p.version, "version", "", "its version")
	flag.StringVar(&p.name, "name", "", "name of the archive without .tar.gz, and of its only directory")
	flag.StringVar(&p.tree, "tree", "", "directory of the other files of the archive")
	flag.StringVar(&p.out, "out", "", "directory to write to")
	flag.Parse()
	p.time = time.Unix(*seconds, 0).UTC()
	err := errors.New("want -sums DIR, or -binary, -version, -name, -tree, -time and -out")
	switch {
	case *sums != "":
		err = writeSums(*sums)
	case p.binary != "" && p.version != "" && p.name != "" && p.tree != "" && p.out != "" && *seconds > 0:
		err = p.write()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// packing is the making of one archive.
type packing struct {
	binary, version, name, tree, out string

	time time.Time
}

// sbomSuffix is the end of the name of an SBOM.
const sbomSuffix = ".cdx.json"

// write writes the archive and its SBOM.
func (p *packing) write() error {
	sbom, err := describeBinary(p.binary, p.version, p.time)
	if err != nil {
		return err
	}
	files, err := readTree(p.tree)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(p.binary)
	if err != nil {
		return err
	}
	files = append(files, archiveFile{"penstock", 0o755, program}, archiveFile{"penstock" + sbomSuffix, 0o644, sbom})
	var archive bytes.Buffer
	if err := writeArchive(&archive, p.name, p.time, files); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(p.out, p.name+sbomSuffix), sbom, 0o644),
		os.WriteFile(filepath.Join(p.out, p.name+archiveSuffix), archive.Bytes(), 0o644),
	)
}

// writeSums writes SHA256SUMS as sha256sum does, by name.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), archiveSuffix) && !strings.HasSuffix(e.Name(), sbomSuffix) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), e.Name())
	}
	if sums.Len() == 0 {
		return fmt.Errorf("sums: there is no archive in %s", dir)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
